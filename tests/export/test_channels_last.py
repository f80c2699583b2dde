"""Quantized convolutions pass their channels last to each other, and to nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from fanin.export import convert, lowering
from fanin.export.passes.channels_last import ChannelsLastPass

from .onnx_models import node_types, run
from .quantized_models import dequantize, grid, int8, node, quantize, scales, write


def conv(name: str, x: str, y: str, shape: tuple[int, ...], **attributes):
    """A QLinearConv and its constants; scale and zero point of Y are those of ``name``."""
    inputs = [x, "x_scale", "x_zero", f"{name}_w", f"{name}_w_scale", f"{name}_w_zero"]
    arrays = {
        f"{name}_w": int8(shape, 0.8, seed=len(name)),
        f"{name}_w_scale": 5 * scales(shape[0]),
        f"{name}_w_zero": np.zeros(shape[0], np.int8),
    }
    return node("QLinearConv", [*inputs, "x_scale", "x_zero"], y, **attributes), arrays


def chain(path: Path, axes: int = 2) -> Path:
    """a feeds b and, dequantized, the first output; b feeds c, which is the second one."""
    kernel, pads = (3,) * axes, [1] * (2 * axes)
    a, a_arrays = conv("a", "x", "p", (16, 8, *kernel), pads=pads)
    b, b_arrays = conv("bb", "p", "q", (16, 16, *kernel), pads=pads, strides=[2] * axes)
    c, c_arrays = conv("ccc", "q", "y", (12, 16, *((1,) * axes)))
    arrays = {**grid("x", 0.03, 120), **a_arrays, **b_arrays, **c_arrays}
    nodes = [a, dequantize("p", "z", "x"), b, c]
    write(
        path,
        nodes,
        arrays,
        x=("batch", 8, *(9, 7)[:axes]),
        x_type=TensorProto.UINT8,
        y_type=TensorProto.UINT8,
    )
    model = onnx.load(path)
    port = onnx.helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    port.type.tensor_type.shape.SetInParent()
    for size in ("batch", 16, *(9, 7)[:axes]):
        dim = port.type.tensor_type.shape.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
        else:
            dim.dim_param = size
    model.graph.output.append(port)
    onnx.save(model, path)
    return path


def write_bytes(path: Path, nodes, arrays) -> Path:
    """A model from x to y, images of uint8 with a grid each."""
    return write(
        path,
        nodes,
        {**grid("x", 0.03, 120), **grid("y", 0.1, 100), **arrays},
        x=("batch", 8, 9, 7),
        x_type=TensorProto.UINT8,
        y_type=TensorProto.UINT8,
    )


def flags(path: Path) -> list[int]:
    return [
        attribute.i
        for n in onnx.load(path).graph.node
        for attribute in n.attribute
        if attribute.name == "channels_last"
    ]


@pytest.mark.parametrize("axes", [1, 2])
def test_values_between_convolutions_are_not_turned(tmp_path: Path, axes: int):
    source = chain(tmp_path / "in.onnx", axes)
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    types = node_types(tmp_path / "out.onnx")
    assert types.count("QLinearCondensedConv") == 3
    assert flags(tmp_path / "out.onnx") == [1, 1, 1]
    # X, and what leaves the chain: p for the DequantizeLinear, y.
    assert types.count("Transpose") == 3
    assert all(check.checked == check.layers == 3 for check in report.layer_checks)
    graph = onnx.load(tmp_path / "out.onnx").graph
    assert [port.name for port in graph.output] == ["y", "z"]
    x = np.random.default_rng(3).integers(0, 256, (2, 8, *(9, 7)[:axes])).astype(np.uint8)
    expected = run(source, x=x)
    for library in (False, True):
        for actual, wanted in zip(
            run(tmp_path / "out.onnx", library=library, x=x), expected, strict=True
        ):
            np.testing.assert_array_equal(actual, wanted)


def test_file_is_the_same_model_without_the_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = chain(tmp_path / "in.onnx")
    convert(source, tmp_path / "last.onnx", policy="condensed")
    unchanged = lambda self, model: ir.passes.PassResult(model, modified=False)  # noqa: ARG005, E731
    monkeypatch.setattr(ChannelsLastPass, "call", unchanged)
    assert lowering.ChannelsLastPass is ChannelsLastPass
    convert(source, tmp_path / "first.onnx", policy="condensed")
    assert flags(tmp_path / "first.onnx") == [0, 0, 0]
    x = np.random.default_rng(3).integers(0, 256, (2, 8, 9, 7)).astype(np.uint8)
    for library in (False, True):
        both = (run(tmp_path / f"{n}.onnx", library=library, x=x) for n in ("first", "last"))
        for first, last in zip(*both, strict=True):
            np.testing.assert_array_equal(first, last)


def test_convolutions_that_are_turned_already_stay_so(tmp_path: Path):
    source, once, twice = (tmp_path / f"{name}.onnx" for name in ("in", "once", "twice"))
    # 8 channels of 8 x 8: a second turn would fit the shapes.
    nodes, arrays = [], grid("x", 0.03, 120)
    for name, x, y in (("a", "x", "p"), ("bb", "p", "y")):
        one, constants = conv(name, x, y, (8, 8, 3, 3), pads=[1] * 4)
        nodes.append(one)
        arrays |= constants
    image = {"x": (1, 8, 8, 8), "x_type": TensorProto.UINT8, "y_type": TensorProto.UINT8}
    write(source, nodes, arrays, **image)
    convert(source, once, policy="condensed")
    convert(once, twice, policy="condensed", verify=False)
    assert node_types(twice) == node_types(once)
    assert flags(twice) == [1, 1]
    assert_same_outputs(source, twice, (1, 8, 8, 8))


def test_residual_of_another_convolution_is_not_turned(tmp_path: Path):
    """x -> a, x -> b with a's output as residual: a QDQ graph in which the sum is fused."""
    arrays = {**grid("x", 0.03, 120), **grid("y", 0.1, 100)}
    nodes = [dequantize("x", "xd", "x")]
    for name, relu in (("a", "ra"), ("b", None)):
        arrays |= {
            f"{name}": int8((16, 8, 3, 3), 0.8, seed=ord(name)),
            f"{name}_scale": 2 * scales(16),
            f"{name}_zero": np.zeros(16, np.int8),
        }
        nodes.append(dequantize(name, f"{name}d", name, axis=0))
        nodes.append(node("Conv", ["xd", f"{name}d"], f"h{name}", pads=[1, 1, 1, 1]))
        if relu:
            nodes.append(node("QuantizeLinear", [f"h{name}", "y_scale", "y_zero"], f"q{name}"))
            nodes.append(dequantize(f"q{name}", f"r{name}", "y"))
    nodes.append(node("Add", ["hb", "ra"], "s"))
    nodes.append(node("QuantizeLinear", ["s", "y_scale", "y_zero"], "y"))
    source = write(
        tmp_path / "in.onnx",
        nodes,
        arrays,
        x=("batch", 8, 6, 5),
        x_type=TensorProto.UINT8,
        y_type=TensorProto.UINT8,
    )
    report = convert(source, tmp_path / "out.onnx", policy="condensed")
    types = node_types(tmp_path / "out.onnx")
    assert sorted(types) == ["QLinearCondensedConv"] * 2 + ["Transpose"] * 2
    assert all(check.checked == 2 for check in report.layer_checks)
    x = np.random.default_rng(3).integers(0, 256, (2, 8, 6, 5)).astype(np.uint8)
    (expected,) = run(source, x=x)
    for library in (False, True):
        (actual,) = run(tmp_path / "out.onnx", library=library, x=x)
        assert np.abs(actual.astype(int) - expected).max() <= 1
        assert np.mean(actual != expected) < 0.01


