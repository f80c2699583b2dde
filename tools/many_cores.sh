#!/usr/bin/env bash
# What all cores of this machine give, in one command of at most four minutes: the cost of a dispatch,
# and a layer and whole networks, dense and condensed, on 1, 2, 4 ... threads and on all CPUs, with what
# the plans promise for 8 to 64 threads beside that.
#
#   tools/many_cores.sh               results in docs/results/threads-<CPUs>/, the log beside them
#   OUT=FOLDER tools/many_cores.sh    in FOLDER/threads-<CPUs>/ instead
#   SITE=FOLDER tools/many_cores.sh   takes fanin from FOLDER (pip install --target)
#   NETWORKS="mlp" tools/many_cores.sh    other networks than mlp, resnet-50 and vit-b-16
#
# Needs a Python (PYTHON, default .venv/bin/python, else python3) with fanin[bench]. Networks come from
# FILES (default .cache/bench-models); those that are not there are exported first, which needs
# fanin[train] and takes its own time. Ends at LIMIT seconds (default 235) of measuring and keeps what
# was measured until then. Nothing else should run meanwhile.
set -euo pipefail

cd "$(dirname "$0")/.."
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
limit=${LIMIT:-235}
files=${FILES:-.cache/bench-models}
networks=${NETWORKS:-mlp resnet-50 vit-b-16}
if [ -n "${SITE:-}" ]; then export PYTHONPATH=$SITE${PYTHONPATH:+:$PYTHONPATH}; fi

cpus=$("$python" -c 'from fanin.deploy.cpus import default_threads as n; print(n())')
out=${OUT:-docs/results}/threads-$cpus
mkdir -p "$out" "$files"
log=$out/check.log
: > "$log"
export FANIN_CALIBRATION=$PWD/$out/calibration.json
case $out in /*) export FANIN_CALIBRATION=$out/calibration.json ;; esac
failed=

for name in $networks; do
  if [ ! -e "$files/$name-90-0.onnx" ]; then
    "$python" -c 'import pathlib, sys
from fanin.deploy.bench.suites.zoo_models import export_zoo_model
export_zoo_model(sys.argv[1], pathlib.Path(sys.argv[2]), 0.9, 0.0, 1)' "$name" "$files" &
  fi
done
wait
SECONDS=0

# step NAME SECONDS COMMAND...: within what is left of the time
step() {
  local name=$1 most=$2 left=$((limit - SECONDS)) status=0
  shift 2
  if [ "$left" -lt 5 ]; then
    echo "== $name: left out, no time left" | tee -a "$log"
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
  lscpu 2> /dev/null | grep -E '^(Model name|CPU\(s\)|Thread|Core|Socket|NUMA|L[123])' || true
  uptime
} | tee -a "$log"

step dispatch 60 "$python" -m fanin calibrate --of dispatch
step layer 110 "$python" -m fanin bench scaling --of threads --rounds 9 --out "$out/layer"
for name in $networks; do
  step "$name" 90 "$python" -m fanin bench scaling --of networks --models "$name" --reuse \
    --files "$files" --out "$out/$name"
done
if [ -n "$failed" ]; then
  echo "some steps failed or were left out: see $log" | tee -a "$log"
  exit 1
fi
