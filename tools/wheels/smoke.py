"""What must work wherever a wheel is installed; run by check.py with the Python of an environment.

    python smoke.py MODEL EXPECTED.npz [bench | kernels-only]

Needs fanin, NumPy and onnxruntime; with "bench" also what `fanin bench layer` needs, with
"kernels-only" no onnxruntime.
"""

import platform
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import fanin
from fanin import ort_ops
from fanin.deploy import open_session
from fanin.deploy.doctor import run_checks
from fanin.ort_ops.format.condensed import CondensedWeight

# Checks of the doctor that pass without onnxruntime.
KERNEL_CHECKS = {"instruction sets", "kernels", "convolutions", "8-bit kernels"}
THREADS = 8


def main() -> None:
    """Run everything; an exception is a failure."""
    model, expected, *more = sys.argv[1:]
    here = f"{platform.python_implementation()} {platform.python_version()}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        here += " free-threaded"
    libc = " ".join(platform.libc_ver()) or sysconfig.get_config_var("MULTIARCH")
    print(f"fanin {fanin.__version__}, {here}, {platform.machine()}, {libc}")
    # First of all, as others may switch the lock on.
    bound = run_binding()
    run_doctor(KERNEL_CHECKS if more == ["kernels-only"] else None)
    if more != ["kernels-only"]:
        run_model(model, expected)
    if more == ["bench"] and bound:
        run_bench()


def run_binding() -> bool:
    """Pack and run layers in threads at the same time, against float64; False without a binding."""
    try:
        print(f"binding: {len(ort_ops.kernel_table())} rows in the kernel table")
    except ort_ops.MissingBindingError as error:
        print(f"binding: {error}")
        return False
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert not sys._is_gil_enabled(), "the binding switches the global lock on"
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((200, 400)) * (rng.random((200, 400)) < 0.1)
    weight = CondensedWeight.from_dense(dense.astype(np.float32))
    x = rng.standard_normal((5, 400)).astype(np.float32)
    right = x.astype(np.float64) @ dense.astype(np.float32).astype(np.float64).T
    kernels = [row.name for row in ort_ops.kernel_table() if row.supported]

    def run(number: int) -> None:
        kernel = kernels[number % len(kernels)]
        (row,) = (row for row in ort_ops.kernel_table() if row.name == kernel)
        if row.weights != "float32" or row.compute != "float32":
            return
        packed = ort_ops._native.PackedGemm(
            values=weight.values, indices=weight.indices, rows=weight.rows, bias=weight.bias,
            in_features=400, out_features=200, kernel=kernel, threads=2,
        )  # fmt: skip
        np.testing.assert_allclose(packed.run(x, threads=2), right, rtol=1e-5, atol=1e-5)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(run, range(20 * len(kernels))))
    print(f"binding: packs and runs in {THREADS} threads as float64 does")
    return True


def run_doctor(only: set[str] | None) -> None:
    """Run its checks; without onnxruntime, some of them."""
    checks = [check for check in run_checks() if only is None or check.name in only]
    assert checks, "the doctor has no such checks"
    for check in checks:
        print("ok    " if check.ok else "FAILED", check.name, "-", check.detail[:100])
    failed = [check.name for check in checks if not check.ok]
    assert not failed, failed


def run_model(model: str, expected: str) -> None:
    """Run a model in a session, against float64."""
    arrays = np.load(expected)
    session = open_session(model, threads=1)
    (got,) = session.run(None, {session.get_inputs()[0].name: arrays["x"]})
    np.testing.assert_allclose(got, arrays["y"], rtol=1e-5, atol=1e-5)
    print(f"model: {got.shape}, as the float64 reference, through {ort_ops.get_library_path()}")


def run_bench() -> None:
    """Run `fanin bench layer` on a small layer."""
    options = ["--in-features", "512", "--out-features", "256", "--sparsity", "0.9"]
    with tempfile.TemporaryDirectory() as folder:
        options += ["--rounds", "2", "--out", folder]
        command = [sys.executable, "-m", "fanin", "bench", "layer", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (Path(folder) / "results.json").is_file()
    print("bench layer: writes its results")


main()
