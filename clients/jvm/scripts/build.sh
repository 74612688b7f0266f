#!/usr/bin/env bash
# Compiles the client, its tests and the examples into build/, in one JVM of bounded memory; nothing where nothing has changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec java -Xmx768m -Xss4m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ActiveProcessorCount=1 \
    -cp 'node_modules/kotlin-compiler/lib/*' scripts/Build.java
