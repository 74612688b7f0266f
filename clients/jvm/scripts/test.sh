#!/usr/bin/env bash
# Runs the tests that build.sh compiled on the classes of the jar, in one JVM. Words pick tests by part of their name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -cp build/sessile-client.jar:build/sessile-client-sockets.jar:build/test:build/examples:node_modules/kotlin-compiler/lib/kotlin-stdlib.jar \
    sessile.test.MainKt ../../docs/protocol/cases "$@"
