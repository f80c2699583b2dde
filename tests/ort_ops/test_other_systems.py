"""Windows and macOS, for which zig compiles. Wine runs the Windows programs; nothing runs those of
macOS here."""

import os
import subprocess
import sys
import zipfile

import numpy as np
import onnxruntime
import pytest

from fanin import ort_ops
from fanin.export.onnx_op import condensed_layer_model
from fanin.ort_ops.format.condensed import CondensedWeight

from ._cross_builds import ROOT, Report, build, program, run, zig_options

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

TARGETS = ["fanin_ort_ops", "kernel_check", "fanin_concurrency_test"]
SOURCES = ROOT / "examples" / "languages"


@pytest.fixture(scope="module")
def windows():
    return build("windows", TARGETS, *zig_options("x86_64-windows-gnu"))


@pytest.fixture(scope="module")
def wine(tmp_path_factory):
    """Runs a Windows program and returns its output, as bytes."""
    program("wine")
    folder = tmp_path_factory.mktemp("wine")

    def wine(*command, stdin=b""):
        environment = os.environ | {"WINEPREFIX": str(folder), "WINEDEBUG": "-all"}
        environment.pop("FANIN_ISA", None)
        done = subprocess.run(
            ["wine", *map(str, command)], input=stdin, capture_output=True, env=environment
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    wine("cmd", "/c", "ver")  # sets the folder up
    return wine


def test_the_windows_library_exports_one_symbol(windows):
    listing = run(program("objdump"), "--private-headers", windows / "fanin_ort_ops.dll").stdout
    names = listing.split("[Ordinal/Name Pointer] Table")[1].split("\n\n")[0].splitlines()[1:]
    assert [line.split()[-1] for line in names] == ["RegisterCustomOps"]


def test_windows_runs_every_kernel_of_this_cpu(windows, wine):
    text = wine(windows / "kernel_check.exe", windows / "fanin_ort_ops.dll").decode()
    report = Report(text.replace("\r", ""))
    assert report.supported == list(ort_ops._native.supported_isas())
    assert "f32-gemm-rows-scalar" in report.right
    assert report.right | report.absent >= {row.name for row in ort_ops.kernel_table()}


def test_windows_shares_packed_layers_between_threads(windows, wine):
    wine(windows / "fanin_concurrency_test.exe")


def test_onnxruntime_on_windows_runs_the_library(windows, wine, tmp_path):
    runtime = windows_runtime(tmp_path)
    zig = pytest.importorskip("ziglang").__path__[0] + "/zig"
    app = tmp_path / "app.exe"
    sources = [SOURCES / "c" / "main.c", SOURCES / "model.c"]
    options = ["-target", "x86_64-windows-gnu", "-std=c11", "-O2", "-Wall", "-Werror"]
    done = run(zig, "cc", *options, f"-I{SOURCES}", *sources, "-o", app)
    assert done.returncode == 0, done.stdout

    rng = np.random.default_rng(0)
    dense = rng.standard_normal((96, 300)).astype(np.float32)
    dense[np.argsort(rng.random(dense.shape), axis=1) >= 30] = 0
    x = rng.standard_normal((3, 300)).astype(np.float32)
    model = tmp_path / "model.onnx"
    condensed = condensed_layer_model(CondensedWeight.from_dense(dense), None)
    model.write_bytes(condensed.SerializeToString())
    arguments = [windows_path(p) for p in (runtime, windows / "fanin_ort_ops.dll", model)]
    printed = wine(app, *arguments, "3,300", "2", stdin=x.tobytes())
    y = np.array(printed.split(), np.float64).reshape(3, 96)
    np.testing.assert_allclose(y, x.astype(np.float64) @ dense.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cpu", ["aarch64", "x86_64"])
def test_the_sources_compile_and_link_for_macos(cpu):
    folder = build(f"macos-{cpu}", TARGETS, *zig_options(f"{cpu}-macos"))
    library = (folder / "libfanin_ort_ops.dylib").read_bytes()
    assert library[:4] == bytes.fromhex("cffaedfe")  # Mach-O of 64 bits
    assert b"_RegisterCustomOps" in library


def windows_path(path):
    """As Wine shows this system's files."""
    return "Z:" + str(path).replace("/", "\\")


def windows_runtime(folder):
    """Fetch the Windows wheel of the installed onnxruntime; returns the path of its library."""
    wanted = f"onnxruntime=={onnxruntime.__version__}"
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.12"]
    pip = [sys.executable, "-m", "pip", "download", *options, "--platform", "win_amd64"]
    done = run(*pip, "--dest", folder, wanted)
    if done.returncode:
        pytest.skip(f"{wanted} cannot be fetched for Windows: {done.stdout[-200:]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.extract("onnxruntime/capi/onnxruntime.dll", folder)
