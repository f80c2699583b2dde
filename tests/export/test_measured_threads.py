"""Times measured with several threads: kept for each number of them, and taken for no other."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from typer.testing import CliRunner

from fanin.cli import app
from fanin.export import ExportError, convert, plan_conversion
from fanin.export.calibration_files import table_path
from fanin.export.conv_cost import ConvTable
from fanin.export.cost_model import Calibration, CostModel
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from .onnx_models import sparse, write_model

GEOMETRY = ConvGeometry(64, 64, (3, 3), pads=(1,) * 4)


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch) -> Path:
    """Return where the user's calibration would be."""
    path = tmp_path / "own.json"
    monkeypatch.setenv("FANIN_CALIBRATION", str(path))
    return path


def measured(threads: int, *, dense: float = 1.0, condensed: float = 1.0) -> Calibration:
    """Make the table of a machine whose forms take so many times as long as the shipped times."""

    def times(factor: float, table: object) -> list:
        return (factor * np.asarray(table)).tolist()

    def scaled(table: Calibration | ConvTable) -> dict[str, list]:
        return {
            "dense": times(dense, table.dense),
            "condensed": times(condensed, table.condensed),
        }

    tables = Calibration.shipped_convolutions()
    shipped = Calibration.shipped()
    return replace(
        shipped,
        **scaled(shipped),
        convolutions=tuple(replace(table, **scaled(table)) for table in tables),
        machine=f"machine {threads}",
        threads=threads,
    )


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_a_table_and_its_number_of_threads_are_read_as_they_were_written(tmp_path, threads):
    path = tmp_path / "table.json"
    table = measured(threads, dense=2.0)
    table.save(path)
    loaded = Calibration.load(path)
    assert json.dumps(asdict(loaded)) == json.dumps(asdict(table))


def test_a_file_of_an_earlier_version_is_of_one_thread(own):
    fields = asdict(measured(1)) | {"format_version": 1}
    del fields["threads"]
    own.write_text(json.dumps(fields))
    assert Calibration.load(own).threads == 1
    assert CostModel.of_this_machine(4).measured_threads == 1


def test_measured_times_are_not_divided_by_the_threads():
    """A table of as many threads is interpolated as one of a single thread is on one."""
    one, many = CostModel(measured(1)), CostModel(measured(16), threads=16)
    assert many.threads == many.measured_threads == 16
    for batch in (1, 3, 8, 300):
        assert many.dense(batch, 768, 768) == one.dense(batch, 768, 768)
        assert many.condensed(batch, 768, 768, 59_000) == one.condensed(batch, 768, 768, 59_000)
        assert many.structured(batch, 768, 768, 300) == one.structured(batch, 768, 768, 300)
    images = 4, [56, 56]
    alone, shared = one.convolutions, many.convolutions
    assert shared.dense(GEOMETRY, *images) == alone.dense(GEOMETRY, *images)
    assert shared.condensed(GEOMETRY, *images, 3700) == alone.condensed(GEOMETRY, *images, 3700)
    assert shared.structured(GEOMETRY, *images, 30) == alone.structured(GEOMETRY, *images, 30)
    assert shared.reorder == alone.reorder


@given(st.integers(1, 64), st.sets(st.integers(1, 64)))
def test_a_table_of_another_number_of_threads_is_never_taken(tmp_path_factory, threads, present):
    folder = tmp_path_factory.mktemp("tables")
    for count in present:
        measured(count).save(table_path(folder / "fanin" / "calibration.json", count))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FANIN_CALIBRATION", raising=False)
        patch.setenv("XDG_DATA_HOME", str(folder))
        costs = CostModel.of_this_machine(threads)
    own = next((count for count in (threads, 1) if count in present), None)
    assert costs.machine == (f"machine {own}" if own else Calibration.shipped().machine)
    assert costs.measured_threads == (own or 1)


def test_times_of_another_number_of_threads_do_not_make_a_model():
    with pytest.raises(ValueError, match="times on 4 threads do not follow from those on 2"):
        CostModel(measured(2), threads=4)
    with pytest.raises(ValueError, match="times on 1 threads do not follow from those on 2"):
        CostModel(measured(2))


