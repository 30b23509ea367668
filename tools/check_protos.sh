#!/usr/bin/env bash
# Fails if the committed stubs differ from those generated from the .proto files. PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
fresh="$(mktemp -d)"
trap 'rm -rf "$fresh"' EXIT

tools/make_stubs.sh "$fresh"

stale=0
for stub in "$fresh"/protos/*/*/*; do
  committed="${stub#"$fresh"/}"
  if ! cmp -s "$stub" "$committed"; then
    echo "$committed: differs from the stub generated from the .proto file" >&2
    stale=1
  fi
done
for committed in protos/*/*/*_pb2*.py*; do
  if [ ! -e "$fresh/$committed" ]; then
    echo "$committed: no .proto file generates it" >&2
    stale=1
  fi
done
if [ "$stale" -ne 0 ]; then
  echo "the stubs are stale; run: make proto" >&2
  exit 1
fi
