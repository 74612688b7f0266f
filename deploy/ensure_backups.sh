#!/usr/bin/env bash
# Makes sure that Debian's pgBackRest and the PostgreSQL that it supports are there for `make test-backups`: unpacked
# into dist/backups, and neither installed nor started. Needs no root where the lists of packages are there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=dist/backups
complete() { [[ -x $folder/usr/bin/pgbackrest ]] && compgen -G "$folder/usr/lib/postgresql/*/bin/postgres" >/dev/null; }
complete && exit 0
if ! command -v apt-get >/dev/null; then
    echo "[backups] not run: pgBackRest is taken from Debian, and this is no Debian" >&2
    exit 1
fi
((EUID != 0)) || apt-get update -qq || true
server=$(apt-cache depends postgresql | grep -oE 'postgresql-[0-9]+$' | head -1 || true)
if [[ -z $server ]]; then
    echo "[backups] not run: there are no lists of Debian's packages; as root: apt-get update" >&2
    exit 1
fi
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
chmod 0755 "$packages"
if ! (cd "$packages" && apt-get download -qq pgbackrest "$server" "${server/-/-client-}" libpq5 >&2); then
    echo "[backups] not run: Debian's pgbackrest and $server cannot be had; apt-get download says why" >&2
    exit 1
fi
echo "[backups] unpacking pgbackrest and $server from Debian"
mkdir -p "$folder"
for package in "$packages"/*.deb; do
    dpkg-deb --extract "$package" "$folder"
done
libraries=$folder/usr/lib/$(uname -m)-linux-gnu
if LD_LIBRARY_PATH=$libraries ldd "$folder"/usr/bin/pgbackrest "$folder"/usr/lib/postgresql/*/bin/postgres | grep 'not found' >&2; then
    echo "[backups] not run: these libraries are missing; as root: apt-get install $server" >&2
    rm -r "$folder"
    exit 1
fi
