#!/bin/sh
# curl: chat, a stream of it, and a session's log as server-sent events.
#
#     docs/examples/chat.sh http://127.0.0.1:8080 [KEY]
set -eu
url=${1:-http://127.0.0.1:8080}
key=${2:-none}
model=$(curl -fsS -H "Authorization: Bearer $key" "$url/v1/models" | sed 's/.*"id": *"\([^"]*\)".*/\1/')

echo "== an answer"
curl -fsS "$url/v1/chat/completions" -H "Authorization: Bearer $key" -H 'Content-Type: application/json' \
    -d "{\"model\": \"$model\", \"messages\": [{\"role\": \"user\", \"content\": \"Say hello.\"}]}"
echo

echo "== a stream; with an Idempotency-Key a retry attaches to the same answer"
curl -fsSN "$url/v1/chat/completions" -H "Authorization: Bearer $key" -H 'Content-Type: application/json' \
    -H "Idempotency-Key: example-$$" \
    -d "{\"model\": \"$model\", \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"Again.\"}]}"

echo "== an answer that is kept, and the log of its session from the start"
response=$(curl -fsS "$url/v1/responses" -H "Authorization: Bearer $key" -H 'Content-Type: application/json' \
    -d "{\"model\": \"$model\", \"input\": \"Keep this.\"}")
echo "$response"
session=$(curl -fsS -H "Authorization: Bearer $key" "$url/v1/sessions?limit=1" | sed 's/.*"id": *"\([^"]*\)".*/\1/')
curl -sN --max-time 2 -H "Authorization: Bearer $key" "$url/v1/sessions/$session/events?after=0" || test $? -eq 28
