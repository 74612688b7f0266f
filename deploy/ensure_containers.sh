#!/usr/bin/env bash
# Makes sure that this machine can build the image without a daemon, run it, and run the chart's manifests: Debian's
# mmdebstrap, umoci, crun, iproute2 and, unpacked into .cache/prometheus without its service, prometheus. Needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

declare -A PACKAGES=([mmdebstrap]=mmdebstrap [umoci]=umoci [crun]=crun [strip]=binutils [ip]=iproute2)
missing=()
for tool in "${!PACKAGES[@]}"; do
    command -v "$tool" >/dev/null || missing+=("${PACKAGES[$tool]}")
done
prometheus=.cache/prometheus/usr/bin/prometheus
[[ ${#missing[@]} -eq 0 && -x $prometheus ]] && exit 0
if ! command -v apt-get >/dev/null || ((EUID != 0)); then
    echo "[containers] on Debian, as root: apt-get install ${missing[*]} and run this again" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
if [[ ${#missing[@]} -gt 0 ]]; then
    echo "[containers] installing ${missing[*]} from Debian"
    apt-get -o DPkg::Lock::Timeout=120 install -y -qq --no-install-recommends "${missing[@]}" </dev/null
fi
if [[ ! -x $prometheus ]]; then
    echo "[containers] unpacking prometheus from Debian"
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    chmod 0755 "$folder"
    (cd "$folder" && apt-get download -qq prometheus)
    mkdir -p .cache/prometheus
    dpkg-deb --extract "$folder"/prometheus_*.deb .cache/prometheus
fi
