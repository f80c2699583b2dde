"""Verification of models that are too large to be run whole, twice, beside their source.

Above :data:`LARGE` bytes of dense weights each condensed node of the written file is run on its
own, with the library, and its stored rows without it, and compared with its weight in float64. That
takes the memory of a part of one dense layer. What the passes do to a graph is then covered by the
structural checks alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ..ort_ops import reference_quantized
from ..ort_ops.contract import (
    COMPUTE_BFLOAT16,
    CONDENSED_GEMM_INTEGER_TO_FLOAT,
    DYNAMIC_QUANTIZE_CONDENSED_GEMM,
    INPUTS,
    QLINEAR_CONDENSED_CONV,
    QLINEAR_CONDENSED_GEMM,
)
from ..ort_ops.format.condensed import CondensedWeight
from ..ort_ops.format.conv_geometry import ConvGeometry
from ..ort_ops.reference import condensed_conv, round_bfloat16
from .engines import Engine, EngineUnavailableError, engines
from .errors import ExportError
from .onnx_op import condensed_conv_model, condensed_layer_model
from .passes.nodes import (
    compute_of,
    condensed_nodes,
    constant_of,
    has_no_residual,
    is_condensed_conv,
    is_convolution,
    quantized_nodes,
    read_geometry,
    read_weight,
    residual_place,
)
from .report import ParityCheck
from .verify import RELATIVE_TOLERANCE, max_error
from .verify_quantized import layer_model

LARGE = 500_000_000
"""Bytes of dense weights from which a model is verified layer by layer."""

LAYER_BY_LAYER = f"outputs of the whole model: over {LARGE // 10**6} MB it is checked by layer"

_BATCH = 2

_BLOCK_ENTRIES = 1 << 21


def check_layers(path: Path) -> tuple[tuple[ParityCheck, ...], tuple[str, ...]]:
    """Run every condensed node of a file on its own.

    Returns:
        One check for each engine, and one line for each that did not run.

    Raises:
        ExportError: a node is off by more than rounding, by name.

    """
    model = ir.load(path)
    rng = np.random.default_rng(0)
    worst: dict[str, tuple[float, float]] = {}
    missing = {LAYER_BY_LAYER}
    for node in condensed_nodes(model):
        _check_node(node, rng, worst, missing)
        _release(node)
    for node in quantized_nodes(model):
        _check_quantized(model, node, rng, worst, missing)
        _release(node)
    checks = tuple(
        ParityCheck(f"{name}, layer by layer", (_BATCH,), *errors, RELATIVE_TOLERANCE)
        for name, errors in worst.items()
    )
    return checks, tuple(sorted(missing))


def _check_node(
    node: ir.Node,
    rng: np.random.Generator,
    worst: dict[str, tuple[float, float]],
    missing: set[str],
) -> None:
    """Run one node; keep the largest errors of each engine in `worst`, or why it is missing."""
    weight = read_weight(node)
    if weight is None or constant_of(node.inputs[0]) is not None:
        return
    geometry = read_geometry(node) if is_condensed_conv(node) else None
    x = rng.standard_normal(_x_shape(weight, geometry)).astype(np.float32)
    compute = compute_of(node)
    rounds = compute == COMPUTE_BFLOAT16
    expected = _exact(weight, geometry, round_bfloat16(x) if rounds else x)
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    for engine in engines(uses_our_ops=True):
        try:
            if engine.has_library or geometry is not None:
                actual, wanted = _run(engine, weight, geometry, x, compute), expected
            else:
                # The function makes its weight dense, several times over.
                blocks = [_run(engine, block, None, x, compute) for block in _blocks(weight)]
                actual = np.hstack(blocks)
                wanted = expected[:, weight.rows]
        except EngineUnavailableError as error:
            missing.add(f"{engine.name}: {error}")
            continue
        difference = max_error(actual, wanted)
        if not difference <= RELATIVE_TOLERANCE * scale:
            raise ExportError(
                f"node {node.name} in {engine.name} differs from its weight in float64 by "
                f"{difference:.3g} at a scale of {scale:.3g}; nothing was written"
            )
        before = worst.get(engine.name, (0.0, 0.0))
        worst[engine.name] = (
            max(before[0], difference),
            max(before[1], difference / scale),
        )


def _check_quantized(
    model: ir.Model,
    node: ir.Node,
    rng: np.random.Generator,
    worst: dict[str, tuple[float, float]],
    missing: set[str],
) -> None:
    """Run a node on 8-bit integers with the library, which gives its definition's very bits.

    Without it, its function would make the weight dense several times over.
    """
    weight = read_weight(node)
    if weight is None or constant_of(node.inputs[0]) is not None:
        return
    geometry = read_geometry(node) if is_convolution(node) else None
    feeds = _made_up(node, weight, geometry, rng)
    given = [feeds.get(position, constant_of(v)) for position, v in enumerate(node.inputs)]
    if has_no_residual(node):
        given[residual_place(node)] = None
    expected = _DEFINITIONS[node.op_type](*given, **_attributes(node))
    layer, inputs = layer_model(model, node, list(feeds.values()))
    for engine in engines(uses_our_ops=True):
        if not engine.has_library:
            continue
        try:
            (actual,) = engine.load(layer.SerializeToString())(inputs)
        except EngineUnavailableError as error:
            missing.add(f"{engine.name}: {error}")
            continue
        differing = np.count_nonzero(actual != expected)
        if actual.shape != expected.shape or differing:
            raise ExportError(
                f"node {node.name} in {engine.name} differs from its definition in {differing} "
                f"of {expected.size} entries; nothing was written"
            )
        worst.setdefault(engine.name, (0.0, 0.0))


def _made_up(
    node: ir.Node,
    weight: CondensedWeight,
    geometry: ConvGeometry | None,
    rng: np.random.Generator,
) -> dict[int, np.ndarray]:
    """Make up what a node on 8-bit integers reads at run time, by position."""
    x_shape = _x_shape(weight, geometry)
    y_shape: tuple[int, ...] = (_BATCH, weight.out_features)
    if geometry is not None:
        y_shape += geometry.output_sizes(x_shape[2:])
    shapes = {"X": x_shape, "residual": y_shape}
    feeds: dict[int, np.ndarray] = {}
    for position, (name, value) in enumerate(zip(INPUTS[node.op_type], node.inputs, strict=True)):
        if constant_of(value) is not None:
            continue
        kind = np.dtype(np.float32 if value is None or value.dtype is None else value.dtype.numpy())
        shape = shapes.get(name, ())
        if node.attributes.get_int("channels_last", 0) and shape:
            shape = (shape[0], *shape[2:], shape[1])
        if kind == np.float32:
            made = rng.standard_normal(shape) if shape else np.array(0.02)
        else:
            limits = np.iinfo(kind)
            made = rng.integers(limits.min, limits.max + 1, shape)
        feeds[position] = np.asarray(made).astype(kind)
    return feeds


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: node.attributes[name].value for name in node.attributes}


_DEFINITIONS: dict[str, Callable[..., np.ndarray]] = {
    CONDENSED_GEMM_INTEGER_TO_FLOAT: reference_quantized.condensed_gemm_integer_to_float,
    DYNAMIC_QUANTIZE_CONDENSED_GEMM: reference_quantized.dynamic_quantize_condensed_gemm,
    QLINEAR_CONDENSED_CONV: reference_quantized.qlinear_condensed_conv,
    QLINEAR_CONDENSED_GEMM: reference_quantized.qlinear_condensed_gemm,
}


def _release(node: ir.Node) -> None:
    """Unmap what a node read of the data file."""
    for value in filter(None, node.inputs):
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value.release()


def _x_shape(weight: CondensedWeight, geometry: ConvGeometry | None) -> tuple[int, ...]:
    """Choose inputs; of a convolution the smallest images with three outputs along each axis."""
    if geometry is None:
        return (_BATCH, weight.in_features)
    sizes = [
        max(1, (kernel - 1) * dilation + 1 + 2 * stride - begin - end)
        for kernel, dilation, stride, begin, end in zip(
            geometry.kernel_shape,
            geometry.dilations,
            geometry.strides,
            geometry.pads[: geometry.axes],
            geometry.pads[geometry.axes :],
            strict=True,
        )
    ]
    return (_BATCH, geometry.in_channels, *sizes)


def _run(
    engine: Engine,
    weight: CondensedWeight,
    geometry: ConvGeometry | None,
    x: np.ndarray,
    compute: int,
) -> np.ndarray:
    if geometry is None:
        model = condensed_layer_model(weight, None, compute=compute)
    else:
        model = condensed_conv_model(weight, geometry, (None, *x.shape[2:]))
    return engine.load(model.SerializeToString())({"x": x})[0]


def _exact(weight: CondensedWeight, geometry: ConvGeometry | None, x: np.ndarray) -> np.ndarray:
    if geometry is not None:
        parts = (weight.values, weight.indices, weight.bias, weight.rows)
        return condensed_conv(
            x,
            *parts,
            kernel_shape=geometry.kernel_shape,
            strides=geometry.strides,
            pads=geometry.pads,
            dilations=geometry.dilations,
            group=geometry.group,
            in_channels=geometry.in_channels,
            out_channels=geometry.out_channels,
        )
    expected = np.tile(weight.bias.astype(np.float64), (len(x), 1))
    values = weight.values.astype(np.float64)
    for sample, y in zip(x.astype(np.float64), expected, strict=True):
        y[weight.rows] += np.einsum("ij,ij->i", values, sample[weight.indices])
    return expected


def _blocks(weight: CondensedWeight) -> Iterator[CondensedWeight]:
    """Cut the stored rows into runs that are small when dense, without the outputs between them.

    A weight without stored rows gives its first output.
    """
    if not weight.active:
        yield replace(weight, bias=weight.bias[:1], out_features=1)
    height = max(1, _BLOCK_ENTRIES // weight.in_features)
    for start in range(0, weight.active, height):
        rows = weight.rows[start : start + height]
        yield CondensedWeight(
            values=weight.values[start : start + height],
            indices=weight.indices[start : start + height],
            rows=np.arange(len(rows), dtype=np.int32),
            bias=weight.bias[rows],
            in_features=weight.in_features,
            out_features=len(rows),
        )
