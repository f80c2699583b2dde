"""Where an export writes: never over a device or the source, behind a link, with its data."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.export import (
    CondensedWeight,
    ExportError,
    calibration_files,
    convert,
    save_condensed,
)
from fanin.export.cost_model import Calibration, CostModel

from .onnx_models import run, sparse, write_model
from .test_onnx_convert import MATMUL


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "in.onnx", MATMUL, {"w": sparse((48, 32))})


def test_a_pipe_as_output_is_refused_by_every_writer_of_a_file(source: Path, tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    layer = CondensedWeight.from_dense(np.eye(3, dtype=np.float32))
    for write in (
        lambda: convert(source, pipe, policy="condensed"),
        lambda: save_condensed(pipe, {"a": layer}),
        lambda: Calibration.shipped().save(pipe),
    ):
        with pytest.raises(OSError, match="pipe is a pipe; choose an output path"):
            write()
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.onnx", "pipe"]


def test_the_commands_say_so_before_they_work(source: Path, tmp_path: Path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(
        "fanin.deploy.bench.suites.calibrate.calibrate", lambda *_, **__: pytest.fail("measured")
    )
    for command in (["export", str(source)], ["calibrate"]):
        done = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "pipe")])
        assert done.exit_code == 1
        assert done.output.startswith(f"fanin: {tmp_path / 'pipe'} is a pipe; choose")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("threshold", [0, 1 << 20], ids=["data file", "one file"])
@pytest.mark.parametrize("there", [True, False], ids=["to a file", "dangling"])
def test_a_link_is_followed_and_the_data_lie_beside_the_file(
    source: Path, tmp_path: Path, threshold: int, there: bool
):
    (tmp_path / "far").mkdir()
    real, link = tmp_path / "far" / "real.onnx", tmp_path / "link.onnx"
    link.symlink_to(real)
    if there:
        real.write_bytes(b"older")
    report = convert(source, link, policy="condensed", external_data_threshold=threshold)
    assert link.is_symlink()
    assert report.path == str(link)
    onnx.checker.check_model(real)
    names = {path.name for path in real.parent.iterdir()}
    if threshold:
        assert names == {"real.onnx"}
        assert not any("link" in note for note in report.notes)
    else:
        assert names == {"real.onnx", Path(report.data_path).name}
        assert f"{link} is a link: runtimes look for the weights beside" in report.notes[-1]
    x = np.ones((1, 48), np.float32)
    (expected,), (actual,) = run(source, x=x), run(real, library=True, x=x)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_the_data_file_of_the_source_is_no_output(tmp_path: Path):
    source = write_model(tmp_path / "in.onnx", MATMUL, {"w": sparse((48, 32))}, external=True)
    (data,) = {path for path in tmp_path.iterdir() if path != source}
    before = data.read_bytes()
    with pytest.raises(ValueError, match=r"holds weights of .*in\.onnx; give the result another"):
        convert(source, data)
    assert data.read_bytes() == before


def test_a_name_that_leaves_no_room_for_that_of_the_data_file(source: Path, tmp_path: Path):
    target = tmp_path / ("n" * 245 + ".onnx")
    with pytest.raises(OSError, match=r"n\.onnx cannot be written .File name too long"):
        convert(source, target, policy="condensed", external_data_threshold=0)
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]
    assert convert(source, target, policy="condensed").data_path is None


def test_a_bias_that_is_left_out_by_an_empty_name_is_none(tmp_path: Path):
    nodes = [onnx.helper.make_node("Gemm", ["x", "w", ""], ["y"], name="fc")]
    source = write_model(tmp_path / "in.onnx", nodes, {"w": sparse((48, 32))})
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    assert [layer.decision for layer in report.layers] == ["condensed"]


@pytest.mark.parametrize(
    "text", ["", "[" * 100_000, "1", "null", "{}", '{"format_version": 1}', "\xff"]
)
def test_a_damaged_calibration_is_named(tmp_path: Path, text: str):
    path = tmp_path / "table.json"
    path.write_bytes(text.encode("latin1"))
    assert_refused(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batches", [None, 8]),
        ("batches", [8, 1]),
        ("weights", ["x"]),
        ("densities", [0.0, 0.5]),
        ("dense", [[float("nan")]]),
        ("convolutions", [{}]),
    ],
)
def test_a_calibration_of_other_numbers_is_named(tmp_path: Path, name: str, value: object):
    path = tmp_path / "table.json"
    table = asdict(Calibration.shipped()) | {"format_version": 1, name: value}
    path.write_text(json.dumps(table))
    assert_refused(path)


def assert_refused(path: Path) -> None:
    with pytest.raises(ExportError, match=r"table\.json is no calibration of this version"):
        Calibration.load(path)


def test_a_home_that_cannot_be_searched_leaves_the_shipped_times_and_is_named(monkeypatch):
    """As that of another user, whose HOME a process has kept."""

    def closed(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setenv("FANIN_CALIBRATION", "/home/other/table.json")
    monkeypatch.setattr(calibration_files, "is_file", closed)
    machine = CostModel.of_this_machine().machine
    assert machine.startswith(Calibration.shipped().machine)
    assert machine.endswith("; /home/other/table.json cannot be read (Permission denied)")
