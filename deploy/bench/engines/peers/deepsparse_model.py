"""A whole model as DeepSparse runs it best: its versions, and the operators that it knows.

One ReduceMean over the pixels, which newer exporters write for global pooling, makes DeepSparse 1.8
hand the whole of ResNet-50 to a path without sparsity (72 ms at 90 % with it, 42 without, on
Cascade Lake). Timing that would be unfair to it.

MobileNet-V3-Large at 90 % was timed in seven forms, in turn (least times in ms, Cascade Lake):
HardSwish as x * Clip(x / 6 + 1/2, 0, 1) 8.7, which is the one that is written; with
Clip(x + 3, 0, 6) times 1/6 8.8, divided by 6 9.3; as x * Clip(x + 3, 0, 6) / 6 9.4, times 1/6 9.2;
HardSigmoid left as it is 10.7, both left 10.4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ....model_check import checked_content

if TYPE_CHECKING:
    import onnx

_OPSET, _IR = 18, 8
"""The newest that DeepSparse 1.8 takes."""


class UnsupportedModelError(Exception):
    """A model that a runtime does not take."""


@dataclass(frozen=True)
class DeepSparseFile:
    """A model as DeepSparse reads it.

    Attributes:
        path: the file.
        rewritten: how many nodes of each operator are written in another way.

    """

    path: Path
    rewritten: Mapping[str, int]

    def __str__(self) -> str:
        """Name what is not as in the model: "rewritten: 9 ReduceMean"."""
        if not self.rewritten:
            return "as it is"
        kinds = [f"{count} {kind}" for kind, count in sorted(self.rewritten.items())]
        return f"rewritten: {', '.join(kinds)}"


def deepsparse_file(path: Path, to: Path) -> DeepSparseFile:
    """Write the model in versions and operators that DeepSparse reads.

    Raises:
        UnsupportedModelError: the model cannot be converted.

    """
    import onnx

    checked_content(path)
    model = onnx.load(path)
    (opset,) = (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset > _OPSET:
        try:
            model = onnx.version_converter.convert_version(model, _OPSET)
        except Exception as error:  # the converter raises RuntimeError and its own kinds
            said = str(error).strip().split("\n")[0]
            raise UnsupportedModelError(
                f"DeepSparse 1.8 takes opset {_OPSET} at most, and {path.name}, of opset {opset}, "
                f"cannot be converted ({said}); export with --opset 17"
            ) from error
    model.ir_version = min(model.ir_version, _IR)
    rewritten = use_known_operators(model)
    onnx.save(model, to)
    return DeepSparseFile(to, rewritten)


def use_known_operators(model: onnx.ModelProto) -> dict[str, int]:
    """Write pooling and activations in operators that DeepSparse compiles; same function.

    ReduceMean over the pixels of images becomes GlobalAveragePool; HardSwish and HardSigmoid become
    Mul, Add and Clip. A Conv or Gemm without a bias gets one of zeros: DeepSparse makes the scalar
    of an Add behind it the bias, whose width it then refuses.

    Returns:
        How many nodes of each operator are written in another way.

    """
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model).graph
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*inferred.value_info, *inferred.input)
        if value.type.tensor_type.HasField("shape")
    }
    writer = _Writer(model.graph)
    rewrites: Mapping[str, Callable[[onnx.NodeProto], list[onnx.NodeProto]]] = {
        "ReduceMean": lambda node: writer.pooled(node, ranks.get(node.input[0])),
        "HardSigmoid": writer.hard_sigmoid,
        "HardSwish": writer.hard_swish,
        "Conv": writer.biased,
        "Gemm": writer.biased,
    }
    rewritten: Counter[str] = Counter()
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        rewrite = rewrites.get(node.op_type)
        new = [node] if rewrite is None else rewrite(node)
        rewritten[node.op_type] += new != [node]
        nodes += new
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return dict(+rewritten)


class _Writer:
    """Makes nodes, and the constants that they read."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        from onnx import numpy_helper

        self._graph = graph
        self._arrays = {tensor.name: tensor for tensor in graph.initializer}
        self._read = numpy_helper.to_array

    def pooled(self, node: onnx.NodeProto, rank: int | None) -> list[onnx.NodeProto]:
        """Mean over the last two of four dimensions; others stay."""
        from onnx import helper

        attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        axes = attributes.get("axes")
        if len(node.input) > 1 and node.input[1] in self._arrays:
            axes = self._read(self._arrays[node.input[1]]).tolist()
        if rank != 4 or axes is None or {axis % rank for axis in axes} != {2, 3}:
            return [node]
        (out,) = node.output
        if attributes.get("keepdims", 1):
            return [helper.make_node("GlobalAveragePool", [node.input[0]], [out], name=node.name)]
        mean = f"{out}/mean"
        return [
            helper.make_node("GlobalAveragePool", [node.input[0]], [mean], name=node.name),
            helper.make_node("Flatten", [mean], [out], name=f"{node.name}/flatten", axis=1),
        ]

    def hard_sigmoid(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Clip(alpha x + beta, 0, 1)."""
        from onnx import helper

        given = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        slope, offset = given.get("alpha", 0.2), given.get("beta", 0.5)
        return self._ramp(node, node.output[0], slope, offset)

    def hard_swish(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Multiply x by Clip(x / 6 + 1/2, 0, 1)."""
        from onnx import helper

        (x,), (out,) = node.input, node.output
        gate = f"{out}/gate"
        last = helper.make_node("Mul", [x, gate], [out], name=f"{node.name}/product")
        return [*self._ramp(node, gate, 1 / 6, 0.5), last]

    def biased(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Conv and Gemm with a bias of zeros if they had none; a weight that is computed stays."""
        import onnx

        weight = self._arrays.get(node.input[1])
        if (len(node.input) > 2 and node.input[2]) or weight is None:
            return [node]
        transposed = any(entry.name == "transB" and entry.i for entry in node.attribute)
        axis = 1 if node.op_type == "Gemm" and not transposed else 0
        zeros = np.zeros(weight.dims[axis], onnx.helper.tensor_dtype_to_np_dtype(weight.data_type))
        new = onnx.NodeProto()
        new.CopyFrom(node)
        new.input[:] = [*node.input[:2], self._constant(f"{node.output[0]}/bias", zeros)]
        return [new]

    def _ramp(
        self, node: onnx.NodeProto, out: str, slope: float, offset: float
    ) -> list[onnx.NodeProto]:
        from onnx import helper

        (x,), name = node.input, node.name or node.output[0]
        scaled, moved = f"{out}/scaled", f"{out}/moved"
        values = {"slope": slope, "offset": offset, "least": 0.0, "most": 1.0}
        at = {part: self._constant(f"{out}/{part}", value) for part, value in values.items()}
        return [
            helper.make_node("Mul", [x, at["slope"]], [scaled], name=f"{name}/slope"),
            helper.make_node("Add", [scaled, at["offset"]], [moved], name=f"{name}/offset"),
            helper.make_node("Clip", [moved, at["least"], at["most"]], [out], name=f"{name}/clip"),
        ]

    def _constant(self, name: str, value: float | np.ndarray) -> str:
        from onnx import numpy_helper

        array = np.asarray(value, np.float32) if isinstance(value, float) else value
        self._graph.initializer.append(numpy_helper.from_array(array, name))
        return name
