#!/usr/bin/env bash
# All checks that need a GPU, in one command of at most ten minutes: builds the kernels for the
# installed card, compares them and the ops with float64, runs them under compute-sanitizer, and
# measures them: large layers whose weights are not in the L2 (cold/, in TF32 tf32/), the convolutions of
# ResNet-50 over cuDNN (convolutions/), whole networks in ONNX Runtime (networks/), four layers of a
# decoder (decoder/), and small layers. All but the last also take kernels that have not run on a GPU yet.
#
#   tools/gpu_check.sh               results in docs/results/gpu-<card>/, the log beside them
#   OUT=FOLDER tools/gpu_check.sh    in FOLDER/gpu-<card>/ instead
#   SITE=FOLDER tools/gpu_check.sh   takes fanin from FOLDER (pip install --target), builds nothing
#   tools/gpu_check.sh --dry-run     the same steps without a GPU: through the emulation, on the CPU
#
# Needs a Python (PYTHON, default python3) with torch for CUDA, onnx, matplotlib, pytest, typer and
# ml_dtypes; to build also nvcc, cmake, ninja, a C++ compiler, scikit-build-core and pybind11. The ops
# are checked if onnxruntime has its CUDA provider. Downloads nothing. Stops after LIMIT seconds
# (default 590) and keeps the measurements made until then.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
python=${PYTHON:-python3}
limit=${LIMIT:-590}
dry=
if [ "${1:-}" = --dry-run ]; then dry=1; fi

card=dry-run
if [ -z "$dry" ]; then
  card=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
  card=$(tr -cs '[:alnum:]\n' - <<< "${card#NVIDIA }" | tr '[:upper:]' '[:lower:]')
fi
parent=docs/results
if [ -n "$dry" ]; then parent=out; fi
out=${OUT:-$parent}/gpu-$card
mkdir -p "$out"
out=$(cd "$out" && pwd)
log=$out/check.log
: > "$log"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=

# step NAME SECONDS COMMAND...: runs a command for at most SECONDS or the remaining time
step() {
  local name=$1 most=$2 left=$((limit - SECONDS - 5)) status=0
  shift 2
  if [ "$left" -lt 1 ]; then
    echo "== $name: skipped, no time left" | tee -a "$log"
    failed=1
    return
  fi
  echo "== $name" | tee -a "$log"
  timeout "$((most < left ? most : left))" "$@" 2>&1 | tee -a "$log" || status=$?
  if [ "$status" -ne 0 ]; then failed=1; fi
  echo "== $name: status $status after $SECONDS s" | tee -a "$log"
}

{
  git rev-parse HEAD 2> /dev/null || echo "commit ${FANIN_COMMIT:-unknown}"
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,memory.total,power.limit \
    --format=csv 2>&1 || true
} | tee -a "$log"

site=${SITE:-}
if [ -z "$site" ] && { [ -z "$dry" ] || ! "$python" -c 'import fanin' 2> /dev/null; }; then
  site=$work/site
  options=(-C cmake.define.FANIN_CUDA=OFF -C cmake.define.FANIN_EMULATION=ON)
  if [ -z "$dry" ]; then
    architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    options=(-C cmake.define.FANIN_CUDA=ON
      -C "cmake.define.CMAKE_CUDA_ARCHITECTURES=$architecture-real")
  fi
  export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
  step build 170 "$python" -m pip install --quiet --no-index --no-deps --no-build-isolation \
    --disable-pip-version-check --target "$site" -C "build-dir=$work/build" "${options[@]}" .
  if [ -n "$failed" ]; then exit 1; fi
