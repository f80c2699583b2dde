#!/usr/bin/env bash
# Runs a Python program under an Arm64 Python with NumPy and ONNX Runtime, on an emulated CPU:
#   tools/aarch64_ort.sh PROGRAM.py [ARGUMENTS]
#
# The first run creates the environment in .cache/aarch64-ort: Debian's Python and libraries for
# arm64, unpacked into a folder, and wheels from the package index. Needs no root, but qemu-user,
# pip and a Debian-based system whose python3 is PYTHON_VERSION.
#   ORT_VERSION     default 1.23.2; 1.28 and later crash at import under qemu 7.2
#   PYTHON_VERSION  default 3.11
#   QEMU_CPU        default cortex-a72
set -euo pipefail

ort=${ORT_VERSION:-1.23.2}
python=${PYTHON_VERSION:-3.11}
cpu=${QEMU_CPU:-cortex-a72}
home=$(cd "$(dirname "$0")/.." && pwd)/.cache/aarch64-ort
root=$home/python$python
site=$home/python$python-onnxruntime$ort

for tool in qemu-aarch64 apt-get dpkg-deb python3; do
  command -v "$tool" > /dev/null || { echo "$tool is not installed" >&2; exit 2; }
done

# Each folder gets its final name only when it is complete.
if [ ! -d "$root" ]; then
  rm -rf "$home/apt" "$home/debs" "$root.part"
  mkdir -p "$home/apt/lists/partial" "$home/apt/cache/archives/partial" "$home/debs"
  # apt with separate lists and cache, and without the system's installed packages.
  apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64
    -o Dir::State::lists="$home/apt/lists" -o Dir::Cache="$home/apt/cache"
    -o Dir::State::status=/dev/null -o APT::Sandbox::User="$(id -un)")
  "${apt[@]}" update
  (cd "$home/debs" && "${apt[@]}" download "python$python-minimal" "libpython$python-minimal" \
    "libpython$python-stdlib" libc6 libgcc-s1 libstdc++6 libexpat1 zlib1g libbz2-1.0 liblzma5 \
    libffi8 libssl3)
  for deb in "$home"/debs/*.deb; do dpkg-deb -x "$deb" "$root.part"; done
  mv "$root.part" "$root"
fi
if [ ! -d "$site" ]; then
  rm -rf "$home/wheels" "$site.part"
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$home/wheels" \
    --python-version "$python" --platform manylinux_2_28_aarch64 \
    --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 \
    --platform manylinux2014_aarch64 numpy "onnxruntime==$ort"
  for wheel in "$home"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$site.part"; done
  mv "$site.part" "$site"
fi

exec env -u LD_PRELOAD qemu-aarch64 -cpu "$cpu" -L "$root" \
  -E LD_LIBRARY_PATH="$root/lib/aarch64-linux-gnu:$root/usr/lib/aarch64-linux-gnu" \
  -E PYTHONHOME="$root/usr" -E PYTHONPATH="$site" -E PYTHONDONTWRITEBYTECODE=1 \
  "$root/usr/bin/python$python" "$@"
