#!/usr/bin/env bash
# Makes sure that the tests find a Chromium: SESSILE_TEST_CHROMIUM, else `chromium` on PATH, else Debian's package,
# which is installed where this runs as root. Anywhere else it says what to do and fails.
set -euo pipefail

if [[ -n ${SESSILE_TEST_CHROMIUM:-} ]]; then
    [[ -x $SESSILE_TEST_CHROMIUM ]] && exit 0
    echo "[browser] SESSILE_TEST_CHROMIUM names no program that can be run: $SESSILE_TEST_CHROMIUM" >&2
    exit 1
fi
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
if ! command -v apt-get >/dev/null || ((EUID != 0)); then
    echo "[browser] the page's tests need Chromium and its driver. On Debian, as root:" >&2
    echo "[browser]     apt-get install chromium chromium-driver fonts-liberation" >&2
    echo "[browser] elsewhere install Chromium and set SESSILE_TEST_CHROMIUM to its path." >&2
    exit 1
fi
echo "[browser] installing chromium and chromium-driver from Debian"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-liberation </dev/null
