"""Check the quantized layers of a conversion one by one, on the inputs that the original has there.

Integers that differ by one are right where the original rounds a float32 sum and the converted
model an exact one, but later layers amplify them: outputs of the whole model tell little about one
layer. So each converted layer is run by itself on the original's own values.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from .engines import EngineUnavailableError, engines, load_original
from .errors import ExportError
from .onnx_reading import read_proto
from .passes.access import input_of, label_of, name_of
from .passes.channels_last import PLANAR
from .passes.nodes import constant_of, quantized_nodes
from .report import LayerCheck
from .verify import RELATIVE_TOLERANCE, Case, max_error

MOST_DIFFERING = 0.2
"""Share of a layer's integers that may be off by one; rounding its bias may cost an eighth."""


def check_quantized_layers(
    model: ir.Model, source: Path, names: Sequence[str], case: Case
) -> tuple[LayerCheck, ...]:
    """Run the quantized nodes of a converted model, each by itself.

    Args:
        model: as it is written, with its functions.
        source: the original.
        names: of the original's inputs, in the order of the case's.
        case: whose inputs are taken.

    Returns:
        One check for each engine that ran.

    Raises:
        ExportError: a layer differs by more than rounding explains.

    """
    nodes = quantized_nodes(model)
    wanted = {name for node in nodes if node.graph is model.graph for name in _names(node)}
    values = _values(source, wanted, names, case)
    checks: dict[str, LayerCheck] = {}
    for engine in engines(uses_our_ops=True) if nodes else ():
        check = LayerCheck(engine.name, len(nodes))
        for node in nodes:
            found = [values.get(name) for name in _names(node)]
            known = [_in_order_of(node, a, i) for i, a in enumerate(found) if a is not None]
            if len(known) < len(found):
                continue
            *inputs, expected = known
            layer, feeds = layer_model(model, node, inputs)
            try:
                (actual,) = engine.load(layer.SerializeToString())(feeds)
            except EngineUnavailableError:
                break
            check = _compared(node, check, actual, expected)
            checks[engine.name] = check
    return tuple(checks.values())


def variables_of(node: ir.Node) -> list[ir.Value]:
    """List what a node reads that is no constant, then what it writes."""
    values = (value for value in node.inputs if value is not None and constant_of(value) is None)
    return [*values, node.outputs[0]]


def _names(node: ir.Node) -> list[str]:
    """Name the original's values that stand for :func:`variables_of`."""
    planar = node.meta.get(PLANAR, {})
    names = map(name_of, variables_of(node))
    return [planar.get(name, name) for name in names]


def _in_order_of(node: ir.Node, array: np.ndarray, position: int) -> np.ndarray:
    """Give a value of the original the order that the node has it in."""
    turned = name_of(variables_of(node)[position]) in node.meta.get(PLANAR, {})
    return np.moveaxis(array, 1, -1) if turned else array


def _values(
    source: Path, wanted: set[str], names: Sequence[str], case: Case
) -> dict[str, np.ndarray]:
    """Run the original as it is written and return those of the wanted values that it has."""
    proto = read_proto(source, weights=True)
    feeds = dict(zip(names, case.inputs, strict=True))
    order = sorted({name for node in proto.graph.node for name in node.output} & wanted)
    found = {name: array for name, array in feeds.items() if name in wanted}
    if order:
        del proto.graph.output[:]
        proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in order)
        run = load_original(proto.SerializeToString(), optimize=False)
        found |= dict(zip(order, run(feeds), strict=True))
    return found


def layer_model(
    model: ir.Model, node: ir.Node, inputs: Sequence[np.ndarray]
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Make a model of one node, and its inputs by name.

    Args:
        model: with the function of the node.
        node: of ours.
        inputs: for what the node reads that is no constant, in order.

    """
    variables = dict(zip(map(name_of, variables_of(node)[:-1]), inputs, strict=True))
    ports = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in variables.items()
    ]
    constants = {}
    for position, value in enumerate(node.inputs):
        array, name = constant_of(value), name_of(input_of(node, position))
        if array is not None:
            constants[name] = onnx.numpy_helper.from_array(array, name)
    graph = helper.make_graph(
        [ir.serde.serialize_node(node)],
        "layer",
        ports,
        [helper.make_empty_tensor_value_info(name_of(node.outputs[0]))],
        list(constants.values()),
    )
    layer = helper.make_model(
        graph,
        ir_version=model.ir_version,
        opset_imports=[helper.make_opsetid(*item) for item in model.opset_imports.items()],
        functions=[ir.serde.serialize_function(model.functions[node.op_identifier()])],
    )
    return layer, variables


def _compared(
    node: ir.Node, check: LayerCheck, actual: np.ndarray, expected: np.ndarray
) -> LayerCheck:
    where = f"node {label_of(node)} ({node.op_type}) in {check.engine}"
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise ExportError(
            f"{where} gives {actual.dtype} {list(actual.shape)}, the original "
            f"{expected.dtype} {list(expected.shape)}; nothing was written"
        )
    error = max_error(actual, expected)
    if expected.dtype.kind == "f":
        scale = float(np.abs(expected.astype(np.float64)).max(initial=0.0)) or 1.0
        if not error <= RELATIVE_TOLERANCE * scale:
            raise ExportError(
                f"{where} differs from the original on the same input by {error:.3g} at a scale "
                f"of {scale:.3g}; nothing was written"
            )
        return check.with_floats(error / scale)
    differing = int(np.count_nonzero(actual != expected))
    if error > 1 or differing > max(1, MOST_DIFFERING * expected.size):
        raise ExportError(
            f"{where} differs from the original on the same input by {error:.0f} units of its "
            f"output, in {differing} of {expected.size} entries; nothing was written"
        )
    return check.with_integers(expected.size, differing)
