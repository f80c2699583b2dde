"""Names of values that ONNX Runtime's quantizer would give a second time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from ..errors import ExportError
from ..passes.access import name_of
from ..passes.nodes import Names, all_values

_SUFFIXES = (
    "_DequantizeLinear_Input",
    "_DequantizeLinear_Output",
    "_MatMul",
    "_QuantizeLinear_Input",
    "_QuantizeLinear_Output",
    "_Transposed",
    "_cast_output",
    "_output_quantized",
    "_quantized",
    "_scale",
    "_zero_point",
)
"""What the quantizer appends to the name of a value, once or several times, for one of its own."""


def free_names(path: Path, model: ir.Model) -> None:
    """Rename the values whose names the quantizer would give to its own.

    Args:
        path: of the model, for the error.
        model: changed in place.

    Raises:
        ExportError: an input or output of the model, which keeps its name, has such a name.

    """
    taken = {name_of(value) for value in all_values(model)}
    names = Names(model)
    ports = {*model.graph.inputs, *model.graph.outputs}
    for value in list(all_values(model)):
        name = name_of(value)
        stem = next((stem for stem in _stems(name) if stem in taken), None)
        if stem is None:
            continue
        if value in ports:
            raise ExportError(
                f"{path} has an input or output {name!r}, a name that onnxruntime's quantizer "
                f"gives to a value that it adds to {stem!r}; rename one of the two in the model"
            )
        value.name = names.free(f"{name}_float")


def _stems(name: str) -> Iterator[str]:
    """Yield what a name is without one suffix, two, and so on."""
    while suffix := next((end for end in _SUFFIXES if name.endswith(end)), ""):
        name = name.removesuffix(suffix)
        yield name
