"""Other CPUs, emulated by qemu-user: each runs its own kernels, with correct results.

kernel_check (ort_ops/csrc/tests) compares every kernel that a CPU supports with float64.
"""

import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fanin import ort_ops
from fanin.export.onnx_op import condensed_layer_model
from fanin.ort_ops.format.condensed import CondensedWeight
from fanin.ort_ops.reference import condensed_gemm

from ._cross_builds import ROOT, build, check, program, run, zig_options

pytestmark = pytest.mark.emulated

ROWS = [
    *ort_ops.kernel_table(),
    *ort_ops.conv_kernel_table(),
    *ort_ops.quantized_kernel_table(),
    *ort_ops.quantized_conv_kernel_table(),
]


@pytest.fixture(scope="module")
def x86():
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        pytest.skip("this machine's compiler makes no x86-64 programs")
    return build("x86", ["kernel_check"])


@pytest.fixture(scope="module")
def arm():
    program("aarch64-linux-gnu-g++"), program("qemu-aarch64")
    toolchain = ROOT / "cmake" / "aarch64-linux-gnu.cmake"
    targets = ["kernel_check", "fanin_ort_ops"]
    return build("aarch64", targets, f"-DCMAKE_TOOLCHAIN_FILE={toolchain}")


def test_a_build_for_musl_runs_the_kernels_of_this_cpu():
    """By zig's clang, whose runtime knows no CPU features."""
    folder = build("musl", ["kernel_check"], *zig_options("x86_64-linux-musl"))
    report = check(folder / "kernel_check")
    assert report.supported == list(ort_ops._native.supported_isas())
    assert {"f32-gemm-rows-scalar", "f32-conv-taps-scalar"} < report.right


def sysroot():
    """The folder of the cross compiler's libc."""
    libc = run("aarch64-linux-gnu-g++", "-print-file-name=libc.so.6").stdout.strip()
    return Path(libc).resolve().parents[1]


def isas_of(kernels):
    return {kernel.rsplit("-", 1)[1] for kernel in kernels}


DOTPROD = {"i8-gemm-window64-dotprod", "i8-gemm-quads16-dotprod", "i8-conv-tiles-dotprod"}


@pytest.mark.parametrize(("cpu", "dotprod"), [("cortex-a72", set()), ("max", DOTPROD)])
def test_arm64_runs_every_neon_kernel(arm, cpu, dotprod):
    library = arm / "libfanin_ort_ops.so"
    report = check("qemu-aarch64", "-cpu", cpu, "-L", sysroot(), arm / "kernel_check", library)
    assert report.supported == ["scalar", "neon"] + ["dotprod"] * bool(dotprod)
    assert report.selected == report.supported[-1]
    assert report.absent == DOTPROD - dotprod
    assert report.right == dotprod | {
        "f32-gemm-window64-neon",
        "f32-f16w-gemm-window64-neon",
        "f32-bf16w-gemm-window64-neon",
        "f32-gemm-panel16-neon",
        "f32-gemm-rows-scalar",
        "f32-conv-depthwise4-neon",
        "f32-conv-panel16-neon",
        "f32-conv-direct-neon",
        "f32-conv-taps-scalar",
        "i8-gemm-window64-neon",
        "i8-gemm-panel16-neon",
        "i8-gemm-rows-scalar",
        "i8-conv-tiles-neon",
        "i8-conv-taps-scalar",
    }
    assert report.choices["neon", "float32", 1] == "f32-gemm-window64-neon"
    assert report.choices["neon", "float16", 1] == "f32-f16w-gemm-window64-neon"
    assert report.choices["neon", "bfloat16", 2] == "f32-bf16w-gemm-window64-neon"
    assert report.choices["neon", "float32", 64] == "f32-gemm-panel16-neon"


def test_arm64_library_exports_one_symbol_and_needs_the_c_and_cxx_runtimes_only(arm):
    library = arm / "libfanin_ort_ops.so"
    listing = run("aarch64-linux-gnu-nm", "-D", "--defined-only", library).stdout
    assert [line.split()[-1] for line in listing.splitlines()] == ["RegisterCustomOps"]
    dynamic = run("aarch64-linux-gnu-readelf", "-d", library).stdout
    needed = {
        line.split("[")[1].split(".so")[0] for line in dynamic.splitlines() if "NEEDED" in line
    }
    assert needed <= {"libstdc++", "libgcc_s", "libm", "libc", "ld-linux-aarch64"}


