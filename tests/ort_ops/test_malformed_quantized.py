"""Models and inputs that break the contract of the ops on 8-bit integers are refused with why.

Faults of constants are found at session creation, those of other inputs at the run, after which the
session stays usable.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from fanin.ort_ops.contract import MAX_MULTIPLIER, MAX_QUANTIZED_FAN_IN, QUANTIZED_OPS

from ._models import NODE, open_session, run
from ._quantized import (
    DYNAMIC,
    GEOMETRIES,
    QLINEAR_CONV,
    QLINEAR_GEMM,
    TO_FLOAT,
    Node,
    random_node,
)

SOUND = {
    op: random_node(
        op,
        3,
        x_type=np.uint8,
        y_type=np.int8,
        geometry=GEOMETRIES[1],
        residual=True,
        in_features=12,
        outputs=7,
        fan_in=4,
        clip=(-1.0, 2.0),
    )
    for op in QUANTIZED_OPS
}
for op, node in SOUND.items():
    SOUND[op] = node.having(indices=node.arrays["indices"].astype(np.int32))
every_op = pytest.mark.parametrize("op", QUANTIZED_OPS)
INF, NAN = float("inf"), float("nan")
OUTPUTS = 7
WIDE = MAX_QUANTIZED_FAN_IN + 1


def scales(**changed: float) -> np.ndarray:
    """A scale for each output, some of them replaced: ``at_3=0.0``."""
    array = np.full(OUTPUTS, 0.02, np.float32)
    for place, value in changed.items():
        array[int(place.removeprefix("at_"))] = value
    return array


def with_index(node: Node, at: tuple[int, int], value: int) -> np.ndarray:
    array = node.arrays["indices"].copy()
    array[at] = value
    return array


# Of constants at creation, and of the same inputs at a run.
SCALES = {
    "x_scale": (QLINEAR_GEMM, QLINEAR_CONV, TO_FLOAT),
    "y_scale": (QLINEAR_GEMM, QLINEAR_CONV),
    "residual_scale": (QLINEAR_GEMM, QLINEAR_CONV),
}
FAULTS: list[tuple[str, str, np.ndarray, str]] = [
    *(
        (op, name, np.float32(value), rf"{name} is {text}, a scale must be positive, finite")
        for name, ops in SCALES.items()
        for op in ops
        for value, text in (
            (0.0, "0"),
            (-0.5, "-0.5"),
            (NAN, "-?nan"),
            (INF, "inf"),
            (1e-40, "9.99995e-41"),
        )
    ),
    *(
        (op, "values_scale", scales(at_3=value), rf"values_scale\[3\] is {text}, a scale must be")
        for op in QUANTIZED_OPS
        for value, text in ((0.0, "0"), (NAN, "-?nan"), (-INF, "-inf"))
    ),
    *(
        (op, "values_scale", np.zeros(1, np.float32), r"values_scale is 0, a scale must be")
        for op in QUANTIZED_OPS
    ),
    (QLINEAR_GEMM, "y_scale", np.float32(1e-37), r"x_scale \* values_scale.* is .*e\+.*2\^96"),
    (QLINEAR_CONV, "x_scale", np.float32(1e37), r"x_scale \* values_scale.* / y_scale.*2\^96"),
    (QLINEAR_GEMM, "values_scale", scales(at_5=3e38), r"x_scale \* values_scale\[5\] / y_scale"),
    (QLINEAR_GEMM, "residual_scale", np.float32(1e38), r"residual_scale / y_scale is .*2\^96"),
]


@pytest.mark.parametrize(("op", "name", "value", "reason"), FAULTS)
def test_a_scale_out_of_range_is_refused_at_creation_or_at_the_run(op, name, value, reason):
    bad = SOUND[op].having(**{name: value})
    refused(bad, rf"{op} node '{NODE}': {reason}")
    refused_at_run(op, bad, name, rf"{op} node '{NODE}': {reason}")


@pytest.mark.parametrize("op", [QLINEAR_GEMM, QLINEAR_CONV])
def test_the_largest_multiplier_is_the_contracts(op):
    unit = np.ones(1, np.float32)
    node = SOUND[op].having(x_scale=unit, values_scale=unit, residual_scale=np.float32(1e-20))
    limit = np.float32(1 / MAX_MULTIPLIER)
    refused(node.having(y_scale=limit), r"x_scale \* values_scale / y_scale is 7.92282e\+28")
    below = node.having(y_scale=np.nextafter(limit, np.float32(1)))
    session = open_session(below.build())
    np.testing.assert_array_equal(run(session, **below.feeds()), below.expected())


def test_products_of_scales_must_be_finite_where_y_is_float():
    bad = SOUND[TO_FLOAT].having(x_scale=np.float32(1e30), values_scale=scales(at_2=1e30))
    refused(bad, r"x_scale \* values_scale\[2\] is inf, it must be finite")


SHAPES: list[tuple[str, str, tuple[int, ...], str]] = [
    (QLINEAR_GEMM, "x_scale", (2,), r"x_scale has shape \[2\], it must be a scalar or \[1\]"),
    (QLINEAR_GEMM, "x_zero_point", (0,), r"x_zero_point has shape \[0\]"),
    (QLINEAR_CONV, "y_scale", (1, 1), r"y_scale has shape \[1, 1\]"),
    (QLINEAR_CONV, "y_zero_point", (7,), r"y_zero_point has shape \[7\]"),
    (QLINEAR_GEMM, "residual_scale", (3,), r"residual_scale has shape \[3\]"),
    (QLINEAR_GEMM, "residual_zero_point", (2,), r"residual_zero_point has shape \[2\]"),
    (
        QLINEAR_GEMM,
        "values_scale",
        (6,),
        r"\[6\].*\[out_features\].*\[7\], or \[1\]",
    ),
    (
        QLINEAR_CONV,
        "values_scale",
        (6,),
        r"\[6\].*\[out_channels\].*\[7\], or \[1\]",
    ),
    (DYNAMIC, "values_scale", (), r"values_scale has shape \[\]"),
    (TO_FLOAT, "values_scale", (7, 1), r"values_scale has shape \[7, 1\]"),
    *((op, "bias", (6,), r"bias has shape \[6\], out_(features|channels) is 7") for op in SOUND),
    (QLINEAR_GEMM, "values", (16,), r"values has shape \[16\].*\[active, fan_in\]"),
    (QLINEAR_GEMM, "rows", (2,), r"rows has shape \[2\], it must have one entry"),
    (QLINEAR_CONV, "residual", (1, 2, 3), r"residual has shape \[1, 2, 3\]"),
    (DYNAMIC, "residual", (5, 6), r"residual has shape \[5, 6\]"),
]


@pytest.mark.parametrize(("op", "name", "shape", "reason"), SHAPES)
def test_a_wrong_shape_is_refused_at_creation_or_at_the_run(op, name, shape, reason):
    array = SOUND[op].arrays[name]
    bad = SOUND[op].having(**{name: np.resize(array, shape).astype(array.dtype)})
    refused(bad, reason)
    refused_at_run(op, bad, name, reason)


@every_op
def test_weights_that_break_the_format_are_refused_at_creation_or_at_the_run(op):
    sound = SOUND[op]
    for name, array, reason in (
        ("indices", with_index(sound, (1, 0), -1), r"indices\[1, 0\] is -1, in_features is"),
        ("indices", with_index(sound, (2, 3), 99), r"indices\[2, 3\] is 99, in_features is"),
        ("rows", sound.arrays["rows"] * 0, r"rows\[1\] is 0 after 0, rows must increase"),
        ("rows", sound.arrays["rows"] + 7, r"rows\[\d\] is \d+, out_features is 7"),
    ):
        bad = sound.having(**{name: array})
        refused(bad, reason)
        refused_at_run(op, bad, name, reason)


@pytest.mark.parametrize("op", [QLINEAR_GEMM, TO_FLOAT, DYNAMIC])
def test_a_fan_in_whose_sums_leave_int32_is_refused(op):
    node = random_node(op, 1, in_features=WIDE, outputs=2, fan_in=1, leading=(1,), residual=False)
    bad = node.having(
        values=np.zeros((1, WIDE), np.int8),
        indices=np.arange(WIDE, dtype=np.int32)[None],
        rows=np.zeros(1, np.int32),
    )
    reason = r"fan-in is 65794, it must be 65793 at most, so that every sum fits int32"
    refused(bad, reason)
    refused_at_run(op, bad, "values", reason)


@pytest.mark.parametrize("op", [QLINEAR_GEMM, QLINEAR_CONV])
def test_a_residual_for_none_holds_0_and_has_the_zero_point_0(op):
    none = SOUND[op].having(residual=np.zeros(1, np.int8), residual_zero_point=np.int8(0))
    np.testing.assert_array_equal(run(open_session(none.build()), **none.feeds()), none.expected())
    one = none.having(residual=np.ones(1, np.int8))
    shifted = none.having(residual_zero_point=np.int8(3))
    for bad, name, reason in (
        (one, "residual", r"residual has shape \[1\] and holds 1; .* must hold 0"),
        (shifted, "residual_zero_point", r"residual_zero_point is 3, it must be 0 then"),
    ):
        refused(bad, reason)
        refused_at_run(op, bad, name, reason)


def test_a_float_residual_for_none_holds_0():
    for op in (TO_FLOAT, DYNAMIC):
        bad = SOUND[op].having(residual=np.full(1, 0.5, np.float32))
        refused(bad, r"residual has shape \[1\] and holds 0.5; .* must hold 0")


ATTRIBUTES = [
    (QLINEAR_GEMM, {"in_features": 0}, r"attribute in_features is 0, it must be 1 to"),
    (QLINEAR_GEMM, {"clip_min": 3.0}, r"clip_min is 3, more than clip_max, which is 2"),
    (QLINEAR_CONV, {"clip_max": NAN}, r"clip_max is NaN"),
    (QLINEAR_CONV, {"channels_last": 2}, r"channels_last is 2, it must be 0 or 1"),
    (QLINEAR_CONV, {"channels_last": 1.0}, r"channels_last must be an INT"),
    (QLINEAR_CONV, {"strides": [1]}, r"strides has 1 numbers"),
    (QLINEAR_CONV, {"group": 3}, r"in_channels.*group"),
    (DYNAMIC, {"per_row": -1}, r"per_row is -1, it must be 0 or 1"),
    (DYNAMIC, {"per_row": "yes"}, r"per_row must be an INT"),
]


@pytest.mark.parametrize(("op", "changes", "reason"), ATTRIBUTES)
def test_a_wrong_attribute_is_refused(op, changes, reason):
    refused(SOUND[op].having(**changes), reason)


@pytest.mark.parametrize("op", [QLINEAR_CONV])
def test_images_that_do_not_fit_are_refused_in_both_orders(op):
    for flag, shape in ((0, r"\[N, in_channels, H, W\]"), (1, r"\[N, H, W, in_channels\]")):
        sound = random_node(op, 2, geometry=GEOMETRIES[0], channels_last=flag, residual=False)
        session = open_session(sound.build(x_shape=["n", "a", "b", "c"]))
        with pytest.raises(Exception, match=rf"X has shape \[2, 3, 3, 3\], it must be {shape}"):
            run(session, X=sound.x.ravel()[:54].reshape(2, 3, 3, 3))
        small = (1, 0, 2, 6) if flag else (1, 6, 0, 2)
        axis = 1 if flag else 2
        fits = sound.having(X=np.zeros(small, sound.x.dtype))
        np.testing.assert_array_equal(run(session, **fits.feeds()), fits.expected())
        geometry = random_node(op, 2, geometry=GEOMETRIES[1], channels_last=flag, residual=False)
        session = open_session(geometry.build(x_shape=["n", "a", "b", "c"]))
        empty = (1, 0, 2, 5) if flag else (1, 5, 0, 2)
        with pytest.raises(Exception, match=rf"dimension {axis} with its pads is 0 long"):
            run(session, X=np.zeros(empty, geometry.x.dtype))
        np.testing.assert_array_equal(run(session, **geometry.feeds()), geometry.expected())


TYPES = [
    (QLINEAR_GEMM, "x_zero_point", np.int8),
    (QLINEAR_GEMM, "residual", np.uint8),
    (QLINEAR_GEMM, "residual_zero_point", np.uint8),
    (QLINEAR_GEMM, "bias", np.float32),
    (QLINEAR_GEMM, "values", np.uint8),
    (QLINEAR_CONV, "values", np.float32),
    (QLINEAR_CONV, "indices", np.int64),
    (TO_FLOAT, "bias", np.int32),
    (TO_FLOAT, "x_scale", np.float64),
    (DYNAMIC, "residual", np.int8),
    (DYNAMIC, "X", np.float16),
]


@pytest.mark.parametrize(("op", "name", "dtype"), TYPES)
def test_a_wrong_type_is_refused(op, name, dtype):
    bad = SOUND[op].having(**{name: SOUND[op].arrays[name].astype(dtype)})
    refused(bad, f"{op}|{NODE}")


@every_op
def test_missing_inputs_are_refused(op):
    model = SOUND[op].build()
    model.graph.node[0].input.pop()
    with pytest.raises(Exception, match=f"{NODE}|{op}"):
        open_session(model)


def test_a_y_of_another_type_than_its_zero_point_is_refused():
    model = SOUND[QLINEAR_GEMM].build()
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("Y", TensorProto.UINT8, ["n", OUTPUTS])
    )
    with pytest.raises(Exception, match="Type"):
        open_session(model)


def test_a_batch_other_than_the_declared_one_is_refused():
    node = SOUND[TO_FLOAT].having(residual=np.zeros(1, np.float32))
    session = open_session(node.build(x_shape=("batch", 12)))
    other = node.having(X=node.x[:2])
    np.testing.assert_array_equal(run(session, **other.feeds()), other.expected())
    with pytest.raises(Exception, match=r"X has shape \[5, 11\], its last dimension must be"):
        run(open_session(node.build()), X=node.x[:, :11].copy())


def refused(node: Node, reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        open_session(node.build())


def refused_at_run(op: str, bad: Node, name: str, reason: str) -> None:
    """Feed the input to a session, which must refuse it and then serve the sound one."""
    fed = {"X", name, *({"indices"} if name == "values" else ())}
    sound = SOUND[op]
    if bad.attributes != sound.attributes:
        sound = None
    session = open_session(bad.build(fed=tuple(fed), declared=False))
    with pytest.raises(Exception, match=reason):
        run(session, **{key: bad.arrays[key] for key in fed})
    if sound is not None and bad.arrays["residual"].shape == sound.arrays["residual"].shape:
        got = run(session, **{key: sound.arrays[key] for key in fed})
        np.testing.assert_array_equal(got, sound.expected())
