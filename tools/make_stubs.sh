#!/usr/bin/env bash
# Generates the stubs of every .proto file into a folder, the repository by default. PYTHON names the interpreter.
set -euo pipefail
out="$(cd "${1:-$(dirname "$0")/..}" && pwd)"
mkdir -p "$out/protos"
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3}"
# protoc finds the plugin protoc-gen-mypy on the PATH, where it lies beside the interpreter.
interpreter="$(command -v "$PYTHON")"
PATH="$(cd "$(dirname "$interpreter")" && pwd):$PATH"

"$interpreter" -m grpc_tools.protoc -I protos "--python_out=$out/protos" "--grpc_python_out=$out/protos" \
  "--mypy_out=quiet:$out/protos" "--mypy_grpc_out=quiet:$out/protos" protos/inferometer/v1/*.proto protos/inference/v2/*.proto

# The packages of the protocols lie in inferometer.protos.
sed -i -E \
  -e 's/^(from|import) (inferometer\.v1|inference\.v2)\b/\1 inferometer.protos.\2/' \
  "$out"/protos/*/*/*_pb2*.py*

# The names of the package `inference` are taken in the default pool where tritonclient is imported too.
sed -i \
  -e 's/^from google.protobuf import descriptor_pool as _descriptor_pool$/from inferometer.protos.inference.v2.pool import POOL/' \
  -e 's/_descriptor_pool\.Default()/POOL/' \
  "$out"/protos/inference/v2/*_pb2.py
