#!/usr/bin/env bash
# Makes sure that Debian's nginx and HAProxy are there for `make test-proxies`: unpacked into dist/proxies, with the
# libraries that they need, and neither installed nor started. Needs no root where the lists of packages are there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=dist/proxies
[[ -x $folder/usr/sbin/nginx && -x $folder/usr/sbin/haproxy ]] && exit 0
if ! command -v apt-get >/dev/null; then
    echo "[proxies] not run: nginx and HAProxy are taken from Debian, and this is no Debian" >&2
    exit 1
fi
((EUID != 0)) || apt-get update -qq || true
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
chmod 0755 "$packages"
if ! (cd "$packages" && apt-get download -qq nginx haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 >&2); then
    echo "[proxies] not run: Debian's nginx and haproxy cannot be had; apt-get download says why" >&2
    exit 1
fi
echo "[proxies] unpacking nginx and haproxy from Debian"
mkdir -p "$folder"
for package in "$packages"/*.deb; do
    dpkg-deb --extract "$package" "$folder"
done
