#!/usr/bin/env bash
# Builds the ONNX Runtime and MXNet images with buildah, on a base from Debian's packages, and tests what they promise.
# Runs as root and needs buildah and debootstrap, but no engine and no registry. `make image-test` runs it.
#   KEEP_BASE=DIR  keeps the file system of the base in DIR
#   BASE=DIR       uses one that was kept
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
IMAGES=(onnxruntime mxnet)
UID_GID=1000:1000
ADDRESS=127.0.0.1:50981
RIGHT="(447 of 450 inputs)"

die() { echo "image-test: $*" >&2; exit 1; }
say() { printf '\n== %s\n' "$*"; }

[ "$(id -u)" = 0 ] || die "needs root, to make file systems and to run as another user"
for command in buildah debootstrap; do
  command -v "$command" > /dev/null ||
    die "$command is not installed; install it with: apt-get install --no-install-recommends buildah debootstrap crun"
done

WORK="$(mktemp -d)"
served="" serving=""
b() { buildah --storage-driver vfs --root "$WORK/storage" --runroot "$WORK/run" "$@"; }
clean_up() {
  stop_served 2> /dev/null || true
  b umount --all > /dev/null 2>&1 || true
  b rm --all > /dev/null 2>&1 || true
  rm -rf "$WORK"
}
trap clean_up EXIT

make_base() { # makes the file system of the base image in $1: Debian with Python and pip, as the official image has them
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$1" > "$WORK/debootstrap.log" ||
    { tail -20 "$WORK/debootstrap.log" >&2; die "debootstrap failed"; }
  rm "$1"/usr/lib/python3.*/EXTERNALLY-MANAGED
  ln -sf python3 "$1/usr/bin/python"
  use_the_network_of_this_machine "$1"
  chroot "$1" sh -c 'python -m venv /tmp/pip && /tmp/pip/bin/pip --python /usr/bin/python install --quiet \
    --root-user-action=ignore pip setuptools wheel && rm -r /tmp/pip'
}

use_the_network_of_this_machine() { # copies resolver, certificates and pip's configuration into the base in $1
  cp /etc/resolv.conf "$1/etc/resolv.conf"
  [ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"
  local configuration="${PIP_CONFIG_FILE:-/etc/pip.conf}"
  [ ! -e "$configuration" ] || cp "$configuration" "$1/etc/pip.conf"
}

commit_base() { # makes localhost/python of the file system in $1
  local container
  container="$(b from scratch)"
  cp -a "$1/." "$(b mount "$container")"
  b umount "$container" > /dev/null
  b config --env PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin "$container"
  b commit --quiet --rm "$container" localhost/python > /dev/null
}

inside() { # runs a command in the container $1 as the image's user
  local container="$1"
  shift
  b run --isolation chroot --user "$UID_GID" "$container" -- "$@"
}

refused() { # fails when a command in the container $1 succeeds
  ! inside "$@" > /dev/null 2>&1 || die "${*:2}: succeeds in the image"
}

evaluated() { # evaluates DigitsCNN in the container $1 and compares what is right with what is known
  local printed
  printed="$(inside "$1" agent predict dataset --model_name=DigitsCNN "${@:2}")" || die "the evaluation failed"
  echo "$printed"
  grep --quiet --fixed-strings "$RIGHT" <<< "$printed" || die "the evaluation does not say $RIGHT"
}

check_promises() { # the container $1 of the image $2: an ordinary user, no tools to install or to build with, a health check
  local container="$1" command
  [ "$(inside "$container" id -u):$(inside "$container" id -g)" = "$UID_GID" ] || die "does not run as $UID_GID"
  [ "$(b inspect --type image --format '{{.Docker.Config.User}}' "$2")" = "$UID_GID" ] || die "has another user"
  [ "$(b inspect --type image --format '{{index .Docker.Config.Labels "org.opencontainers.image.revision"}}' "$2")" = \
    "$REVISION" ] || die "does not name its revision"
  b inspect --type image --format '{{.Docker.Config.Healthcheck.Test}}' "$2" | grep -q "agent status" ||
    die "has no health check"
  for command in pip pip3 gcc cc g++ make ld git curl wget sudo; do
    refused "$container" sh -c "command -v $command"
  done
  for command in pip setuptools; do
    refused "$container" python -c "import $command"
  done
  refused "$container" touch /opt/inferometer/written
  refused "$container" sh -c ': > /etc/passwd'
  refused "$container" agent serve --host 0.0.0.0 # without TLS and a secret
  inside "$container" sh -c 'test -w /data && agent --version'
}

stop_served() { # chroot isolation shares the process ids with this machine
  [ -z "$served" ] || kill -TERM "$(cat "$(b mount "$serving")/home/agent/pid")"
}

healthy() { # waits until the agent of the container $1 passes the health check of the image
  local deadline=$((SECONDS + 60))
  until inside "$1" agent status "$ADDRESS" 2> "$WORK/status.log"; do
    [ "$SECONDS" -lt "$deadline" ] ||
      die "the served agent is not healthy after 60 s: $(tail -5 "$WORK/status.log" "$WORK/serve.log")"
    kill -0 "$served" 2> /dev/null || die "the served agent has ended: $(cat "$WORK/serve.log")"
    sleep 0.5
  done
}

serve_and_evaluate() { # serves from the container $1 and evaluates from $2
  local container folder
  head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$WORK/secret"
  for container in "$1" "$2"; do
    folder="$(b mount "$container")"
    install --mode=400 --owner=1000 --group=1000 "$WORK/secret" "$folder/home/agent/secret"
    b config --env AGENT_SECRET_FILE=/home/agent/secret "$container"
  done
  serving="$1"
  # the command of the image, but for TLS and its port
  inside "$1" sh -c "echo \$\$ > ~agent/pid; exec agent serve --host 0.0.0.0 --insecure --port ${ADDRESS#*:}" \
    > "$WORK/serve.log" 2>&1 &
  served=$!
  healthy "$1"
  evaluated "$2" --agent="$ADDRESS" --framework_name=ONNXRuntime
  stop_served
  wait "$served" || die "the served agent ended with $?: $(cat "$WORK/serve.log")"
  served=""
}

REVISION="$(git rev-parse HEAD 2> /dev/null || echo unknown)"
if [ -n "${BASE:-}" ]; then
  say "base from $BASE"
else
  BASE="${KEEP_BASE:-$WORK/base}"
  say "base from Debian's packages"
  make_base "$BASE"
fi
commit_base "$BASE"

declare -A containers
for name in "${IMAGES[@]}"; do
  image="localhost/inferometer/$name:test"
  say "build docker/$name-cpu.Dockerfile"
  b bud --quiet --format docker --isolation chroot --network host --pull-never --build-arg PYTHON_IMAGE=localhost/python \
    --build-arg "REVISION=$REVISION" --file "docker/$name-cpu.Dockerfile" --tag "$image" . > "$WORK/$name.log" 2>&1 ||
    { tail -40 "$WORK/$name.log" >&2; die "docker/$name-cpu.Dockerfile cannot be built"; }
  containers[$name]="$(b from --pull-never "$image")"
  say "$name: no root, no compiler, no pip"
  check_promises "${containers[$name]}" "$image"
  say "$name: evaluate DigitsCNN as $UID_GID"
  evaluated "${containers[$name]}"
done
say "serve from ${IMAGES[0]}, evaluate from ${IMAGES[1]}"
serve_and_evaluate "${containers[${IMAGES[0]}]}" "${containers[${IMAGES[1]}]}"
say "all promises hold"
