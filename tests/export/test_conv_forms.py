"""Forms of convolutions: predictions, neighbors that want the same layout, and the report."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from fanin.export import CondensedWeight, ExportError, convert
from fanin.export.conv_cost import KINDS, ConvCostModel, ConvTable, kind_of
from fanin.export.cost_model import Calibration, CostModel
from fanin.export.forms import Chooser
from fanin.export.passes.conv_layouts import Border, find_borders, settle_forms
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from .onnx_models import sparse, write_model


def power_laws(reorder: float = 1e-10) -> tuple[ConvTable, ...]:
    """Dense: 1 ns for each pixel and 100 weights. Condensed: for each pixel and 20 stored."""
    pixels, weights, densities = (16, 256), (64, 4096), (0.05, 0.5)
    return tuple(
        ConvTable(
            kind,
            pixels,
            weights,
            densities,
            dense=tuple(tuple(1e-11 * p * w for w in weights) for p in pixels),
            condensed=tuple(
                tuple(tuple(5e-11 * p * w * d for d in densities) for w in weights) for p in pixels
            ),
            place=1e-9,
            reorder=reorder,
        )
        for kind in KINDS
    )


@pytest.mark.parametrize(
    ("kernel", "stride", "kind"),
    [
        ((1, 1), (1, 1), "1x1"),
        ((1,), (2,), "1x1 strided"),
        ((3, 1), (1, 1), "kxk"),
        ((7, 7), (2, 1), "kxk strided"),
    ],
)
def test_each_convolution_has_a_kind(kernel, stride, kind):
    assert kind_of(ConvGeometry(8, 4, kernel, stride)) == kind


@pytest.mark.parametrize(
    ("channels", "group", "stride", "kind"),
    [
        ((8, 8), 8, 1, "depthwise"),
        ((8, 8), 8, 2, "depthwise strided"),
        ((8, 16), 8, 1, "stem"),
        ((3, 16), 1, 2, "stem"),
        ((5, 16), 1, 1, "kxk"),
    ],
)
def test_few_channels_for_a_filter_are_kinds_of_their_own(channels, group, stride, kind):
    assert kind_of(ConvGeometry(*channels, (3, 3), (stride, stride), group=group)) == kind


def test_depthwise_convolution_goes_with_condensed_ones_and_stays_dense_among_dense_ones():
    ours, dense = {"dense": 9e-6, "condensed": 3e-6}, {"dense": 3e-6, "condensed": 9e-6}
    depthwise = {"dense": 1e-6, "condensed": 2e-6}
    borders = [Border(1, (2,), 10_000), Border(2, (3,), 10_000)]
    together = settle_forms({1: ours, 2: depthwise, 3: ours}, borders, 1e-10)
    assert together == {1: "condensed", 2: "condensed", 3: "condensed"}
    apart = settle_forms({1: dense, 2: depthwise, 3: dense}, borders, 1e-10)
    assert apart == {1: "dense", 2: "dense", 3: "dense"}


def test_power_laws_are_interpolated_exactly():
    costs = ConvCostModel(power_laws())
    geometry = ConvGeometry(8, 32, (3, 3), pads=(1, 1, 1, 1))
    assert costs.dense(geometry, 2, (10, 9)) == pytest.approx(2 * 1e-11 * 90 * 32 * 72)
    assert costs.condensed(geometry, 1, (10, 9), 230) == pytest.approx(5e-11 * 90 * 230)
    placed = 1e-11 * 90 * 20 * 72 + 1e-9 * 32 * 90
    assert costs.structured(geometry, 1, (10, 9), 20) == pytest.approx(placed)
    assert costs.structured(geometry, 1, (10, 9), 32) == costs.dense(geometry, 1, (10, 9))


def chooser(**options) -> Chooser:
    costs = CostModel(replace(Calibration.shipped(), convolutions=power_laws()))
    return replace(Chooser.of("auto", 1, False), costs=costs, **options)


def weight(density: float, geometry: ConvGeometry) -> CondensedWeight:
    return CondensedWeight.from_dense(sparse(geometry.weight_shape, 1 - density))


def test_fastest_form_is_chosen_and_the_prediction_reported():
    geometry = ConvGeometry(16, 16, (3, 3), pads=(1, 1, 1, 1))
    choice = chooser().choose_conv(weight(0.04, geometry), geometry, ("n", 16, 8, 8))
    assert choice.form == "condensed"
    assert choice.reason == f"{choice.speedup:.2g}× predicted at 8×8"
    choice = chooser(batch=4).choose_conv(weight(0.4, geometry), geometry, ("n", 16, "h", 8))
    assert choice.form == "dense"
    assert choice.reason.endswith("× as fast at 56×8, batch 4")


def line(*entries: int) -> list[Border]:
    return [Border(n, (n + 1,), count) for n, count in enumerate(entries)]


def test_lone_convolution_that_would_cost_two_copies_stays_dense():
    fixed = line(100, 100)
    times = {1: {"dense": 3.0, "condensed": 2.0}}
    assert settle_forms(times, fixed, reorder=0.0) == {1: "condensed"}
    assert settle_forms(times, fixed, reorder=0.01) == {1: "dense"}


def test_slower_convolution_among_condensed_ones_is_condensed_too():
    times = {
        0: {"dense": 9.0, "condensed": 2.0},
        1: {"dense": 2.0, "condensed": 2.5},
        2: {"dense": 9.0, "condensed": 2.0},
    }
    assert settle_forms(times, line(100, 100), 0.0)[1] == "dense"
    assert settle_forms(times, line(100, 100), 0.01) == dict.fromkeys(times, "condensed")


def test_neighbors_that_only_together_save_a_copy_change_together():
    """Each alone is faster condensed; the two dense ones between spare the copies around them."""
    times = {
        0: {"dense": 1.0, "condensed": 9.0},
        1: {"dense": 2.0, "condensed": 1.7},
        2: {"dense": 2.0, "condensed": 1.7},
        3: {"dense": 1.0, "condensed": 9.0},
    }
    assert settle_forms(times, line(100, 100, 100), 0.005) == dict.fromkeys(times, "dense")
    beside = times | {4: {"dense": 9.0, "condensed": 1.0}}
    found = settle_forms(beside, line(100, 100, 100, 100), 0.005)
    assert found == dict.fromkeys(times, "dense") | {4: "condensed"}


@settings(max_examples=100, deadline=None)
@given(
    times=st.lists(
        st.fixed_dictionaries({form: st.floats(0.1, 10) for form in ("dense", "condensed")}),
        min_size=1,
        max_size=6,
    ),
    reorder=st.floats(0, 0.1),
    data=st.data(),
)
def test_forms_together_are_never_slower_than_dense_nor_one_change_away_from_better(
    times, reorder, data
):
    seconds = dict(enumerate(times))
    pairs = list(itertools.combinations(range(len(times) + 1), 2))
    borders = [
        Border(a, (b,), data.draw(st.integers(1, 100)))
        for a, b in data.draw(st.lists(st.sampled_from(pairs), max_size=8))
    ]

    def total(forms: dict[int, str]) -> float:
        copies = sum(
            reorder * b.entries
            for b in borders
            if forms.get(b.writer, "dense") != forms.get(b.readers[0], "dense")
        )
        return sum(seconds[key][form] for key, form in forms.items()) + copies

    found = settle_forms(seconds, borders, reorder)
    dense = dict.fromkeys(seconds, "dense")
    assert total(found) <= total(dense) + 1e-9
    if found != dense:
        for key, form in itertools.product(seconds, ("dense", "condensed")):
            assert total(found) <= total(found | {key: form}) + 1e-9


def test_borders_lie_behind_operators_that_work_in_either_layout(tmp_path: Path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="one", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "w"], ["b"], name="two", pads=[1] * 4),
        helper.make_node("Conv", ["p", "w"], ["c"], name="three", pads=[1] * 4),
        helper.make_node("Add", ["b", "c"], ["s"]),
        helper.make_node("Softmax", ["s"], ["t"], axis=1),
        helper.make_node("Conv", ["t", "w"], ["y"], name="four", pads=[1] * 4),
    ]
    path = write_model(
        tmp_path / "m.onnx", nodes, {"w": sparse((4, 4, 3, 3))}, x=("n", 4, 8, "w_"), y=None
    )
    model = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(onnx.load(path)))
    names = {id(node): node.name for node in model.graph}
    found = [
        (names[b.writer], sorted(names[reader] for reader in b.readers), b.entries)
        for b in find_borders(model, 10)
    ]
    assert found == [("one", ["three", "two"], 4 * 8 * 10)]


def test_policy_auto_takes_forms_that_suit_each_other(tmp_path: Path, monkeypatch):
    path = tmp_path / "calibration.json"
    replace(Calibration.shipped(), convolutions=power_laws(reorder=1e-9)).save(path)
    monkeypatch.setenv("FANIN_CALIBRATION", str(path))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="one", pads=[1] * 4),
        helper.make_node("Conv", ["a", "v"], ["b"], name="two", pads=[1] * 4),
        helper.make_node("Conv", ["b", "w"], ["y"], name="three", pads=[1] * 4),
    ]
    shape = (16, 16, 3, 3)

    def decisions(first: float, second: float) -> list[str]:
        arrays = {"w": sparse(shape, first), "v": sparse(shape, second, seed=1)}
        source = write_model(
            tmp_path / "in.onnx", nodes, arrays, x=("n", 16, 8, 8), y=None, opset=20
        )
        report = convert(source, tmp_path / "out.onnx", policy="auto", verify=False)
        types = [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node]
        named = {"CondensedConv": "condensed", "Conv": "dense"}
        assert [layer.decision for layer in report.layers] == [named[types[0]], named[types[1]]]
        return [f"{layer.decision}, {layer.reason}" for layer in report.layers]

    # Five stored weights cost what 25 do densely.
    assert all(line.startswith("condensed") for line in decisions(0.98, 0.98))
    assert decisions(0.98, 0.84)[1].startswith("condensed, 0.9")
    assert "nothing to reorder" in decisions(0.98, 0.84)[1]
    assert decisions(0.6, 0.6) == decisions(0.6, 0.6)
    assert all(line.startswith("dense") for line in decisions(0.6, 0.6))


def test_tables_of_the_user_are_kept_with_the_calibration(tmp_path: Path):
    path = tmp_path / "calibration.json"
    table = replace(Calibration.shipped(), convolutions=power_laws())
    table.save(path)
    loaded = Calibration.load(path)
    assert [t.kind for t in loaded.convolutions] == list(KINDS)
    np.testing.assert_array_equal(loaded.convolutions[0].dense, table.convolutions[0].dense)


def test_calibration_without_convolutions_takes_the_shipped_ones_and_the_report_says_so(
    tmp_path: Path,
):
    path = tmp_path / "calibration.json"
    replace(Calibration.shipped(), convolutions=(), machine="mine").save(path)
    costs = CostModel(Calibration.load(path))
    assert costs.convolutions.reorder > 0
    assert costs.machine.startswith("mine; convolutions for the machine that came with fanin")
    shipped = Calibration.shipped()
    assert CostModel(shipped).machine == shipped.machine
    own = replace(shipped, convolutions=power_laws(), machine="mine")
    assert CostModel(own).machine == "mine"


@pytest.mark.parametrize(
    "change", [{"kind": "5x5"}, {"dense": [[1.0]]}, {"reorder": 0}, {"more": 1}]
)
def test_damaged_tables_are_refused_with_the_remedy(tmp_path: Path, change: dict):
    path = tmp_path / "calibration.json"
    replace(Calibration.shipped(), convolutions=power_laws()).save(path)
    fields = json.loads(path.read_text())
    fields["convolutions"][0] |= change
    path.write_text(json.dumps(fields))
    with pytest.raises(ExportError, match=r"no calibration of this version.*fanin calibrate"):
        Calibration.load(path)
