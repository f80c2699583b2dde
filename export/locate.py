"""Find the node at which two models that should agree first differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import helper

from .engines import load_original, load_plain, load_with_library
from .errors import ExportError
from .node_order import sort_nodes
from .onnx_reading import read_proto
from .output_precision import output_precisions
from .quantization_units import LEAST_UNITS, is_compared
from .verify import Case, max_error, scale_of, usual_tolerance

_TOLERANCE = 1e-4
"""Share of a value's largest entry that it may differ by."""

_QUANTIZED_TOLERANCE = LEAST_UNITS / 255
"""The same in a quantized model, whose 8-bit values may differ by one."""


def first_difference(
    reference: Path,
    path: Path,
    names: Sequence[str],
    case: Case,
    library: bool,
    *,
    quantized: bool = False,
) -> str:
    """Name the first node of a file whose output differs from the reference's value of that name.

    Both models run with every value that they have in common as an output. Values with
    different shapes (compact activations) are skipped.

    Args:
        reference: the model that is right.
        path: the model that is not.
        names: names of the inputs, in the order of the case's.
        case: whose outputs differ.
        library: whether the second one runs with our library.
        quantized: whether activations are rounded to 8 bits.

    Returns:
        A clause for an error message, empty when no value tells or a model does not run so.

    """
    try:
        return _first_difference(reference, path, names, case, library, quantized)
    except ExportError:
        return ""


def _first_difference(
    reference: Path,
    path: Path,
    names: Sequence[str],
    case: Case,
    library: bool,
    quantized: bool,
) -> str:
    right, wrong = (read_proto(file, weights=True) for file in (reference, path))
    known = {name for node in right.graph.node for name in node.output if name}
    makers = {name: node for node in wrong.graph.node for name in node.output if name in known}
    if not makers:
        return ""
    feeds = dict(zip(names, case.inputs, strict=True))
    expected = load_original(_with_outputs(right, list(makers)))(feeds)
    load = load_with_library if library else load_plain
    actual = load(_with_outputs(wrong, list(makers)))(feeds)
    if not len(makers) == len(expected) == len(actual):
        return ""  # a value is a sequence, of which each tensor is an output
    sort_nodes(right)
    least = _QUANTIZED_TOLERANCE if quantized else _TOLERANCE
    precisions = output_precisions(right)
    for name, ours, theirs, precision in zip(makers, actual, expected, precisions, strict=True):
        if ours.shape != theirs.shape or not is_compared(theirs):
            continue
        scale = scale_of(theirs)
        allowed = max(least, usual_tolerance(precision)) * scale
        if theirs.dtype.kind != "f":
            allowed = 1.0
        error = max_error(ours, theirs)
        if not error <= allowed:
            node = makers[name]
            return f"; it begins at node {node.name} ({node.op_type}), with {error:.3g}"
    return ""


def _with_outputs(model: onnx.ModelProto, names: list[str]) -> bytes:
    del model.graph.output[:]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    serialized: bytes = model.SerializeToString()
    return serialized