def quantized_conv(name: str, x: str, y: str, like: str, shape: tuple[int, ...], **attributes):
    """The QDQ form of a convolution from the float ``x`` to the float ``y``."""
    arrays = {
        f"{name}_w": int8(shape, 0.8, seed=len(name)),
        f"{name}_w_scale": 3 * scales(shape[0]),
        f"{name}_w_zero": np.zeros(shape[0], np.int8),
    }
    nodes = [
        dequantize(f"{name}_w", f"{name}_wd", f"{name}_w", axis=0),
        node("Conv", [x, f"{name}_wd"], f"{name}_y", **attributes),
        quantize(f"{name}_y", f"{name}_q", like),
        dequantize(f"{name}_q", y, like),
    ]
    return nodes, arrays


def sum_of_two(path: Path) -> Path:
    """Two convolutions, their gated sum, which a third one and the output z read.

    Each is quantized before the sum, as ONNX Runtime's quantizer writes it, so nothing is fused.
    """
    a, a_arrays = quantized_conv("a", "xd", "ad", "y", (16, 8, 3, 3), pads=[1] * 4)
    b, b_arrays = quantized_conv("bb", "xd", "bd", "y", (16, 8, 1, 1))
    c, c_arrays = quantized_conv("ccc", "rd", "yd", "y", (12, 16, 1, 1))
    nodes = [
        dequantize("x", "xd", "x"),
        *a,
        *b,
        node("Add", ["ad", "bd"], "s"),
        node("HardSigmoid", ["s"], "h"),
        node("Mul", ["s", "h"], "m"),
        node("Mul", ["m", "half"], "r"),
        quantize("r", "rq", "y"),
        dequantize("rq", "rd", "y"),
        *c,
    ]
    arrays = {**grid("x", 0.03, 120), **grid("y", 0.1, 100), "half": np.float32(0.5)}
    nodes[-1] = node("Identity", ["ccc_q"], "y")
    return write(
        path,
        nodes,
        {**arrays, **a_arrays, **b_arrays, **c_arrays},
        x=("batch", 8, 9, 7),
        x_type=TensorProto.UINT8,
        y_type=TensorProto.UINT8,
    )


