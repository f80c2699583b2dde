"""Models that break the operator's contract are refused with the reason.

If ONNX Runtime itself refuses a model, its message names the node or the operator.
"""

import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from ._models import INPUTS, NODE, Layer, Spec, assert_close, open_session, run, spec_of

LAYER = Layer.random(in_features=12, out_features=6, fan_in=4, active=4, padded=False)
SOUND = spec_of(LAYER)
INF, NAN = float("inf"), float("nan")


def changed(name: str, at: tuple[int, ...] | int, value: float) -> Spec:
    """The valid model with one entry of one weight replaced."""
    array = LAYER.weights[name].copy()
    if value < 0 and array.dtype == np.uint16:
        array = array.astype(np.int32)
    array[at] = value
    return SOUND.with_arrays(**{name: array})


def indices(row: list[int], values: list[float] | None = None, dtype: type = np.int32) -> Spec:
    """The valid model with other indices (and values) in its row 1."""
    arrays = {name: array.copy() for name, array in LAYER.weights.items()}
    arrays["indices"] = arrays["indices"].astype(dtype)
    arrays["indices"][1] = row
    if values is not None:
        arrays["values"][1] = values
    return SOUND.with_arrays(**arrays)


def cast(name: str, dtype: type) -> Spec:
    return SOUND.with_arrays(**{name: SOUND.arrays[name].astype(dtype)})


def reshaped(name: str, *shape: int) -> Spec:
    return SOUND.with_arrays(**{name: np.resize(SOUND.arrays[name], shape)})


def from_rows(active: int, **replaced: np.ndarray) -> Spec:
    """A model whose first ``active`` rows are stored, or more by repeating them."""
    return SOUND.with_arrays(
        values=np.resize(LAYER.values, (active, 4)),
        indices=np.resize(LAYER.indices, (active, 4)),
        rows=np.arange(active, dtype=np.int32),
        **replaced,
    )


SUITE = ("test_malformed", "test_malformed_inputs")

