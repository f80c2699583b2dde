"""Times of 8-bit layers: which tables are taken, for which CPU, and what they decide."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fanin.cli import app
from fanin.export import CondensedWeight, ExportError, convert
from fanin.export.calibration_files import quantized_path, table_path
from fanin.export.conv_cost import QUANTIZED_KINDS, ConvTable
from fanin.export.cost_model import Calibration, CostModel
from fanin.export.forms import Chooser
from fanin.export.layer_costs import LayerTable
from fanin.export.quantized_costs import QuantizedCalibration, QuantizedCosts
from fanin.export.quantized_cpus import Cpu
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from .onnx_models import sparse, write_model
from .quantized_models import X_SCALE, int8, node, write

ISAS = ("scalar", "avx2", "avxvnni", "avx512f", "avx512bw", "avx512vnni", "neon", "dotprod")
SIZE, STORED = 1536, 235_930  # 90 %


def power_law(condensed: float) -> LayerTable:
    """A dense multiply-add takes 1e-10 s, a stored one ``condensed`` times as long."""
    batches, weights, densities = (1, 1000), (100, 10_000_000), (0.01, 1.0)
    dense = [[1e-10 * batch * count for count in weights] for batch in batches]
    return LayerTable(
        batches,
        weights,
        densities,
        dense,
        [[[condensed * time * share for share in densities] for time in row] for row in dense],
    )


def tables(static: float = 2.0, dynamic: float = 2.0, convolutions: float = 2.0):
    table = power_law(convolutions)
    axes = {"weights": table.weights, "densities": table.densities}
    times = {"dense": table.dense, "condensed": table.condensed}
    return QuantizedCalibration(
        "test",
        1,
        power_law(static),
        power_law(dynamic),
        tuple(ConvTable(kind, table.batches, **axes, **times) for kind in QUANTIZED_KINDS),
    )


def chooser(cpu: Cpu | None = None, measured: QuantizedCalibration | None = None, **options):
    costs = CostModel(Calibration.shipped())
    costs.quantized = QuantizedCosts(measured or tables(), cpu=cpu)
    return replace(Chooser("auto", costs=costs), **options)


def weight(sparsity: float, rows: int = 256, columns: int = 250) -> CondensedWeight:
    """Make a layer with the same number of weights, all 1, in each row."""
    kept = np.argsort(np.random.default_rng(0).random((rows, columns))) < round(
        (1 - sparsity) * columns
    )
    return CondensedWeight.from_dense(kept.astype(np.float32))


def chosen(by: Chooser, sparsity: float, rows: int, form: str = "static") -> str:
    return by.choose_quantized(weight(sparsity), (rows, 250), None, form).form


def test_each_kind_of_layer_is_decided_by_its_own_table():
    by = chooser(measured=tables(static=2.0, dynamic=20.0, convolutions=20.0))
    assert chosen(by, 0.8, 64) == "condensed"
    assert chosen(by, 0.8, 64, "dynamic") == "dense"
    geometry = ConvGeometry(50, 64, (3, 3), pads=(1,) * 4)
    kernel = weight(0.8, 64, 450)
    choice = by.choose_quantized(kernel, (1, 50, 14, 14), geometry, "static")
    assert choice.form == "dense"
    assert choice.reason == "condensed predicted 0.25× as fast at 14×14"
    by = chooser(measured=tables(static=20.0, convolutions=2.0))
    choice = by.choose_quantized(kernel, (2, 50, 14, 14), geometry, "static")
    assert choice.form == "condensed"
    assert choice.speedup == pytest.approx(2.5, rel=0.01)
    assert choice.reason == "2.5× predicted at 14×14, batch 2"
    assert chosen(by, 0.8, 64) == "dense"


@pytest.mark.parametrize("isa", ["avx512vbmi", "avx512bf16"])
def test_measured_instruction_sets_are_not_scaled(isa):
    plain, same = QuantizedCosts(tables()), QuantizedCosts(tables(), cpu=Cpu(isa))
    for batch in (1, 30, 500):
        arguments = "static", batch, 300, 200, 6000
        assert same.condensed(*arguments) == plain.condensed(*arguments)


@given(st.sampled_from(ISAS), st.integers(1, 4096))
def test_no_instruction_set_is_faster_than_the_measured_one(isa, rows):
    scaled, plain = QuantizedCosts(tables(), cpu=Cpu(isa)), QuantizedCosts(tables())
    arguments = "static", rows, SIZE, SIZE
    assert scaled.dense(*arguments) == plain.dense(*arguments)
    assert scaled.condensed(*arguments, STORED) >= plain.condensed(*arguments, STORED)


@pytest.mark.parametrize(
    ("cpu", "rows", "ratio"),
    [
        (Cpu("avx512vbmi"), 1, 6.7),
        (Cpu("avx512vbmi"), 256, 5.6),
        (Cpu("avx512vnni"), 8, 2.5),
        (Cpu("avx2"), 64, 0.92),
        (Cpu("dotprod"), 1, 2.0),
        (Cpu("avx512bf16", amx=True), 1, 13.9),
        (Cpu("avx512bf16", amx=True), 16, 3.2),
        (Cpu("avx512bf16", amx=True), 256, 1.2),
        (Cpu("avx512vnni", amx=True), 16, 3.2 * 2.1 / 5.1),
    ],
    ids=str,
)
def test_the_documented_layer_has_its_ratios(cpu, rows, ratio):
    """docs/export.md states them; AMX serves dense layers only."""
    costs = QuantizedCosts(QuantizedCalibration.shipped(cpu.amx), cpu=cpu)
    dense = costs.dense("static", rows, SIZE, SIZE)
    assert dense / costs.condensed("static", rows, SIZE, SIZE, STORED) == pytest.approx(ratio, 0.03)


def test_other_layers_differ_from_the_known_one_as_on_the_measured_machine():
    scaled, plain = QuantizedCosts(tables(), cpu=Cpu("avx512vnni")), QuantizedCosts(tables())
    geometry = ConvGeometry(64, 64, (3, 3), pads=(1,) * 4)
    factors = [
        scaled.condensed(form, 196, size, size, stored)
        / plain.condensed(form, 196, size, size, stored)
        for form in ("static", "dynamic")
        for size, stored in ((SIZE, STORED), (100, 3000))
    ]
    kernel = geometry, 1, (14, 14), 3000
    factors.append(scaled.condensed_conv(*kernel) / plain.condensed_conv(*kernel))
    assert factors == pytest.approx([factors[0]] * 5)
    assert scaled.dense_conv(*kernel[:3]) == plain.dense_conv(*kernel[:3])


@pytest.mark.parametrize(
    ("cpu", "rows", "sparsest_dense"),
    [
        (Cpu("avx512vbmi"), 256, 0.4),
        (Cpu("avx512vnni"), 64, 0.7),
        (Cpu("avxvnni"), 64, 0.8),
        (Cpu("avx2"), 64, 0.88),
        (Cpu("avx2"), 1, 0.8),
        (Cpu("scalar"), 1, 0.98),
    ],
)
def test_weights_of_some_sparsity_stay_dense(cpu, rows, sparsest_dense):
    """Of layers whose condensed form is 5 times as fast at 90 % on the measured machine."""
    by = chooser(cpu)
    assert chosen(by, sparsest_dense, rows) == "dense"
    assert chosen(by, 0.995, rows) == "condensed"


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("amx", [False, True])
def test_tables_are_those_of_the_cpu(amx, monkeypatch):
    monkeypatch.setattr(Cpu, "of_this_machine", lambda: Cpu("avx512vbmi", amx))
    costs, other = QuantizedCosts.of_this_machine(), QuantizedCalibration.shipped(not amx)
    assert ("with AMX" in costs.machine) is amx
    dense = costs.dense("static", 256, SIZE, SIZE)
    ratio = dense / QuantizedCosts(other).dense("static", 256, SIZE, SIZE)
    assert ratio < 0.5 if amx else ratio > 2


def test_amx_is_read_from_the_flags(tmp_path: Path):
    (tmp_path / "proc").mkdir()
    info = tmp_path / "proc" / "cpuinfo"
    for flags, amx in (("avx2 amx_bf16 amx_tile", False), ("avx2 amx_tile amx_int8", True)):
        info.write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\nbugs\t\t:\n")
        assert Cpu.of_this_machine(tmp_path).amx is amx
    info.unlink()
    assert Cpu.of_this_machine(tmp_path).amx is False


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """Return where the user's times of 8-bit layers would be."""
    monkeypatch.delenv("FANIN_CALIBRATION", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "fanin").mkdir()
    return quantized_path(tmp_path / "fanin" / "calibration.json")


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """Write a QGemm of 768 x 768 weights, 95 % of them 0."""
    arrays = {
        "w": int8((768, 768), 0.95),
        "ws": np.full(768, 0.01, np.float32),
        "wz": np.zeros(768, np.int8),
        "b": np.zeros(768, np.int32),
        "xs": X_SCALE,
        "xz": np.uint8(117),
    }
    inputs = ["x", "xs", "xz", "w", "ws", "wz", "b", "xs", "xz"]
    gemm = node("QGemm", inputs, "y", "com.microsoft")
    shape = ("batch", 768)
    return write(tmp_path / "in.onnx", [gemm], arrays, x=shape, y=shape, x_type=2, y_type=2)


