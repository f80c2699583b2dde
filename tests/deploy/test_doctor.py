"""The doctor: a working installation passes, and each defect is found with its remedy."""

import dataclasses
import os
import sys

import numpy as np
import onnxruntime
import pytest

from fanin import ort_ops
from fanin.deploy import doctor, doctor_cpus, doctor_probe
from fanin.deploy.doctor import Check, run_checks
from fanin.deploy.doctor_print import check_lines


def finding(name):
    found = {check.name: check for check in run_checks()}
    assert found["Python"].ok  # one failed check does not stop the others
    check = found[name]
    assert not check.ok
    assert check.remedy
    return check


def test_a_working_installation_passes_every_check(monkeypatch):
    monkeypatch.delenv("FANIN_ISA", raising=False)
    checks = run_checks()
    assert [check for check in checks if not check.ok] == []
    details = {check.name: check.detail for check in checks}
    assert onnxruntime.__version__ in details["ONNX Runtime"]
    assert details["op library"] == str(ort_ops.get_library_path())
    assert "CPUExecutionProvider" in details["execution providers"]
    assert "selected" in details["instruction sets"]
    assert f"{len(os.sched_getaffinity(0))} of" in details["CPUs and threads"]


def test_a_missing_onnxruntime(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "pip install onnxruntime" in finding("ONNX Runtime").remedy
    assert "not installed" in finding("ops in a session").detail


def test_an_old_onnxruntime(monkeypatch):
    monkeypatch.setattr(onnxruntime, "__version__", "1.16.3")
    assert "too old" in finding("ONNX Runtime").detail


def test_two_wheels_of_onnxruntime(monkeypatch):
    wheels = {"onnxruntime": "1.30.0", "onnxruntime-gpu": "1.30.0"}
    monkeypatch.setattr(doctor, "installed_distributions", lambda: wheels)
    assert "both installed" in finding("ONNX Runtime").detail


def test_a_missing_library(monkeypatch):
    def missing():
        raise FileNotFoundError("no libfanin_ort_ops.so")

    monkeypatch.setattr(ort_ops, "get_library_path", missing)
    assert "no libfanin_ort_ops.so" in finding("op library").detail
    assert "op library is missing" in finding("ops in a session").detail


def test_a_library_for_another_system(monkeypatch, tmp_path):
    (tmp_path / "lib.so").write_bytes(b"\x7fELF rubbish")
    monkeypatch.setattr(ort_ops, "get_library_path", lambda: tmp_path / "lib.so")
    assert "does not load" in finding("op library").detail
    assert not {check.name: check for check in run_checks()}["registration"].ok


def test_another_library_in_its_place(monkeypatch):
    monkeypatch.setattr(ort_ops, "get_library_path", lambda: "libm.so.6")
    assert "does not export RegisterCustomOps" in finding("op library").detail


@pytest.mark.parametrize("at", range(6))
def test_a_kernel_that_computes_something_else(monkeypatch, at):
    probes = list(doctor_probe.PROBES)
    right = probes[at].expected.tolist()
    probes[at] = dataclasses.replace(probes[at], expected=np.zeros_like(probes[at].expected))
    monkeypatch.setattr(doctor_probe, "PROBES", probes)
    check = finding("ops in a session")
    assert f"{probes[at].op} computes {right}, but" in check.detail
    assert "FANIN_ISA=scalar" in check.remedy


def test_an_isa_that_this_cpu_lacks(monkeypatch):
    monkeypatch.setenv("FANIN_ISA", "neon")
    check = finding("instruction sets")
    assert "neon" in check.detail
    assert "Unset FANIN_ISA" in check.remedy
    assert not {check.name: check for check in run_checks()}["ops in a session"].ok


def test_the_isa_in_force_and_who_asked_for_it(monkeypatch):
    monkeypatch.setenv("FANIN_ISA", "scalar")
    details = {check.name: check.detail for check in run_checks()}
    assert "selected: scalar (by FANIN_ISA=scalar)" in details["instruction sets"]


def test_a_wrong_kernel_of_one_isa(monkeypatch):
    from fanin.ort_ops import reference

    wrong = lambda x, *_, out_features, **__: np.ones((len(x), out_features))  # noqa: E731
    monkeypatch.setattr(reference, "condensed_gemm", wrong)
    assert "kernel for batch 1 is wrong" in finding("kernels").detail


def test_a_wrong_kernel_of_convolutions(monkeypatch):
    from fanin.ort_ops import reference

    wrong = lambda x, *_, out_channels, **__: np.ones((len(x), out_channels, 5, 11))  # noqa: E731
    monkeypatch.setattr(reference, "condensed_conv", wrong)
    assert "convolution kernel is wrong" in finding("convolutions").detail


@pytest.mark.parametrize(
    ("oracle", "what"),
    [
        ("qlinear_condensed_gemm", "8-bit kernel for batch 1 gives 40 of 40 outputs wrong"),
        ("qlinear_condensed_conv", "8-bit convolution kernel gives"),
    ],
)
def test_a_wrong_kernel_of_8_bit_integers(monkeypatch, oracle, what):
    from fanin.ort_ops import reference_quantized

    right = getattr(reference_quantized, oracle)
    monkeypatch.setattr(reference_quantized, oracle, lambda *args, **kw: right(*args, **kw) ^ 1)
    assert what in finding("8-bit kernels").detail


def test_an_unforeseen_failure(monkeypatch):
    def fails():
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(doctor_cpus, "available_cpus", fails)
    assert finding("CPUs and threads").detail == "ZeroDivisionError: odd"


def test_thread_variables_of_others_are_explained(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    details = {check.name: check.detail for check in run_checks()}
    assert "OMP_NUM_THREADS=3 (onnxruntime does not read it)" in details["CPUs and threads"]


@pytest.mark.parametrize("ok", [True, False])
def test_the_table_shows_verdict_detail_and_remedy(ok):
    check = Check("op library", ok, "detail [not markup]", "" if ok else "do [this]")
    text = "\n".join(check_lines([check], 100))
    assert ("ok" if ok else "FAIL") in text
    assert "detail [not markup]" in text
    assert ("→ do [this]" in text) is not ok


def test_paths_are_never_broken():
    path = "/a/rather/long/" + "folder-of-a/" * 12 + "libfanin_ort_ops.so"
    checks = [Check("op library", True, f"found {path} here and nothing else that it needs")]
    lines = list(check_lines(checks, 60))
    assert any(path in line for line in lines)
    assert all(len(line) <= 60 for line in lines if path not in line)
    assert list(check_lines(checks)) == [f"ok    op library  {checks[0].detail}"]
