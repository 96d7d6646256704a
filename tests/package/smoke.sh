#!/usr/bin/env bash
# The package as users get it: built as sdist and, from that, as wheel; installed into an empty environment, first
# without torch (how large, and does it grade?), then with it (does the quickstart go through?).
# Usage: tests/package/smoke.sh [PYTHON with build and hatchling]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(realpath -s "${1:-.venv/bin/python}")
repository=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
limit=450 # megabytes

report() { echo "package: $1, $SECONDS s"; SECONDS=0; }
install() { "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$repository/constraints.txt" "$@"; }

SECONDS=0
"$python" -m build --no-isolation --outdir "$work/dist" . >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
wheel=$(ls "$work"/dist/*.whl)
report "built $(basename "$wheel") of $(du -k "$wheel" | cut -f1) kB"

"$python" -m venv "$work/venv"
before=$(du -sm "$work/venv" | cut -f1)
install "$wheel"
size=$(($(du -sm "$work/venv" | cut -f1) - before))
report "installed without torch, $size MB"
if ((size > limit)); then echo "package: more than $limit MB" >&2; exit 1; fi

cd "$work"
patchwright=$work/venv/bin/patchwright
"$patchwright" --version
"$patchwright" tasks synth composed tasks -s sft=2 -s rl=0 -s held_out=0 -s harder=0
"$patchwright" grade gold --tasks tasks/sft.jsonl
"$patchwright" train rl --preset swe-rl-8b-2n --dry-run >plan.txt
grep -q "Qwen/Qwen3-8B" plan.txt
report "graded without torch"

install "$wheel[local]"
report "installed torch"
"$patchwright" quickstart --config "$repository/tests/e2e/tiny.toml"
grep -q '"rl"' runs/quickstart/summary.json
report "went through the quickstart"