def test_own_times_are_taken_as_they_are_and_shipped_ones_for_the_cpu(own, layer, monkeypatch):
    monkeypatch.setenv("FANIN_ISA", "scalar")
    report = convert(layer, layer.with_name("out.onnx"))
    assert report.layers[0].decision == "dense"
    assert "which came with fanin, scaled to scalar" in report.quantized_times
    tables(static=2.0).save(own)
    report = convert(layer, layer.with_name("out.onnx"))
    assert report.layers[0].decision == "condensed"
    assert report.layers[0].reason.endswith("× predicted at 1 row, int8")
    assert report.quantized_times == "8-bit layers: times measured with 1 thread of test"


def test_report_and_inspection_name_the_times_of_8_bit_layers(own, layer, tmp_path):
    tables().save(own)
    line = "8-bit layers: times predicted for 4 threads from those measured with 1 thread of test"
    report = convert(layer, tmp_path / "out.onnx", threads=4)
    assert line in str(report.to_rich_table().caption).split("\n")
    done = CliRunner().invoke(app, ["inspect", str(layer), "--threads", "4"])
    assert line in " ".join(done.output.split())
    assert convert(layer, tmp_path / "out.onnx", policy="condensed").quantized_times == ""
    floats = write_model(
        tmp_path / "floats.onnx",
        [node("MatMul", ["x", "w"], "y")],
        {"w": sparse((64, 64))},
        x=("batch", 64),
        y=("batch", 64),
    )
    assert convert(floats, tmp_path / "out.onnx").quantized_times == ""


