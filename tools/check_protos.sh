#!/usr/bin/env bash
# Fails when the committed stubs are not what the .proto files give. PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3}"
# protoc finds the plugin protoc-gen-mypy on the PATH, where it lies beside the interpreter.
interpreter="$(command -v "$PYTHON")"
PATH="$(cd "$(dirname "$interpreter")" && pwd):$PATH"
fresh="$(mktemp -d)"
trap 'rm -rf "$fresh"' EXIT

"$interpreter" -m grpc_tools.protoc -I . "--python_out=$fresh" "--grpc_python_out=$fresh" \
  "--mypy_out=quiet:$fresh" "--mypy_grpc_out=quiet:$fresh" protos/inferscope/v1/*.proto

stale=0
for stub in "$fresh"/protos/inferscope/v1/*; do
  committed="${stub#"$fresh"/}"
  if ! cmp -s "$stub" "$committed"; then
    echo "$committed: is not what the .proto file gives" >&2
    stale=1
  fi
done
for committed in protos/inferscope/v1/*_pb2*.py*; do
  if [ ! -e "$fresh/$committed" ]; then
    echo "$committed: no .proto file gives it" >&2
    stale=1
  fi
done
if [ "$stale" -ne 0 ]; then
  echo "the stubs are stale; run: make proto" >&2
  exit 1
fi
