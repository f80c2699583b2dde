"""An installation without the compiled binding: the wheel for any Python."""

import subprocess
import sys

WITHOUT_BINDING = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "fanin.ort_ops._native":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_BINDING + code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_whatever_needs_the_binding_says_what_to_do():
    code = """
from fanin import ort_ops
for call in (ort_ops.kernel_table, ort_ops.conv_kernel_table, ort_ops.cuda_status):
    try:
        call()
    except ort_ops.MissingBindingError as error:
        print(error)
"""
    said = run(code)
    assert len(said) == 3
    version = "{}.{}".format(*sys.version_info)
    for line in said:
        assert f"no binding for CPython {version}" in line
        assert "pip install" in line


def test_models_run_and_the_doctor_names_what_it_did_not_check():
    code = """
from fanin.deploy.doctor import run_checks
for check in run_checks():
    print(check.ok, check.detail.startswith("not checked: "), check.name)
"""
    results = {
        name: (ok, skipped) for ok, skipped, name in (line.split(" ", 2) for line in run(code))
    }
    assert results["ops in a session"] == ("True", "False")
    assert results["kernels"] == ("True", "True")
    assert {ok for ok, _ in results.values()} == {"True"}