def test_tables_are_read_as_they_were_written(tmp_path: Path):
    shipped = QuantizedCalibration.shipped()
    shipped.save(tmp_path / "again.json")
    again = QuantizedCalibration.load(tmp_path / "again.json")
    assert json.dumps(asdict(again)) == json.dumps(asdict(shipped))
    assert len((tmp_path / "again.json").read_text().splitlines()) < 1000


def test_times_of_these_threads_come_before_those_of_one(own):
    tables().save(own)
    replace(tables(), threads=4, machine="four").save(table_path(own, 4))
    for threads, machine, measured in ((1, "test", 1), (2, "test", 1), (4, "four", 4)):
        costs = QuantizedCosts.of_this_machine(threads)
        assert (costs.machine, costs.measured_threads) == (machine, measured)
    one, four = QuantizedCosts(tables()), QuantizedCosts.of_this_machine(4)
    assert four.dense("static", 8, 500, 500) == one.dense("static", 8, 500, 500)
    two = QuantizedCosts.of_this_machine(2)
    assert two.dense("static", 64, 2000, 2000) < one.dense("static", 64, 2000, 2000)


def test_a_file_that_was_renamed_is_refused(own):
    tables().save(table_path(own, 2))
    with pytest.raises(ExportError, match=r"int8\.2-threads\.json holds times on 1 thread, where"):
        QuantizedCosts.of_this_machine(2)


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": 2},
        {"threads": 0},
        {"threads": True},
        {"machine": 3},
        {"static": None},
        {"static": {}},
        {"convolutions": []},
        {"convolutions": [{"kind": "depthwise"}]},
        {"more": 1},
    ],
)
def test_damaged_tables_are_refused_with_the_remedy(own, layer, change):
    own.write_text(json.dumps({"format_version": 1} | asdict(tables()) | change))
    with pytest.raises(ExportError, match=r"no calibration of this .*fanin calibrate") as caught:
        convert(layer, layer.with_name("out.onnx"))
    assert not any(word in str(caught.value) for word in ("__init__", "argument", "object"))
    assert not layer.with_name("out.onnx").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"dense": [[1.0]]},
        {"dense": [[1e-3, 1e-3], [1e-3, float("inf")]]},
        {"condensed": [[[0.0] * 2] * 2] * 2},
        {"batches": [8, 1]},
        {"densities": ["few", "many"]},
        {"dense": [["fast", 1.0], [1.0, 1.0]]},
    ],
)
def test_damaged_times_are_refused_with_the_remedy(own, change):
    fields = {"format_version": 1} | asdict(tables())
    fields["dynamic"] |= change
    own.write_text(json.dumps(fields))
    with pytest.raises(ExportError, match=r"no calibration of this .*fanin calibrate") as caught:
        QuantizedCosts.of_this_machine()
    assert "convert" not in str(caught.value)


def test_damaged_tables_matter_to_8_bit_layers_only(own, tmp_path):
    own.write_text("{}")
    floats = write_model(
        tmp_path / "in.onnx",
        [node("MatMul", ["x", "w"], "y")],
        {"w": sparse((64, 64))},
        x=("batch", 64),
        y=("batch", 64),
    )
    assert convert(floats, tmp_path / "out.onnx").layers[0].decision == "dense"


@pytest.mark.parametrize("amx", [False, True])
def test_shipped_tables_order_the_forms(amx):
    table = QuantizedCalibration.shipped(amx)
    assert "avx512bf16" in table.machine
    for layers in (table.static, table.dynamic):
        dense, condensed = np.array(layers.dense), np.array(layers.condensed)
        # Large layers take longer with more rows and weights; at 98 % none is faster dense.
        assert (np.diff(dense[:, 1:], axis=0) > 0).all()
        assert (np.diff(condensed[:, -1], axis=-1) > 0).all()
        assert (condensed[:, 2:, 0] < dense[:, 2:]).all()
