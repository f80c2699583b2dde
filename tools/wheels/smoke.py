"""What must work wherever a wheel is installed; run by check.py with the Python of an environment.

    python smoke.py MODEL EXPECTED.npz [bench]

Needs fanin, NumPy and onnxruntime only; with "bench" also what `fanin bench layer` needs.
"""

import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import fanin
from fanin import ort_ops
from fanin.deploy import open_session
from fanin.deploy.doctor import run_checks


def main() -> None:
    """Run everything; an exception is a failure."""
    model, expected, *more = sys.argv[1:]
    here = f"{platform.python_implementation()} {platform.python_version()}"
    libc = " ".join(platform.libc_ver())
    print(f"fanin {fanin.__version__}, {here}, {platform.machine()}, {libc}")
    checks = run_checks()
    for check in checks:
        print("ok    " if check.ok else "FAILED", check.name, "-", check.detail[:100])
    failed = [check.name for check in checks if not check.ok]
    assert not failed, failed

    arrays = np.load(expected)
    session = open_session(model, threads=1)
    (got,) = session.run(None, {session.get_inputs()[0].name: arrays["x"]})
    np.testing.assert_allclose(got, arrays["y"], rtol=1e-5, atol=1e-5)
    print(f"model: {got.shape}, as the float64 reference, through {ort_ops.get_library_path()}")

    try:
        print(f"binding: {len(ort_ops.kernel_table())} rows in the kernel table")
        bound = True
    except ort_ops.MissingBindingError as error:
        print(f"binding: {error}")
        bound = False
    if more == ["bench"] and bound:
        options = ["--in-features", "512", "--out-features", "256", "--sparsity", "0.9"]
        with tempfile.TemporaryDirectory() as folder:
            options += ["--rounds", "2", "--out", folder]
            command = [sys.executable, "-m", "fanin", "bench", "layer", *options]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            assert (Path(folder) / "results.json").is_file()
        print("bench layer: writes its results")


main()
