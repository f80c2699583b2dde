#!/usr/bin/env bash
# Everything that needs a GPU, in one command of at most six minutes: builds the kernels for the card
# that is there, checks them against float64, under compute-sanitizer, and measures them.
#
#   tools/gpu_check.sh            writes docs/results/gpu-<card>.json and .md
#   OUT=FOLDER tools/gpu_check.sh writes there instead
#   tools/gpu_check.sh --dry-run  without a GPU: builds, runs the emulation and the report's code
#
# Needs nvcc, cmake, ninja, a C++ compiler, and a Python (PYTHON, default python3) with torch for CUDA,
# numpy and pybind11. Downloads nothing. Stops at the time limit (LIMIT seconds, default 345) and
# keeps what was measured until then.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
exec "${PYTHON:-python3}" -u "$root/tools/gpu_check.py" "$@"
