#!/usr/bin/env bash
# Makes sure that the Kotlin client can be compiled: a JDK of 17 or later on PATH, else Debian's package, which is
# installed where this runs as root. Anywhere else it says what to do and fails. (The compiler comes from npm.)
set -euo pipefail

major() {
    javac -version 2>&1 | sed -nE 's/^javac ([0-9]+).*/\1/p'
}

if command -v java >/dev/null && command -v javac >/dev/null; then
    found=$(major)
    ((${found:-0} >= 17)) && exit 0
fi
if ! command -v apt-get >/dev/null || ((EUID != 0)); then
    echo "[jdk] the Kotlin client's tests need a JDK, 17 or later. On Debian, as root:" >&2
    echo "[jdk]     apt-get install openjdk-17-jdk-headless" >&2
    echo "[jdk] elsewhere install one and put its bin folder on PATH." >&2
    exit 1
fi
echo "[jdk] installing openjdk-17-jdk-headless from Debian"
export DEBIAN_FRONTEND=noninteractive
mkdir -p /usr/share/man/man1 # images without manuals lack it, and the package's scripts want it
apt-get update -qq
apt-get -o DPkg::Lock::Timeout=120 install -y -qq --no-install-recommends openjdk-17-jdk-headless </dev/null
