"""Whatever stops an export, there is no new file, no scratch folder, and the older file stays."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fanin.export import convert, onnx_convert

from .._waiting import PATIENCE
from .onnx_models import sparse, write_model
from .test_onnx_convert import MATMUL


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "out.onnx").write_bytes(b"older")
    return write_model(tmp_path / "in.onnx", MATMUL, {"w": sparse((48, 32))})


def assert_nothing_changed(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {"in.onnx", "out.onnx"}
    assert (folder / "out.onnx").read_bytes() == b"older"


@pytest.mark.parametrize("step", ["lower", "stage_checked", "check_parity", "final_layers"])
def test_ctrl_c_at_any_step(source: Path, monkeypatch, step: str):
    def interrupted(*arguments, **options):  # noqa: ARG001
        raise KeyboardInterrupt

    monkeypatch.setattr(onnx_convert, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(source, source.with_name("out.onnx"), policy="condensed")
    assert_nothing_changed(source.parent)


def test_sigterm_in_the_middle_of_the_command(source: Path):
    code = """
import os, signal, sys, time
from fanin import cli
from fanin.export import onnx_convert

def stopped(*arguments, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)

onnx_convert.stage_checked = stopped
sys.argv = ["fanin", "export", "in.onnx", "-o", "out.onnx", "--policy", "condensed"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=source.parent, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert_nothing_changed(source.parent)


@pytest.mark.parametrize("threshold", [0, 1 << 20], ids=["data file", "one file"])
def test_full_disk(source: Path, threshold: int):
    """A limit on the size of files stands for it."""
    code = (
        "import resource, sys; from fanin.export import convert; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
        "convert(sys.argv[1], sys.argv[2], policy='condensed', "
        "external_data_threshold=int(sys.argv[3]))"
    )
    command = [sys.executable, "-c", code, source, source.with_name("out.onnx"), str(threshold)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode != 0
    told = "out.onnx cannot be written (File too large); an older file is unchanged"
    assert told in done.stderr.splitlines()[-1]
    assert_nothing_changed(source.parent)


def test_output_that_is_the_source_by_another_name(source: Path):
    link = source.with_name("link.onnx")
    link.symlink_to(source)
    before = source.read_bytes()
    for target in (source, link, source.parent / "." / "in.onnx"):
        with pytest.raises(ValueError, match="is the model itself; give the result another name"):
            convert(source, target)
    link.unlink()
    assert source.read_bytes() == before
    assert_nothing_changed(source.parent)
