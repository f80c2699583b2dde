"""Outputs that a file declares with another number of dimensions than they have."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from .errors import ExportError
from .model_file import StagedModel, stage_model
from .verify import check_structure


def stage_checked(model: ir.Model, path: Path, threshold: int) -> StagedModel:
    """Stage a model as :func:`.stage_model` does, and check its structure.

    Declared ranks of outputs that are wrong are corrected in the model.

    Raises:
        ExportError: onnx refuses the model.

    """
    staged = stage_model(model, path, threshold)
    try:
        check_structure(staged.path, shape_after_every_node=False)
    except ExportError:
        if not correct_ranks(model, staged.path):
            raise
        return stage_checked(model, path, threshold)
    return staged


def correct_ranks(model: ir.Model, path: Path) -> bool:
    """Give outputs of a model the shapes that onnx infers where the declared ranks are others.

    Runtimes load such a file, with a warning at most, and onnx sees nothing in it as long as an
    operator on the way hides the rank. A conversion can take the last such operator away.

    Args:
        model: the model; its inputs and outputs are those of the file.
        path: the file, as far as its weights are in it.

    Returns:
        Whether an output had the wrong rank.

    """
    proto = onnx.load(path, load_external_data=False)
    for output in proto.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return False
    corrected = False
    for value, found in zip(model.graph.outputs, inferred.graph.output, strict=True):
        kind = found.type.tensor_type
        if value.shape is None or not kind.HasField("shape"):
            continue
        if len(value.shape) != len(kind.shape.dim):
            value.shape = ir.serde.deserialize_tensor_shape(kind.shape)
            corrected = True
    return corrected
