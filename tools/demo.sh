#!/usr/bin/env bash
# Evaluates DigitsCNN on real handwritten digits with every framework, and reports on it.
# BIN is the folder with the `agent` command; without it, the one on the PATH is used.
set -euo pipefail
agent="${BIN:+$(cd "$BIN" && pwd)/}agent"

AGENT_DATA_DIR="$(mktemp -d)"
trap 'rm -rf "$AGENT_DATA_DIR"' EXIT
export AGENT_DATA_DIR
# The demo shows its own results: neither a database nor a remote agent of yours takes part in it.
unset AGENT_DATABASE_ADDRESS AGENT_ADDRESS AGENT_FRAMEWORK
export AGENT_CONFIG="$AGENT_DATA_DIR/config.yml"
echo "{}" > "$AGENT_CONFIG"

show() { # prints a command as one would type it, then runs it
  printf '\n$ agent %s\n' "$*"
  "$agent" "$@"
}

differences() { # prints what differs between the first evaluation and each other one besides the framework
  local ids id text
  mapfile -t ids < <("$agent" info evaluation latency -f csv | tail -n +2 | cut -d, -f1 | tac)
  for id in "${ids[@]:1}"; do
    printf '\n$ agent compare %s %s    # here what differs besides the framework\n' "${ids[0]}" "$id"
    # 1 is a regression, which one framework may well be against another
    text="$("$agent" compare "${ids[0]}" "$id" 2>&1)" || (($? == 1)) || { printf '%s\n' "$text" >&2; return 1; }
    grep '^differs: ' <<< "$text" | grep -v '^differs: framework:' || echo "nothing"
  done
}

echo "The results of this demo go to $AGENT_DATA_DIR, which is removed at its end."
for framework in PyTorch MXNet ONNXRuntime; do
  if "$agent" info frameworks -f csv | grep -q "^$framework,,"; then
    printf '\n%s is not installed: the demo goes on without it\n' "$framework"
    continue
  fi
  show predict dataset --model_name=DigitsCNN --framework_name="$framework" --batch_size=16
done
show info evaluation latency --columns=framework,threads,batch_size,mean,p50,p99,throughput
show info evaluation accuracy --columns=framework,framework_version,top-1,top-5,evaluated_inputs,failed_inputs
differences
