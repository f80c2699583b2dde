#!/usr/bin/env bash
# Runs the C++ concurrency test under ThreadSanitizer, then the tests of operators and kernels on a
# build with AddressSanitizer and UBSan.
#
# The second build is installed into a separate virtual environment, .cache/sanitize-venv, which
# uses the packages of the one that PYTHON belongs to (default: .venv/bin/python). Arguments are
# passed to pytest; with `--only-threads`, only the first part runs.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
python=${PYTHON:-$root/.venv/bin/python}
venv=$root/.cache/sanitize-venv
compiler=${CXX:-g++}

"$python" -m venv "$venv"
cmake=$(command -v cmake || true)
if [ -z "$cmake" ]; then
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check cmake
  cmake=$venv/bin/cmake
fi
if command -v ccache > /dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
"$cmake" -S . -B build/sanitize-thread -DCMAKE_BUILD_TYPE=RelWithDebInfo -DFANIN_PYTHON=OFF \
  -DFANIN_TESTS=ON -DFANIN_SANITIZE=thread -DCMAKE_CXX_COMPILER="$compiler" > /dev/null
"$cmake" --build build/sanitize-thread --parallel 2 --target fanin_concurrency_test
# ThreadSanitizer's fixed mappings conflict with the address randomization of some Linux kernels.
fixed=(setarch "$(uname -m)" -R)
"${fixed[@]}" true 2> /dev/null || fixed=()
TSAN_OPTIONS="second_deadlock_stack=1" \
  "${fixed[@]}" build/sanitize-thread/ort_ops/csrc/fanin_concurrency_test
if [ "${1:-}" = --only-threads ]; then exit 0; fi

site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$python" -c 'import sys; print(*(p for p in sys.path if p.endswith("site-packages")), sep="\n")' \
  > "$site/borrowed.pth"

isolation=()
if "$venv/bin/python" -c 'import pybind11, scikit_build_core' 2> /dev/null; then
  isolation=(--no-build-isolation)  # nothing to download
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
  --force-reinstall "${isolation[@]}" \
  --config-settings=build-dir=build/sanitize \
  --config-settings=cmake.build-type=RelWithDebInfo \
  --config-settings=cmake.define.FANIN_SANITIZE=address,undefined \
  --config-settings=cmake.define.FANIN_EMULATION=ON \
  .

# Python itself is not instrumented, so the ASan runtime must be preloaded; libstdc++ as well, or
# ASan finds no __cxa_throw to intercept. Python does not free everything at exit, so leaks are not
# checked (tests with "memory" in their name watch memory in the ordinary build instead).
preload="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so.6)"
exec env \
  LD_PRELOAD="$preload" \
  ASAN_OPTIONS="detect_leaks=0:strict_string_checks=1:detect_stack_use_after_return=1" \
  UBSAN_OPTIONS="print_stacktrace=1" \
  PYTHONMALLOC=malloc \
  "$venv/bin/python" -m pytest -m "not matrix and not lowest and not newest and not slow and not emulated" -k "not memory" \
  "${@:-tests/ort_ops}"
