"""Errors that a user can fix are reported in one readable line."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy import bench
from fanin.export import ExportError


def test_insufficient_memory_is_reported_in_one_line(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")

    def measure(*_, **__):
        raise MemoryError("Unable to allocate 3.64 TiB")

    monkeypatch.setattr(bench, "bench_layer", measure)
    result = CliRunner().invoke(app, ["bench", "layer", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output == "fanin: out of memory: Unable to allocate 3.64 TiB\n"


def test_bench_reports_a_missing_calibration_in_one_line(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")

    def measure(*_, **__):
        raise ExportError("FANIN_CALIBRATION is \x1b[2J, but there is no such file")

    monkeypatch.setattr(bench, "bench_layer", measure)
    result = CliRunner().invoke(app, ["bench", "layer", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr == (
        "fanin: FANIN_CALIBRATION is \\x1b[2J, but there is no such file\n"  # shown as a code
    )


def test_warnings_are_one_line_without_a_place_in_the_code(tmp_path):
    pytest.importorskip("torch")
    options = ["--out", tmp_path / "run", "--no-progress", "--set", "training.tf32=true"]
    options += ["--set", 'training.device="cpu"', "--set", "training.epochs=1"]
    done = subprocess.run(
        [sys.executable, "-m", "fanin", "train", "mlp-digits-srigl90", *options],
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stderr.splitlines() if "tf32" in line]
    assert lines == [
        "fanin: warning: no effect on the device 'cpu', only on CUDA: training.tf32",
    ]
    assert "contextlib" not in done.stderr


def test_characters_that_the_locale_lacks_are_replaced():
    done = subprocess.run(
        [sys.executable, "-m", "fanin", "doctor", "absent.onnx"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert b"there is no such file" in done.stdout
    assert b"? Check the path" in done.stdout  # an arrow in UTF-8
    assert done.stderr == b""
