"""Convolutions that break the operator's contract are refused with the reason."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from fanin.ort_ops.format.conv_geometry import ConvGeometry

from ._conv_models import ConvLayer, assert_conv_close, conv_spec
from ._models import INPUTS, NODE, Spec, open_session, run

# A receptive field of 27 positions, 6 outputs in 2 groups.
GEOMETRY = ConvGeometry(6, 6, (3, 3), strides=(2, 1), pads=(1, 0, 0, 1), group=2)
LAYER = ConvLayer.random(GEOMETRY, 4, active=4)
SOUND = conv_spec(LAYER)
LINE = ConvLayer.random(ConvGeometry(3, 4, (3,), pads=(1, 1)), 4)
SOUND_LINE = conv_spec(LINE)
NAN = float("nan")
HUGE = 2**31


def attributes(**changes) -> Spec:
    return SOUND.with_attributes(**changes)


def changed(name: str, at: tuple[int, ...] | int, value: float) -> Spec:
    array = LAYER.weights[name].copy()
    if value < 0 and array.dtype == np.uint16:
        array = array.astype(np.int32)
    array[at] = value
    return SOUND.with_arrays(**{name: array})


def cast(name: str, dtype: type) -> Spec:
    return SOUND.with_arrays(**{name: SOUND.arrays[name].astype(dtype)})


def reshaped(name: str, *shape: int) -> Spec:
    return SOUND.with_arrays(**{name: np.resize(SOUND.arrays[name], shape)})


def x_of(*shape: int | str) -> Spec:
    return replace(SOUND, x_shape=shape)


MODELS: dict[str, tuple[Spec, str]] = {
    # attributes that are missing or of a different type
    **{
        f"{name}-missing": (attributes(**{name: None}), rf"{name} is missing")
        for name in ("strides", "pads", "dilations", "kernel_shape")
    },
    **{
        f"{name}-missing": (attributes(**{name: None}), rf"{name} is missing")
        for name in ("group", "in_channels", "out_channels")
    },
    **{
        f"{name}-int": (attributes(**{name: 3}), rf"{name} must be a list of INT")
        for name in ("strides", "pads", "dilations", "kernel_shape")
    },
    **{
        f"{name}-floats": (attributes(**{name: [1.0, 1.0]}), rf"{name} must be a list of INT")
        for name in ("strides", "pads", "dilations", "kernel_shape")
    },
    "group-list": (attributes(group=[2]), r"group must be an INT"),
    "in-channels-float": (attributes(in_channels=6.0), r"in_channels must be an INT"),
    "clip-min-int": (attributes(clip_min=0), r"clip_min must be a FLOAT"),
    "clip-max-nan": (attributes(clip_max=NAN), r"clip_max is NaN"),
    "clip-min-above-max": (attributes(clip_min=6.0, clip_max=0.5), r"clip_min is 6.*clip_max"),
    "gate-scale-int": (attributes(gate_scale=1), r"gate_scale must be a FLOAT"),
    "gate-scale-nan": (attributes(gate_scale=NAN), r"gate_scale is not finite"),
    "gate-shift-inf": (attributes(gate_shift=math.inf), r"gate_shift is not finite"),
    # wrong length
    "kernel-of-three": (attributes(kernel_shape=[3, 3, 3]), r"kernel_shape has 3.*one or two"),
    "kernel-of-one": (attributes(kernel_shape=[3]), r"strides has 2.*must have 1"),
    "strides-of-one": (attributes(strides=[1]), r"strides has 1 numbers.*must have 2"),
    "strides-of-three": (attributes(strides=[1, 1, 1]), r"strides has 3 numbers.*must have 2"),
    "dilations-of-one": (attributes(dilations=[1]), r"dilations has 1 numbers.*must have 2"),
    "pads-of-two": (attributes(pads=[1, 1]), r"pads has 2 numbers.*must have 4"),
    "pads-of-many": (attributes(pads=[0] * 100_000), r"pads has 100000 numbers.*must have 4"),
    "line-pads-of-four": (
        SOUND_LINE.with_attributes(pads=[1, 1, 1, 1]),
        r"pads has 4 numbers.*must have 2",
    ),
    # out of range
    "kernel-0": (attributes(kernel_shape=[3, 0]), r"kernel_shape\[1\] is 0.*1 to"),
    "kernel-negative": (attributes(kernel_shape=[-3, 3]), r"kernel_shape\[0\] is -3"),
    "kernel-huge": (attributes(kernel_shape=[HUGE, 3]), r"kernel_shape\[0\] is 2147483648"),
    "window-huge": (
        attributes(kernel_shape=[HUGE - 1] * 2),
        r"window of 3 channels.*more than 2147483647",
    ),
    "window-over": (
        attributes(kernel_shape=[1 << 15, 1 << 15]),
        r"window of 3 channels.*more than 2147",
    ),
    "stride-0": (attributes(strides=[0, 1]), r"strides\[0\] is 0.*1 to"),
    "stride-negative": (attributes(strides=[1, -1]), r"strides\[1\] is -1"),
    "stride-huge": (attributes(strides=[1, 2**62]), r"strides\[1\] is 4611686018427387904"),
    "dilation-0": (attributes(dilations=[1, 0]), r"dilations\[1\] is 0"),
    "dilation-negative": (attributes(dilations=[-(2**63), 1]), r"dilations\[0\] is -92233720"),
    "dilation-huge": (attributes(dilations=[HUGE, 1]), r"dilations\[0\] is 2147483648"),
    "pad-negative": (attributes(pads=[0, 0, 0, -1]), r"pads\[3\] is -1.*0 to"),
    "pad-huge": (attributes(pads=[0, HUGE, 0, 0]), r"pads\[1\] is 2147483648"),
    "group-0": (attributes(group=0), r"group is 0"),
    "group-negative": (attributes(group=-2), r"group is -2"),
    "group-not-of-in": (attributes(group=4), r"in_channels is 6, not a multiple of group 4"),
    "group-not-of-out": (
        attributes(group=6, out_channels=7),
        r"out_channels is 7, not a multiple of group 6",
    ),
    "in-channels-0": (attributes(in_channels=0), r"in_channels is 0"),
    "in-channels-huge": (attributes(in_channels=HUGE, group=1), r"in_channels is 2147483648"),
    "out-channels-0": (attributes(out_channels=0), r"out_channels is 0"),
    "out-channels-negative": (attributes(out_channels=-6), r"out_channels is -6"),
    "out-channels-more": (attributes(out_channels=8), r"bias.*\[6\].*out_channels is 8"),
    "kernel-smaller": (attributes(kernel_shape=[1, 1]), r"indices\[\d, \d\].*in_features is 3"),
    # X
    "x-rank-3": (x_of("N", 6, "L"), r"X.*\[\?, 6, \?\].*\[N, in_channels, H, W\]"),
    "x-rank-5": (x_of("N", 6, "D", "H", "W"), r"X.*\[N, in_channels, H, W\]"),
    "x-channels": (x_of("N", 5, "H", "W"), r"X.*\[\?, 5, \?, \?\].*in_channels, which is 6"),
    "x-too-low": (x_of("N", 6, 1, 9), r"X.*\[\?, 6, 1, 9\]; dimension 2 with its pads is 2.*3"),
    "x-too-narrow": (x_of("N", 6, 9, 1), r"X.*; dimension 3 with its pads is 2 long.*over 3"),
    "x-huge": (x_of("N", 6, HUGE, 9), r"X.*dimension 2 is more than 2147483647"),
    "x-endless": (x_of("N", 6, 2**63 - 1, 9), r"X.*dimension 2 is more than 2147483647"),
    "x-too-large": (x_of(HUGE - 1, 6, HUGE - 1, HUGE - 1), r"X has shape.*too large"),
    "line-x-rank-4": (
        replace(SOUND_LINE, x_shape=("N", 3, "H", "W")),
        r"X.*\[N, in_channels, L\]",
    ),
    "line-x-too-short": (
        replace(SOUND_LINE.with_attributes(pads=[0, 0], dilations=[4]), x_shape=("N", 3, 8)),
        r"X.*\[\?, 3, 8\]; dimension 2 with its pads is 8 long.*over 9",
    ),
    "x-bfloat16": (replace(SOUND, x_type=TensorProto.BFLOAT16), r"bfloat16"),
    "x-double": (replace(SOUND, x_type=TensorProto.DOUBLE), r"double"),
    "x-float16-alone": (replace(SOUND, x_type=TensorProto.FLOAT16), r"CondensedConv.*inputs"),
    # weights, as for CondensedGemm
    "index-out-of-range": (changed("indices", (2, 3), 27), r"indices\[2, 3\].*27.*in_features"),
    "index-negative": (changed("indices", (1, 0), -1), r"indices\[1, 0\].*-1"),
    "indices-int64": (cast("indices", np.int64), r"indices is int64.*uint16 or int32"),
    "rows-repeated": (changed("rows", 1, LAYER.rows[0]), r"rows\[1\].*increase"),
    "rows-too-large": (changed("rows", 3, 6), r"rows\[3\].*6.*out_features"),
    "values-rank-4": (reshaped("values", 4, 1, 2, 2), r"values.*\[active, fan_in\]"),
    "values-double": (cast("values", np.float64), r"values is float64.*float32, float16 or bfl"),
    "indices-wider": (reshaped("indices", 4, 5), r"values.*\[4, 4\].*indices.*\[4, 5\]"),
    "bias-too-short": (reshaped("bias", 5), r"bias.*\[5\].*out_channels is 6"),
    "bias-rank-2": (reshaped("bias", 1, 6), r"bias.*\[1, 6\].*\[out_channels\]"),
    "rows-fewer": (reshaped("rows", 3), r"rows.*\[3\].*4 rows"),
    "fan-in-0": (
        SOUND.with_arrays(values=np.zeros((4, 0), np.float32), indices=np.zeros((4, 0), np.int32)),
        r"fan-in is 0",
    ),
    # residual
    "residual-of-channels": (
        SOUND.with_arrays(residual=np.zeros((6,), np.float32)),
        r"residual.*\[6\].*\[\?, 6, \?, \?\].*\[1\] holding 0",
    ),
    "residual-to-broadcast": (
        replace(
            SOUND.with_arrays(residual=np.zeros((1, 6, 1, 1), np.float32)), x_shape=(1, 6, 9, 9)
        ),
        r"residual.*\[1, 6, 1, 1\].*\[1, 6, 4, 8\]",
    ),
    "residual-one-nonzero": (
        SOUND.with_arrays(residual=np.ones(1, np.float32)),
        r"residual.*\[1\].*holds 1.*must hold 0",
    ),
    "fed-residual-declared-wrong": (
        replace(SOUND, fed={"residual": ("batch", 7, "h", "w")}),
        r"residual.*\[\?, 7, \?, \?\].*\[\?, 6, \?, \?\]",
    ),
    # the node itself
    "input-missing": (replace(SOUND, inputs=INPUTS[:5]), r"input size 5"),
    "input-extra": (replace(SOUND, inputs=(*INPUTS, "bias")), r"input size 7"),
    "domain-empty": (replace(SOUND, domain=""), r"No Op registered for CondensedConv"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_malformed_model_is_refused(name):
    spec, reason = MODELS[name]
    with pytest.raises(Exception, match=f"{NODE}|CondensedConv") as refusal:
        open_session(spec.build())
    assert re.search(reason, str(refusal.value), re.DOTALL), str(refusal.value)


@pytest.mark.parametrize("name", ["kernel_shape", "strides", "pads", "dilations"])
def test_an_empty_list_is_refused(name):
    model = SOUND.build()
    (attribute,) = (a for a in model.graph.node[0].attribute if a.name == name)
    attribute.ClearField("ints")
    with pytest.raises(Exception, match=rf"{NODE}.*{name} must be a list of INT, at least one"):
        open_session(model)


RUNS: dict[str, tuple[Spec, dict[str, np.ndarray], str]] = {
    "x-rank-2": (
        replace(SOUND, x_shape=None),
        {"X": np.zeros((2, 6), np.float32)},
        r"X.*\[2, 6\].*\[N, in_channels, H, W\]",
    ),
    "x-scalar": (replace(SOUND, x_shape=None), {"X": np.array(1, np.float32)}, r"X.*\[\].*in_chan"),
    "x-channels": (
        replace(SOUND, x_shape=None),
        {"X": np.zeros((2, 7, 5, 5), np.float32)},
        r"X.*\[2, 7, 5, 5\].*in_channels, which is 6",
    ),
    "x-too-low": (SOUND, {"X": LAYER.x(1, 1, 5)}, r"X.*dimension 2 with its pads is 2"),
    "x-empty": (SOUND, {"X": LAYER.x(1, 0, 5)}, r"X.*dimension 2 with its pads is 1"),
    "residual-of-another-size": (
        replace(SOUND, fed={"residual": None}),
        {"X": LAYER.x(1, 5, 5), "residual": np.zeros((1, 6, 5, 5), np.float32)},
        r"residual.*\[1, 6, 5, 5\].*\[1, 6, 2, 4\]",
    ),
    "residual-one-nonzero-empty-batch": (
        replace(SOUND, fed={"residual": None}),
        {"X": LAYER.x(0, 5, 5), "residual": np.full(1, 0.5, np.float32)},
        r"residual.*holds 0\.5.*must hold 0",
    ),
    "index-out-of-range": (
        replace(SOUND, fed={"indices": None}),
        {"X": LAYER.x(1, 5, 5), "indices": np.full((4, 4), 27, np.uint16)},
        r"indices\[0, 0\].*27",
    ),
    "index-out-of-range-empty-batch": (
        replace(SOUND, fed={"indices": None}),
        {"X": LAYER.x(0, 5, 5), "indices": np.full((4, 4), 27, np.uint16)},
        r"indices\[0, 0\].*27",
    ),
    "rows-negative": (
        replace(SOUND, fed={"rows": None}),
        {"X": LAYER.x(1, 5, 5), "rows": np.array([-1, 0, 1, 2], np.int32)},
        r"rows\[0\].*-1",
    ),
    "bias-too-short": (
        replace(SOUND, fed={"bias": None}),
        {"X": LAYER.x(1, 5, 5), "bias": np.zeros(5, np.float32)},
        r"bias.*\[5\].*out_channels is 6",
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_malformed_input_is_refused_and_the_session_stays_usable(name):
    spec, feeds, reason = RUNS[name]
    session = open_session(spec.build())
    with pytest.raises(Exception, match=NODE) as refusal:
        session.run(None, feeds)
    assert re.search(reason, str(refusal.value), re.DOTALL), str(refusal.value)

    x = LAYER.x(2, 6, 5)
    good = {name: LAYER.weights.get(name, np.zeros(1, np.float32)) for name in spec.fed}
    assert_conv_close(run(session, X=x, **good), LAYER, x)


def test_pads_that_exceed_any_memory_are_an_error():
    """An image of 2^62 zeros has few outputs if the stride is as large."""
    far = attributes(pads=[HUGE - 1] * 4, strides=[HUGE - 1] * 2)
    x = LAYER.x(1, 5, 5)
    layer = replace(
        LAYER,
        geometry=replace(GEOMETRY, pads=(HUGE - 1,) * 4, strides=(HUGE - 1,) * 2),
    )
    y = run(open_session(far.build()), X=x)
    assert y.shape == layer.y_shape(x)
    seen = np.zeros(y.shape, bool)
    seen[:, LAYER.rows] = True
    bias = np.broadcast_to(LAYER.bias[:, None, None], y.shape)
    assert np.array_equal(y[~seen], bias[~seen])
    assert np.array_equal(y[:, :, 0, 0], bias[:, :, 0, 0])

    # Without the stride, the outputs exceed any memory.
    session = open_session(attributes(pads=[HUGE - 1] * 4).build())
    with pytest.raises(Exception, match=r"CondensedConv|memory|alloc|large"):
        run(session, X=x)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_random_attributes_are_either_computed_correctly_or_refused(data):
    some = st.sampled_from([-1, 0, 1, 1, 1, 2, 3, 2**31, 2**62])
    few = st.sampled_from([0, 1, 1, 2, 2, 3])

    def several(count: int, number: st.SearchStrategy[int] = few) -> list[int]:
        return data.draw(st.lists(number, min_size=count, max_size=count))

    wild = data.draw(st.integers(0, 9)) == 0
    number = some if wild else few
    axes = data.draw(st.sampled_from([1, 2, 2, 2, 3]))
    given_attributes = {
        "kernel_shape": several(axes, number),
        "strides": several(axes, number),
        "dilations": several(axes, number),
        "pads": several(2 * axes, number),
        "group": data.draw(st.sampled_from([1, 1, 2, 3, 0])),
        "in_channels": data.draw(st.sampled_from([6, 6, 4])),
        "out_channels": data.draw(st.sampled_from([6, 6, 5])),
    }
    sizes = several(axes, st.integers(0, 6))
    x_shape = (2, given_attributes["in_channels"], *sizes)
    try:
        geometry = ConvGeometry(**given_attributes)
        if min(geometry.output_sizes(sizes)) < 1:
            raise ValueError
    except ValueError:
        spec = replace(SOUND, x_shape=x_shape, attributes=given_attributes)
        with pytest.raises(Exception, match=f"{NODE}|CondensedConv"):
            open_session(spec.build())
        return
    layer = ConvLayer.random(geometry, min(3, geometry.in_features))
    x = layer.x(2, *sizes)
    size = data.draw(st.sampled_from([None, (2, *sizes)]))
    assert_conv_close(run(open_session(conv_spec(layer, size).build()), X=x), layer, x)


def test_no_malformed_convolution_crashes_the_process():
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(Path(__file__))]
    done = subprocess.run([*command, "-k", "is_refused or beyond"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