def test_every_kernel_of_this_cpu_is_correct(x86):
    report = check(x86 / "kernel_check")
    table = {row.name: row.supported for row in ROWS}
    assert report.right == {name for name, supported in table.items() if supported}
    assert report.absent == {name for name, supported in table.items() if not supported}


@pytest.mark.parametrize(
    ("cpu", "isas"), [("Nehalem", ["scalar"]), ("Haswell", ["scalar", "avx2"])]
)
def test_older_x86_runs_the_kernels_that_it_has(x86, cpu, isas):
    report = check(program("qemu-x86_64"), "-cpu", cpu, x86 / "kernel_check")
    assert report.supported == isas
    assert report.selected == isas[-1]
    assert isas_of(report.right) == set(isas)
    table = {row.isa for row in ROWS}
    assert isas_of(report.absent) == table - set(isas)
    assert isas_of(report.choices.values()) == set(isas)


def test_isa_that_an_older_cpu_lacks_is_refused_and_not_run(x86):
    done = run(program("qemu-x86_64"), "-cpu", "Nehalem", x86 / "kernel_check", FANIN_ISA="avx2")
    assert done.returncode == 1
    assert "FANIN_ISA 'avx2' is not supported by this CPU, which has scalar" in done.stdout


# ARRAYS: x, then y for the input type of each model that follows.
SESSION = """
import sys

import numpy as np
import onnxruntime

library, arrays, *models = sys.argv[1:]
arrays = np.load(arrays)
for model in models:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    half = session.get_inputs()[0].type == "tensor(float16)"
    for batch in (1, 2, 19):
        x = arrays["x"][:batch].astype(np.float16 if half else np.float32)
        (y,) = session.run(None, {"x": x})
        bound = 2e-3 if half else 1e-5
        np.testing.assert_allclose(y, arrays["y"][:batch], rtol=bound, atol=10 * bound)
print(len(models), "models are right under", onnxruntime.__version__)
"""


def session_arguments(folder, library):
    """Writes SESSION and its input files; returns its command line."""
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((90, 300)) * (rng.random((90, 300)) < 0.1)
    weight = CondensedWeight.from_dense(dense.astype(np.float16).astype(np.float32))
    half = replace(weight, values=weight.values.astype(np.float16))
    x = rng.standard_normal((19, 300)).astype(np.float16)
    # Reaches a few outputs of a condensed kernel, but, as NaN, all outputs of a dense layer.
    x[0, 7] = np.inf
    y = condensed_gemm(
        x,
        *(weight.values, weight.indices, weight.bias, weight.rows),
        in_features=300,
        out_features=90,
        clip_min=-1e3,
    )
    assert 0 < np.isinf(y).sum() < 30
    np.savez(folder / "arrays.npz", x=x, y=y)
    models = []
    for values, x_dtype in itertools.product((weight, half), ("float32", "float16")):
        model = condensed_layer_model(values, None, x_dtype=x_dtype, clip_min=-1e3)
        models.append(folder / f"{values.values.dtype}-{x_dtype}.onnx")
        models[-1].write_bytes(model.SerializeToString())
    (folder / "session.py").write_text(SESSION)
    return [folder / "session.py", library, folder / "arrays.npz", *models]


@pytest.mark.skipif(
    b"__asan_init" in ort_ops.get_library_path().read_bytes(), reason="built with a sanitizer"
)
@pytest.mark.parametrize("cpu", ["Nehalem", "Haswell"])
def test_onnxruntime_on_older_x86_runs_the_library(tmp_path, cpu):
    program_and_arguments = session_arguments(tmp_path, ort_ops.get_library_path())
    done = run(program("qemu-x86_64"), "-cpu", cpu, sys.executable, *program_and_arguments)
    assert done.returncode == 0, done.stdout
    assert "4 models are right" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["cortex-a72", "max"])
def test_onnxruntime_on_arm64_runs_the_library(arm, tmp_path, cpu):
    program("apt-get"), program("dpkg-deb")
    program_and_arguments = session_arguments(tmp_path, arm / "libfanin_ort_ops.so")
    done = run(ROOT / "tools" / "aarch64_ort.sh", *program_and_arguments, QEMU_CPU=cpu)
    assert done.returncode == 0, done.stdout
    assert "4 models are right" in done.stdout