fi
if [ -n "$site" ]; then export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}; fi
# ONNX Runtime loads CUDA's libraries by name; NVIDIA's wheels contain them.
libraries=$("$python" -c 'import nvidia, pathlib
print(*{str(file.parent) for root in nvidia.__path__
        for file in pathlib.Path(root).glob("**/lib/*.so*")}, sep=":")' 2> /dev/null || true)
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

tests=("$python" -m pytest -p no:cacheprovider)
kernels=tests/ort_ops/test_cuda_device.py
if [ -n "$dry" ]; then
  step kernels 200 "${tests[@]}" "$kernels" -k emulated
  step ops 120 "${tests[@]}" tests/ort_ops/test_op_cuda_device.py -k cpu
  step cold 120 env FANIN_CUDA_UNPROVEN=on "$python" -m fanin bench cuda --emulated --launch ring \
    --shapes 640x64 --sparsity 0.9 --batch 1,4,8 --values bfloat16 --activations bfloat16 --rounds 2 \
    --no-convolutions --out "$out/cold"
  step networks 120 env FANIN_CUDA_UNPROVEN=on "$python" tools/gpu_networks.py --emulated \
    --networks mlp-tiny,decoder-tiny --batches 2 --rounds 2 --out "$out/networks"
  step convolutions 120 "$python" tools/gpu_convolutions.py --emulated --shrink 32 --batches 1 \
    --rounds 2 --out "$out/convolutions"
  step tf32 60 env FANIN_CUDA_UNPROVEN=on "$python" -m fanin bench cuda --emulated --launch ring \
    --shapes 640x64 --sparsity 0.9 --batch 8 --activations float32 --rounds 2 --no-convolutions \
    --out "$out/tf32"
  step bench 120 "$python" -m fanin bench cuda --emulated --shapes 64x40 --sparsity 0.9 \
    --batch 1,20,64 --rounds 2 --no-convolutions --out "$out"
else
  export FANIN_REQUIRE_GPU=1  # without a GPU, tests fail instead of being skipped
  # A faulty kernel costs its process the device, so those that have not run on a GPU yet have their own.
  step kernels 55 "${tests[@]}" "$kernels" -k 'not emulated and not expand and not delta'
  for layout in expand delta; do
    step "$layout" 50 "${tests[@]}" "$kernels" -k "not emulated and $layout"
  done
  for tool in memcheck racecheck; do
    step "$tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 \
      "${tests[@]}" "$kernels" -k 'small and not emulated'
  done
  step ops 50 "${tests[@]}" tests/ort_ops/test_op_cuda_device.py -k 'not cpu'
  # The layers and targets of docs/cuda.md, the sparsity that matters more first.
  step cold 90 env FANIN_CUDA_UNPROVEN=on "$python" -m fanin bench cuda --launch ring \
    --shapes 4096x14336,14336x4096,4096x4096,8192x28672 --sparsity 0.9,0.8 \
    --batch 1,4,8,16,32,64,128 --values bfloat16 --activations bfloat16 --no-convolutions \
    --time 75 --out "$out/cold"
  step tf32 40 env FANIN_CUDA_UNPROVEN=on "$python" -m fanin bench cuda --launch ring \
    --shapes 4096x14336,14336x4096 --sparsity 0.9 --batch 8,32,64 --activations float32 \
    --no-convolutions --time 28 --out "$out/tf32"
  step convolutions 65 "$python" tools/gpu_convolutions.py --time 50 --out "$out/convolutions"
  step networks 90 env FANIN_CUDA_UNPROVEN=on "$python" tools/gpu_networks.py --time 60 \
    --out "$out/networks"
  # Of the other networks, a token takes too little to show what it reads.
  step decoder 180 "$python" tools/gpu_networks.py --networks decoder --batches 1 \
    --precisions float16 --out "$out/decoder"
  step bench 600 "$python" -m fanin bench cuda --time "$((limit - SECONDS - 25))" --out "$out"
fi
if grep -qE '(^|: )(condensed|kernel-[a-z]+|session-condensed|all-condensed) is excluded' "$log"; then failed=1; fi
if [ -n "$failed" ]; then
  echo "FAILED; see $log"
  exit 1
fi
echo "written to $out"
