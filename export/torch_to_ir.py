"""A torch module as an onnx-ir model."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import onnx_ir as ir
import torch
from torch import nn

from .errors import ExportError
from .torch_inputs import Call, static
from .torch_layers import own_names


def traced(call: Call, opset: int) -> tuple[torch.onnx.ONNXProgram, Call]:
    """Export the model of a call, with a dynamic sequence if torch can.

    Returns:
        The program, and the call with the dimensions that it has.

    Raises:
        ExportError: as :func:`torch_to_ir` does.

    """
    try:
        return torch_to_ir(call, opset), call
    except ExportError as error:
        if call.optional is None:
            raise
        call = static(call, str(error))
        return torch_to_ir(call, opset), call


_FIRST_NUM_OUTPUTS = 18
"""Opset from which Split has that attribute, which torch's optimizer writes in any opset."""


def torch_to_ir(call: Call, opset: int) -> torch.onnx.ONNXProgram:
    """Export the model of a call (in eval mode, on the CPU) with its dynamic dimensions.

    The graph is not optimized yet: folding constants would take the names off the weights. An
    initializer has the name of its parameter, the first one of a shared parameter.

    Args:
        call: the model, inputs and names.
        opset: version of the standard operators.

    Raises:
        ExportError: torch cannot export the model, or not in this opset.

    """
    nested = _as_signature(call.model, call.dynamic_shapes)
    try:
        with _without_fast_path(), warnings.catch_warnings():
            # Several inputs share the batch on purpose.
            warnings.filterwarnings("ignore", message=".*axis name: .* will not be used")
            program = torch.onnx.export(
                call.model,
                call.inputs,
                dynamo=True,
                dynamic_shapes=nested,
                input_names=call.input_names,
                output_names=call.output_names,
                opset_version=opset,
                verbose=False,
                optimize=False,
            )
    except Exception as error:
        raise ExportError(_explain(error)) from error
    assert program is not None  # as always with dynamo=True
    written = program.model.opset_imports.get("")
    if written != opset:
        raise ExportError(
            f"torch wrote opset {written} where {opset} was asked for: an operator of the model "
            f"has no form in it; choose another opset"
        )
    if call.output_names is None:
        _name_outputs(program.model)
    _name_weights(program.model, own_names(call.model))
    return program


def optimize(program: torch.onnx.ONNXProgram) -> ir.Model:
    """Fold constants, for the opset of the program.

    Raises:
        ExportError: a node has no form in that opset.

    """
    program.optimize()
    model = program.model
    for node in model.graph.all_nodes() if model.opset_imports[""] < _FIRST_NUM_OUTPUTS else ():
        if node.op_type != "Split" or node.domain != "" or "num_outputs" not in node.attributes:
            continue
        data, axis = node.inputs[0], node.attributes.get_int("axis", 0)
        size = None if data is None or data.shape is None else data.shape[axis]
        if not isinstance(size, int) or size % len(node.outputs):
            raise ExportError(
                f"Split {node.name!r} gives {len(node.outputs)} parts of an axis of {size}, which "
                f"needs opset {_FIRST_NUM_OUTPUTS} or newer"
            )
        node.attributes.pop("num_outputs")  # parts of equal size need none
    return model


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Keep attention from its fused operator, which has no form in ONNX."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _as_signature(
    model: nn.Module, dimensions: tuple[dict[int, str], ...]
) -> tuple[dict[int, str] | tuple[dict[int, str], ...], ...]:
    """Nest the dimensions of inputs that ``*args`` of the forward takes, as torch.export wants."""
    kinds = [parameter.kind for parameter in inspect.signature(model.forward).parameters.values()]
    star = inspect.Parameter.VAR_POSITIONAL
    first = kinds.index(star) if star in kinds else len(dimensions)
    return dimensions if first >= len(dimensions) else (*dimensions[:first], dimensions[first:])


def _name_outputs(model: ir.Model) -> None:
    outputs = model.graph.outputs
    for position, value in enumerate(outputs):
        value.name = "output" if len(outputs) == 1 else f"output_{position}"


def _name_weights(model: ir.Model, names: Mapping[str, str]) -> None:
    """Call shared parameters by their first name; torch takes the last one."""
    constants = model.graph.initializers
    for name, value in list(constants.items()):
        if names.get(name, name) not in constants:
            value.name = names[name]


def _explain(error: BaseException) -> str:
    """Name the cause at the bottom of torch's chain of errors, and the remedy if known."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = f"torch could not export the model: {type(error).__name__}: {str(error).strip()}"
    if "cache_utils" in text:
        text += (
            "; for a file with the cache as inputs and outputs, put a transformers.DynamicCache() "
            "among the example inputs; for one without, set model.config.use_cache = False"
        )
    if "Constraints violated" in text or "specialized" in text.lower():
        text += (
            "; the first dimension of every input has to be a batch of any size, and the model "
            "computes with it as a constant"
        )
    return text