MODELS: dict[str, tuple[Spec, str]] = {
    # indices
    "index-out-of-range-uint16": (changed("indices", (2, 3), 12), r"indices\[2, 3\].*12.*in_feat"),
    "index-out-of-range-int32": (indices([0, 1, 2, 2**31 - 1]), r"indices\[1, 3\].*2147483647"),
    "index-65535": (changed("indices", (0, 3), 65535), r"indices\[0, 3\].*65535"),
    "index-negative": (indices([-1, 1, 2, 3]), r"indices\[1, 0\].*-1"),
    "index-most-negative": (indices([-(2**31), 1, 2, 3]), r"indices\[1, 0\].*-2147483648"),
    "index-repeated": (indices([1, 1, 2, 3], [1, 2, 3, 4]), r"indices\[1, 1\].*1"),
    "indices-unordered": (indices([1, 3, 2, 4]), r"indices\[1, 2\].*2.*increase"),
    "indices-descending": (indices([9, 7, 5, 3]), r"indices\[1, 1\].*7.*increase"),
    "padding-in-the-middle": (indices([1, 1, 2, 3], [1, 0, 3, 4]), r"indices\[1, 2\].*padding"),
    "padding-nonzero": (indices([1, 2, 2, 2], [1, 2, 0, 5]), r"indices\[1, 3\].*5.*padding"),
    "padding-minus-zero": (indices([1, 2, 3, 3], [1, 2, 3, -0.0]), r"indices\[1, 3\].*-0"),
    "padding-nan": (indices([1, 2, 3, 3], [1, 2, 3, NAN]), r"indices\[1, 3\].*nan"),
    "indices-int64": (cast("indices", np.int64), r"indices is int64.*uint16 or int32"),
    "indices-uint8": (cast("indices", np.uint8), r"indices is uint8.*uint16 or int32"),
    "indices-int16": (cast("indices", np.int16), r"indices is int16.*uint16 or int32"),
    "indices-float": (cast("indices", np.float32), r"indices is float32.*uint16 or int32"),
    "indices-bool": (cast("indices", np.bool_), r"indices is bool.*uint16 or int32"),
    # rows
    "rows-repeated": (changed("rows", 1, LAYER.rows[0]), r"rows\[1\].*increase"),
    "rows-descending": (
        SOUND.with_arrays(rows=LAYER.rows[::-1].copy()),
        r"rows\[1\].*increase",
    ),
    "rows-too-large": (changed("rows", 3, 6), r"rows\[3\].*6.*out_features"),
    "rows-huge": (changed("rows", 3, 2**31 - 1), r"rows\[3\].*2147483647.*out_features"),
    "rows-negative": (changed("rows", 0, -1), r"rows\[0\].*-1"),
    "rows-int64": (cast("rows", np.int64), r"int64"),
    "more-rows-than-outputs": (from_rows(7), r"7 rows.*out_features is 6"),
    # shapes
    "values-rank-1": (reshaped("values", 16), r"values.*\[16\].*\[active, fan_in\]"),
    "values-rank-3": (reshaped("values", 4, 4, 1), r"values.*\[4, 4, 1\].*\[active, fan_in\]"),
    "values-scalar": (reshaped("values"), r"values.*\[\].*\[active, fan_in\]"),
    "indices-rank-1": (reshaped("indices", 16), r"indices.*\[16\].*\[active, fan_in\]"),
    "indices-wider": (reshaped("indices", 4, 5), r"values.*\[4, 4\].*indices.*\[4, 5\]"),
    "indices-fewer-rows": (reshaped("indices", 3, 4), r"values.*\[4, 4\].*indices.*\[3, 4\]"),
    "rows-fewer": (reshaped("rows", 3), r"rows.*\[3\].*4 rows"),
    "rows-more": (reshaped("rows", 5), r"rows.*\[5\].*4 rows"),
    "rows-rank-2": (reshaped("rows", 4, 1), r"rows.*\[4, 1\].*\[active\]"),
    "rows-scalar": (reshaped("rows"), r"rows.*\[\].*\[active\]"),
    "bias-too-short": (reshaped("bias", 5), r"bias.*\[5\].*out_features is 6"),
    "bias-too-long": (reshaped("bias", 7), r"bias.*\[7\].*out_features is 6"),
    "bias-of-active-rows": (reshaped("bias", 4), r"bias.*\[4\].*out_features is 6"),
    "bias-rank-2": (reshaped("bias", 1, 6), r"bias.*\[1, 6\].*\[out_features\]"),
    "bias-scalar": (reshaped("bias"), r"bias.*\[\].*\[out_features\]"),
    "bias-empty": (reshaped("bias", 0), r"bias.*\[0\].*out_features is 6"),
    "fan-in-0": (
        SOUND.with_arrays(values=np.zeros((4, 0), np.float32), indices=np.zeros((4, 0), np.int32)),
        r"fan-in is 0",
    ),
    "empty-values-with-rows": (
        SOUND.with_arrays(values=np.zeros((0, 4), np.float32), indices=np.zeros((0, 4), np.int32)),
        r"rows.*\[4\].*0 rows",
    ),
    "x-last-dimension": (replace(SOUND, x_shape=("batch", 11)), r"X.*\[\?, 11\].*in_features.*12"),
    "x-rank-1-wrong": (replace(SOUND, x_shape=(13,)), r"X.*\[13\].*in_features.*12"),
    "residual-of-another-width": (
        SOUND.with_arrays(residual=np.zeros((1, 5), np.float32)),
        r"residual.*\[1, 5\].*\[\?, 6\].*\[1\] holding 0",
    ),
    "residual-of-another-rank": (
        SOUND.with_arrays(residual=np.zeros((6,), np.float32)),
        r"residual.*\[6\].*\[\?, 6\]",
    ),
    "residual-scalar": (
        SOUND.with_arrays(residual=np.zeros((), np.float32)),
        r"residual.*\[\].*\[\?, 6\]",
    ),
    "residual-empty": (
        SOUND.with_arrays(residual=np.zeros((0,), np.float32)),
        r"residual.*\[0\].*\[\?, 6\]",
    ),
    "residual-one-nonzero": (
        SOUND.with_arrays(residual=np.ones(1, np.float32)),
        r"residual.*\[1\].*holds 1.*must hold 0",
    ),
    "residual-one-nan": (
        SOUND.with_arrays(residual=np.array([NAN], np.float32)),
        r"residual.*\[1\].*holds nan.*must hold 0",
    ),
    "fed-residual-declared-wrong": (
        replace(SOUND, fed={"residual": ("batch", 7)}),
        r"residual.*\[\?, 7\].*\[\?, 6\]",
    ),
    "fed-values-declared-wrong": (
        replace(SOUND, fed={"values": (4, 5)}),
        r"values.*\[4, 5\].*indices.*\[4, 4\]",
    ),
    # types
    "x-float16-alone": (replace(SOUND, x_type=TensorProto.FLOAT16), r"CondensedGemm.*inputs"),
    "x-bfloat16": (replace(SOUND, x_type=TensorProto.BFLOAT16), r"bfloat16"),
    "x-double": (replace(SOUND, x_type=TensorProto.DOUBLE), r"double"),
    "x-int32": (replace(SOUND, x_type=TensorProto.INT32), r"int32"),
    "x-string": (replace(SOUND, x_type=TensorProto.STRING), r"string"),
    "values-double": (cast("values", np.float64), r"values is float64.*float32, float16 or bfl"),
    "values-int8": (cast("values", np.int8), r"values is int8, it must be float32, float16 or bfl"),
    "bias-double": (cast("bias", np.float64), r"double"),
    "residual-float16": (cast("residual", np.float16), r"CondensedGemm.*inputs"),
    # attributes
    "in-features-missing": (SOUND.with_attributes(in_features=None), r"in_features is missing"),
    "out-features-missing": (SOUND.with_attributes(out_features=None), r"out_features is missing"),
    "in-features-0": (SOUND.with_attributes(in_features=0), r"in_features is 0"),
    "out-features-0": (SOUND.with_attributes(out_features=0), r"out_features is 0"),
    "in-features-negative": (SOUND.with_attributes(in_features=-12), r"in_features is -12"),
    "out-features-negative": (SOUND.with_attributes(out_features=-6), r"out_features is -6"),
    "in-features-huge": (SOUND.with_attributes(in_features=2**62), r"in_features is 4611686018"),
    "out-features-huge": (SOUND.with_attributes(out_features=2**63 - 1), r"out_features is 92233"),
    "out-features-2**31": (SOUND.with_attributes(out_features=2**31), r"out_features is 21474836"),
    "out-features-2**31-1": (
        SOUND.with_attributes(out_features=2**31 - 1),
        r"bias.*\[6\].*out_features is 2147483647",
    ),
    "in-features-smaller": (
        replace(SOUND.with_attributes(in_features=3), x_shape=("batch", 3)),
        r"indices\[\d, \d\].*in_features is 3",
    ),
    "in-features-float": (SOUND.with_attributes(in_features=12.0), r"in_features must be an INT"),
    "out-features-list": (SOUND.with_attributes(out_features=[6]), r"out_features must be an INT"),
    "compute-float16": (
        SOUND.with_attributes(compute=10),
        r"compute is 10, it must be 1 \(float32\) or 16 \(bfloat16\)",
    ),
    "compute-string": (SOUND.with_attributes(compute="bfloat16"), r"compute must be an INT"),
    "compute-of-float32-values": (
        SOUND.with_attributes(compute=16),
        r"values is float32, with compute bfloat16 it must be bfloat16",
    ),
    "clip-min-int": (SOUND.with_attributes(clip_min=0), r"clip_min must be a FLOAT"),
    "clip-max-string": (SOUND.with_attributes(clip_max="6"), r"clip_max must be a FLOAT"),
    "clip-min-nan": (SOUND.with_attributes(clip_min=NAN), r"clip_min is NaN"),
    "clip-max-nan": (SOUND.with_attributes(clip_max=NAN), r"clip_max is NaN"),
    "clip-min-above-max": (
        SOUND.with_attributes(clip_min=6.0, clip_max=0.5),
        r"clip_min is 6.*clip_max.*0.5",
    ),
    "clip-min-inf": (SOUND.with_attributes(clip_min=INF, clip_max=1.0), r"clip_min is inf"),
    # the node itself
    "input-missing": (replace(SOUND, inputs=INPUTS[:5]), r"input size 5"),
    "inputs-missing": (replace(SOUND, inputs=INPUTS[:1]), r"input size 1"),
    "input-left-empty": (replace(SOUND, inputs=(*INPUTS[:5], "")), r"empty string"),
    "weight-left-empty": (
        replace(SOUND, inputs=("X", "values", "", "bias", "rows", "residual")),
        r"empty string",
    ),
    "input-extra": (replace(SOUND, inputs=(*INPUTS, "bias")), r"input size 7"),
    "output-extra": (replace(SOUND, outputs=("Y", "Z")), r"output size 2"),
    "domain-wrong": (
        replace(SOUND, domain="ai.other", opsets={"": 20, "ai.other": 1}),
        r"ai.other",
    ),
    "domain-empty": (replace(SOUND, domain=""), r"No Op registered for CondensedGemm"),
    "op-unknown": (replace(SOUND, op="CondensedGemmm"), r"CondensedGemmm.*not a registered"),
    "opset-of-the-domain-2000": (replace(SOUND, opsets={"": 20, "ai.fanin": 2000}), r"ai.fanin"),
    "opset-of-the-domain-0": (replace(SOUND, opsets={"": 20, "ai.fanin": 0}), r"ai.fanin"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_malformed_model_is_refused(name):
    spec, reason = MODELS[name]
    with pytest.raises(Exception, match=f"{NODE}|CondensedGemm|ai.fanin") as refusal:
        open_session(spec.build())
    assert re.search(reason, str(refusal.value), re.DOTALL), str(refusal.value)


def test_the_valid_model_is_accepted():
    x = LAYER.x(3)
    assert_close(run(open_session(SOUND.build()), X=x), LAYER, x)


def test_onnxruntime_accepts_the_model_without_an_opset_import_of_the_domain():
    x = LAYER.x(3)
    session = open_session(replace(SOUND, opsets={"": 20}).build())
    assert_close(run(session, X=x), LAYER, x)


def is_sound(values: np.ndarray, indices: np.ndarray, rows: np.ndarray) -> bool:
    """An independent implementation of the format's rules."""
    for row, kept in zip(indices.tolist(), values.tolist(), strict=True):
        true = len(row)
        while true > 1 and row[true - 1] == row[true - 2]:
            true -= 1
        if any(a >= b for a, b in pairwise(row[:true])):
            return False
        if not all(0 <= column < 12 for column in row):
            return False
        if any(value != 0 or np.signbit(value) for value in kept[true:]):
            return False
    strictly = all(a < b for a, b in pairwise(rows))
    return strictly and all(0 <= row < 6 for row in rows)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_weights_are_either_computed_correctly_or_refused(data):
    active = data.draw(st.integers(0, 3))
    fan_in = data.draw(st.integers(1, 3))
    column = st.integers(-1, 13) if data.draw(st.booleans()) else st.integers(0, 11)
    row_of = st.lists(column, min_size=fan_in, max_size=fan_in)
    if data.draw(st.booleans()):
        row_of = row_of.map(sorted)
    value = st.sampled_from([0.0, 0.0, -0.0, 1.0, -2.5])
    kept = st.lists(value, min_size=fan_in, max_size=fan_in)
    indices = data.draw(st.lists(row_of, min_size=active, max_size=active))
    values = data.draw(st.lists(kept, min_size=active, max_size=active))
    rows = sorted(data.draw(st.lists(st.integers(-1, 6), min_size=active, max_size=active)))
    layer = replace(
        LAYER,
        indices=np.array(indices, np.int32).reshape(active, fan_in),
        values=np.array(values, np.float32).reshape(active, fan_in),
        rows=np.array(rows, np.int32),
    )
    spec = spec_of(layer)
    x = layer.x(2)
    if is_sound(layer.values, layer.indices, layer.rows):
        assert_close(run(open_session(spec.build()), X=x), layer, x)
    else:
        with pytest.raises(Exception, match=NODE):
            open_session(spec.build())


def test_no_malformed_model_or_input_crashes_the_process():
    files = [str(Path(__file__).with_name(f"{name}.py")) for name in SUITE]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files, "-k", "is_refused"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