def assert_same_outputs(source: Path, converted: Path, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(3).integers(0, 256, shape).astype(np.uint8)
    expected = run(source, x=x)
    for library in (False, True):
        for actual, wanted in zip(run(converted, library=library, x=x), expected, strict=True):
            assert np.abs(actual.astype(float) - wanted).max() <= 1
            assert np.mean(actual != wanted) < 0.01


def test_a_sum_between_convolutions_is_computed_in_their_order(tmp_path: Path):
    source = sum_of_two(tmp_path / "in.onnx")
    convert(source, tmp_path / "out.onnx", policy="condensed")
    types = node_types(tmp_path / "out.onnx")
    assert types.count("QLinearCondensedConv") == 3
    assert flags(tmp_path / "out.onnx") == [1, 1, 1]
    assert types.count("Transpose") == 2  # of x and of y
    assert_same_outputs(source, tmp_path / "out.onnx", (2, 8, 9, 7))


def test_what_else_reads_a_sum_gets_it_with_channels_first(tmp_path: Path):
    source = sum_of_two(tmp_path / "in.onnx")
    model = onnx.load(source)
    flatten = onnx.helper.make_node("Flatten", ["rd"], ["z"], name="flatten")
    first = next(i for i, n in enumerate(model.graph.node) if n.output[0] == "rd")
    model.graph.node.insert(first + 1, flatten)
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 16 * 63])
    )
    onnx.save(model, source)
    convert(source, tmp_path / "out.onnx", policy="condensed")
    types = node_types(tmp_path / "out.onnx")
    assert flags(tmp_path / "out.onnx") == [1, 1, 1]
    assert types.count("Transpose") == 3
    assert_same_outputs(source, tmp_path / "out.onnx", (2, 8, 9, 7))


def test_floats_that_only_a_lone_convolution_reads_stay(tmp_path: Path):
    """x and u come from outside and the sum goes to one convolution: one Transpose more or less."""
    a, arrays = quantized_conv("a", "rd", "yd", "y", (16, 8, 3, 3))
    a[-1] = node("Identity", ["a_q"], "y")
    nodes = [
        dequantize("x", "xd", "x"),
        node("Relu", ["xd"], "r"),
        quantize("r", "rq", "x"),
        dequantize("rq", "rd", "x"),
        *a,
    ]
    source = write_bytes(tmp_path / "in.onnx", nodes, arrays)
    convert(source, tmp_path / "out.onnx", policy="condensed")
    assert flags(tmp_path / "out.onnx") == [0]
    assert "Transpose" not in node_types(tmp_path / "out.onnx")
    assert_same_outputs(source, tmp_path / "out.onnx", (2, 8, 9, 7))


