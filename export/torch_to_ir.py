"""A torch module as an onnx-ir model, its condensed layers as nodes of our domain."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch
from onnx import TensorProto, defs, helper
from onnxscript import opset18
from onnxscript import values as script
from torch import Tensor, nn

from ..ort_ops.contract import CONDENSED_GEMM, DOMAIN, DOMAIN_VERSION
from .errors import ExportError
from .modules import OPERATOR, without_fast_path
from .onnx_op import no_residual
from .onnx_schema import condensed_gemm_schema
from .passes.name_layers import LAYER

BATCH = "batch"
"""Name of the dynamic first dimension of every input."""


def torch_to_ir(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    dynamic_shapes: Sequence[Mapping[int, str]] | None,
    opset: int,
) -> torch.onnx.ONNXProgram:
    """Export ``model`` (in eval mode, on the CPU) with a dynamic batch.

    The graph is not optimised yet: folding constants would take the names off the weights.

    Args:
        model: may hold :class:`CondensedLinear`.
        inputs: example inputs of a batch of at least two, since torch.export takes a size of one
            for a constant.
        dynamic_shapes: names of the dynamic dimensions of each input; None for the batch alone.
        opset: version of the standard operators.

    Raises:
        ExportError: torch cannot export the model, or not in this opset.

    """
    dimensions = tuple(map(dict, dynamic_shapes or [{0: BATCH}] * len(inputs)))
    if len(dimensions) != len(inputs):
        raise ValueError(f"dynamic_shapes names {len(dimensions)} inputs, there are {len(inputs)}")
    nested = _as_signature(model, dimensions)
    try:
        with without_fast_path(), warnings.catch_warnings():
            # Several inputs share the batch on purpose.
            warnings.filterwarnings("ignore", message=".*axis name: .* will not be used")
            program = torch.onnx.export(
                model,
                inputs,
                dynamo=True,
                dynamic_shapes=nested,
                opset_version=opset,
                custom_translation_table={OPERATOR: _translate},
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
    _name_outputs(program.model)
    return program


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


def _schema_with_layer() -> defs.OpSchema:
    """Our schema with the attribute that carries the layer's name through the exporter."""
    ours = condensed_gemm_schema()
    kind = defs.OpSchema.Attribute(LAYER, helper.make_attribute(LAYER, ""), "")
    return defs.OpSchema(
        ours.name,
        ours.domain,
        ours.since_version,
        inputs=ours.inputs,
        outputs=ours.outputs,
        type_constraints=[
            (t.type_param_str, t.allowed_type_strs, "") for t in ours.type_constraints
        ],
        attributes=[*ours.attributes.values(), kind],
    )


_OP = script.Op(script.Opset(DOMAIN, DOMAIN_VERSION), CONDENSED_GEMM, _schema_with_layer())


# torch takes what is annotated for attributes, so inputs and result stay as they are.
def _translate(  # type: ignore[no-untyped-def]
    x, values, indices, bias, rows, in_features: int, out_features: int, layer: str
):
    residual = opset18.Constant(
        value=helper.make_tensor("value", TensorProto.FLOAT, [1], no_residual())
    )
    return _OP(
        x,
        values,
        indices,
        bias,
        rows,
        residual,
        in_features=in_features,
        out_features=out_features,
        layer=layer,
    )


def _explain(error: BaseException) -> str:
    """Name the cause at the bottom of torch's chain of errors, and the remedy if known."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = f"torch could not export the model: {type(error).__name__}: {str(error).strip()}"
    if isinstance(error, AttributeError) and "CondensedLinear" in text:
        text += (
            "; a module reads the weight of a condensed layer past its forward. Leave that layer "
            "out of `masks` to keep it dense"
        )
    elif "Constraints violated" in text or "specialized" in text.lower():
        text += (
            "; the first dimension of every input has to be a batch of any size, and the model "
            "computes with it as a constant"
        )
    return text
