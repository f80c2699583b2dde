"""Builds of the native code for other CPUs and systems, and what their kernel_check reports."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "cmake": "cmake",
    "qemu-aarch64": "qemu-user",
    "qemu-x86_64": "qemu-user",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "objdump": "binutils",
    "wine": "wine wine64",
}


def program(name):
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (apt package {PACKAGES[name]})")
    return path


def run(*command, **environment):
    # Variables for this process only: a sanitizer's library, a forced instruction set.
    inherited = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "FANIN_ISA")}
    return subprocess.run(
        [str(part) for part in command],
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def build(name, targets, *options):
    """The folder of a build; it is kept, so that only changes are compiled again."""
    folder = ROOT / "build" / "other_cpus" / name
    options = ["-DFANIN_PYTHON=OFF", "-DFANIN_TESTS=ON", *options]
    done = run(program("cmake"), "-S", ROOT, "-B", folder, *options)
    assert done.returncode == 0, done.stdout
    done = run("cmake", "--build", folder, "--parallel", "2", "--target", *targets)
    assert done.returncode == 0, done.stdout[-5000:]
    return folder / "ort_ops" / "csrc"


def zig_options(toolchain):
    """Of a build by zig, whose compiler and headers for other systems lie in a Python package."""
    zig = pytest.importorskip("ziglang", reason="needs zig: pip install ziglang")
    file = ROOT / "cmake" / f"{toolchain}.cmake"
    compiler = f"{zig.__path__[0]}/zig"
    return [f"-DCMAKE_TOOLCHAIN_FILE={file}", f"-DFANIN_ZIG={compiler}", "-DFANIN_CUDA=OFF"]


class Report:
    """The parsed output of kernel_check."""

    def __init__(self, text):
        lines = [line.split() for line in text.splitlines()]
        self.supported = next(line[1:] for line in lines if line[:1] == ["supported"])
        self.selected = next(line[1] for line in lines if line[:1] == ["selected"])
        self.right = {line[1] for line in lines if line[:1] == ["right"]}
        self.absent = {line[1] for line in lines if line[:1] == ["absent"]}
        # choice ISA VALUES batch N: KERNEL
        self.choices = {
            (line[1], line[2], int(line[4].rstrip(":"))): line[5]
            for line in lines
            if line[:1] == ["choice"]
        }


def check(*command, **environment):
    done = run(*command, **environment)
    assert done.returncode == 0, done.stdout
    return Report(done.stdout)
