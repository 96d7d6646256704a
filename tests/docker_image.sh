#!/usr/bin/env bash
# Makes ready what the Docker tests need: a running engine, and an image built without any registry.
# Does only what is missing, so it may be run again. `docker_image.sh name` prints the image's name;
# `docker_image.sh podman` makes Podman ready too: the same tests run against it with its socket in DOCKER_HOST.
set -euo pipefail
image="${PATCHWRIGHT_DOCKER_IMAGE:-patchwright-test:base}"
if [ "${1:-}" = name ]; then echo "$image"; exit; fi

socket="${DOCKER_HOST:-unix:///var/run/docker.sock}"
socket="${socket#unix://}"
log="${TMPDIR:-/tmp}/dockerd.log"
say() { echo "docker_image: $*"; }
fail() { say "$*" >&2; exit 1; }
api() { curl --silent --show-error --fail --unix-socket "$socket" "$@"; }
answers() { api http://docker/_ping >/dev/null 2>&1; }
has_image() { api "http://docker/images/$image/json" >/dev/null 2>&1; }

need() {  # program package
  command -v "$1" >/dev/null && return
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || fail "$1 is missing; install the package $2"
  say "installing $2"
  [ -n "${updated:-}" ] || apt-get update -qq
  updated=1
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$2" >/dev/null
}

start() {  # program arguments...
  say "starting $1, log in $log"
  setsid nohup "$@" >"$log" 2>&1 </dev/null &
  for _ in $(seq 120); do answers && return; sleep 0.5; done
  tail -5 "$log" >&2
  fail "$1 did not start; its log is $log"
}

podman_ready() {
  local docker="$socket"
  socket=/run/podman/podman.sock log="${TMPDIR:-/tmp}/podman.log"
  need podman podman
  mkdir -p "${socket%/*}"
  answers || start podman system service --time=0 "unix://$socket"
  has_image || curl --silent --fail --unix-socket "$docker" "http://docker/images/$image/get" |
    api --request POST --header 'Content-Type: application/x-tar' --upload-file - http://docker/images/load
  has_image || fail "Podman did not take the image $image"
  say "Podman answers at $socket"
}

finish() {
  [ "${1:-}" != podman ] || podman_ready
  exit
}

need curl curl
if answers; then
  say "Docker answers at $socket"
else
  need dockerd docker.io
  [ "$(id -u)" = 0 ] || fail "Docker does not answer at $socket; start it, or run this as root"
  start dockerd --host "unix://$socket"
fi

if has_image; then
  say "image $image is there"
  finish "$@"
fi
[ "$(id -u)" = 0 ] || fail "building $image needs root"
need debootstrap debootstrap
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
say "building image $image (about a minute)"
debootstrap --variant=minbase --include=python3,python3-pytest,git,ca-certificates bookworm "$folder" >"$folder.log" 2>&1 ||
  { tail -5 "$folder.log" >&2; fail "debootstrap failed; its log is $folder.log"; }
rm -rf "$folder"/var/cache/apt/* "$folder"/var/lib/apt/lists/*
tar -C "$folder" -c . | api --request POST --header 'Content-Type: application/x-tar' --upload-file - \
  "http://docker/images/create?fromSrc=-&repo=${image%:*}&tag=${image##*:}" | tail -1
has_image || fail "the image was not imported"
rm -f "$folder.log"
say "image $image is ready"
finish "$@"