@pytest.mark.parametrize(
    ("content", "wanted", "sentence"),
    [
        (2, 4, r"own\.4-threads\.json holds times on 2 threads, where those on 4 belong; .* 4$"),
        (1, 4, r"own\.4-threads\.json holds times on 1 thread, where those on 4 belong"),
        (4, 1, r"own\.json holds times on 4 threads, where those on 1 belong; .* --threads 1$"),
    ],
)
def test_a_file_that_was_renamed_is_refused(own, content, wanted, sentence):
    measured(content).save(table_path(own, wanted))
    with pytest.raises(ExportError, match=sentence):
        CostModel.of_this_machine(wanted)


def test_a_table_of_several_threads_that_stands_for_one_is_refused_for_several_too(own):
    measured(4).save(own)
    for threads in (2, 4):
        with pytest.raises(ExportError, match=r"own\.json holds times on 4 threads"):
            CostModel.of_this_machine(threads)


@pytest.mark.parametrize("threads", [0, -2, 1.5, "2", True, None])
def test_a_number_of_threads_that_is_none_is_refused(tmp_path, threads):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(asdict(measured(1)) | {"format_version": 1, "threads": threads}))
    with pytest.raises(ExportError, match=r"no calibration of this version.*fanin calibrate"):
        Calibration.load(path)


def test_times_of_convolutions_on_several_threads_are_not_those_of_one(tmp_path):
    path = tmp_path / "table.json"
    replace(measured(2), convolutions=()).save(path)
    with pytest.raises(ExportError, match=r"no times of 1x1, .* convolutions"):
        Calibration.load(path)


def test_a_damaged_table_is_refused_only_where_it_would_be_taken(own):
    table_path(own, 2).write_text("{}")
    with pytest.raises(ExportError, match=r"own\.2-threads\.json is no calibration of this"):
        CostModel.of_this_machine(2)
    assert CostModel.of_this_machine(3).machine == Calibration.shipped().machine


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")
    shape = ("batch", 768)
    weights = {"w": sparse((768, 768), 0.95)}
    return write_model(tmp_path / "in.onnx", [node], weights, x=shape, y=shape)


@pytest.fixture
def convolution(tmp_path: Path) -> Path:
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1] * 4)
    weights = {"w": sparse((64, 64, 3, 3), 0.95)}
    image = ("batch", 64, 28, 28)
    return write_model(tmp_path / "in.onnx", [node], weights, x=image, y=image)


@pytest.mark.parametrize("kind", ["layer", "convolution"])
def test_the_choice_follows_the_table_of_exactly_these_threads(own, request, kind):
    source = request.getfixturevalue(kind)

    def chosen(threads: int) -> str:
        (plan,) = plan_conversion(source, batch=8, threads=threads)
        report = convert(source, source.with_name("out.onnx"), batch=8, threads=threads)
        assert report.layers[0].decision == plan.decision
        return plan.decision

    measured(2, condensed=100.0).save(table_path(own, 2))
    assert [chosen(threads) for threads in (1, 2, 3)] == ["condensed", "dense", "condensed"]
    measured(2).save(table_path(own, 2))
    measured(1, condensed=100.0).save(own)
    assert [chosen(threads) for threads in (1, 2, 3)] == ["dense", "condensed", "dense"]


def test_report_and_inspection_say_whether_the_times_were_measured(own, layer, tmp_path):
    measured(2).save(table_path(own, 2))
    measured(1).save(own)
    expected = {
        1: "times measured with 1 thread of machine 1",
        2: "times measured with 2 threads of machine 2",
        4: "times predicted for 4 threads from those measured with 1 thread of machine 1",
    }
    for threads, sentence in expected.items():
        report = convert(layer, tmp_path / "out.onnx", threads=threads)
        assert sentence in str(report.to_rich_table().caption).split("\n")
        assert report.measured_threads == json.loads(report.to_json())["measured_threads"]
        assert CostModel.of_this_machine(threads).origin == sentence
        for command in (
            ["inspect", str(layer)],
            ["export", str(layer), "-o", str(tmp_path / "again.onnx")],
        ):
            done = CliRunner().invoke(app, [*command, "--threads", str(threads)])
            assert done.exit_code == 0, done.output
            assert sentence in " ".join(done.output.split())


def test_a_renamed_table_stops_the_commands_with_one_line(own, layer, tmp_path):
    measured(2).save(table_path(own, 4))
    for command in (["inspect", str(layer)], ["export", str(layer), "-o", str(tmp_path / "out")]):
        done = CliRunner().invoke(app, [*command, "--threads", "4"])
        assert done.exit_code == 1
        assert re.search(
            r"^fanin: .* holds times on 2 threads, where those on 4", done.output, re.M
        )
    assert not (tmp_path / "out").exists()