@pytest.mark.parametrize("after", ["MaxPool", "Conv"])
def test_a_convolution_beside_a_quantized_node_of_the_runtime_is_turned(tmp_path: Path, after: str):
    a, arrays = quantized_conv("a", "xd", "ad", "y", (16, 8, 3, 3))
    if after == "MaxPool":
        nodes = [*a, node("MaxPool", ["ad"], "p", kernel_shape=[2, 2])]
    else:  # with dense weights, in ONNX Runtime's kernel
        b, b_arrays = quantized_conv("bb", "ad", "bd", "y", (6, 16, 1, 1))
        b_arrays["bb_w"][:] = np.where(b_arrays["bb_w"] == 0, 3, b_arrays["bb_w"])
        arrays |= b_arrays
        nodes = [*a, *b[:2], node("Identity", ["bb_y"], "p")]
    nodes = [dequantize("x", "xd", "x"), *nodes, quantize("p", "y", "y")]
    source = write_bytes(tmp_path / "in.onnx", nodes, arrays)
    convert(source, tmp_path / "out.onnx", policy="condensed")
    assert flags(tmp_path / "out.onnx") == [1]
    assert node_types(tmp_path / "out.onnx").count("Transpose") == 2
    assert_same_outputs(source, tmp_path / "out.onnx", (2, 8, 9, 7))


def test_convolution_without_neighbors_stays(tmp_path: Path):
    a, arrays = conv("a", "x", "y", (16, 8, 3, 3))
    source = write(
        tmp_path / "in.onnx",
        [a],
        {**grid("x", 0.03, 120), **arrays},
        x=("batch", 8, 9, 7),
        x_type=TensorProto.UINT8,
        y_type=TensorProto.UINT8,
    )
    convert(source, tmp_path / "out.onnx", policy="condensed")
    assert node_types(tmp_path / "out.onnx") == ["QLinearCondensedConv"]
    assert flags(tmp_path / "out.onnx") == [0]


def pooled(path: Path, kind: type, form: str, other_scale: bool = False, **attributes) -> Path:
    """Convolution, MaxPool, convolution; the pool between a pair of nodes, or on integers."""
    element = TensorProto.UINT8 if kind is np.uint8 else TensorProto.INT8
    a, a_arrays = conv("a", "x", "p", (16, 8, 3, 3), pads=[1] * 4)
    b, b_arrays = conv("bb", "m", "y", (12, 16, 1, 1))
    if form == "QDQ":
        after = "other" if other_scale else "x"
        nodes = [
            a,
            dequantize("p", "f", "x"),
            node("MaxPool", ["f"], "g", **attributes),
            quantize("g", "m", after),
            b,
        ]
    else:
        nodes = [a, node("MaxPool", ["p"], "m", **attributes), b]
    arrays = {**grid("x", 0.03, 100, np.dtype(kind).name), **a_arrays, **b_arrays}
    if other_scale:
        arrays |= grid("other", 0.05, 100, np.dtype(kind).name)
    write(path, nodes, arrays, x=("batch", 8, 9, 7), x_type=element, y_type=element)
    return path


POOLS = {
    "plain": {"kernel_shape": [2, 2]},
    "of ResNet": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4},
    "ceil": {"kernel_shape": [2, 3], "strides": [2, 2], "ceil_mode": 1},
    "dilated": {"kernel_shape": [2, 2], "dilations": [2, 1]},
    "same": {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
}


@pytest.mark.parametrize("form", ["QDQ", "integers"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("case", POOLS)
def test_pool_between_convolutions_has_channels_last(tmp_path: Path, case: str, kind, form: str):
    source = pooled(tmp_path / "in.onnx", kind, form, **POOLS[case])
    convert(source, tmp_path / "out.onnx", policy="condensed")
    types = node_types(tmp_path / "out.onnx")
    assert types.count("NhwcMaxPool") == 1
    assert types.count("Transpose") == 2
    limits = np.iinfo(kind)
    x = np.random.default_rng(0).integers(limits.min, limits.max + 1, (3, 8, 9, 7)).astype(kind)
    for library in (False, True):
        (wanted,), (got,) = (
            run(path, x=x, library=library and path.name == "out.onnx")
            for path in (source, tmp_path / "out.onnx")
        )
        np.testing.assert_array_equal(got, wanted)


def test_pool_into_another_scale_stays(tmp_path: Path):
    source = pooled(tmp_path / "in.onnx", np.uint8, "QDQ", other_scale=True, kernel_shape=[2, 2])
    convert(source, tmp_path / "out.onnx", policy="condensed")
    assert "MaxPool" in node_types(tmp_path / "out.onnx")
