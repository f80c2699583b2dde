"""Rewrites a model into the versions and operators that DeepSparse runs best.

One ReduceMean over the pixels, which newer exporters write for global pooling, makes DeepSparse 1.8
hand the whole of ResNet-50 to a path without sparsity (72 ms at 90 % with it, 42 without, on
Cascade Lake). Timing that would be unfair to it.

MobileNet-V3-Large at 90 % was timed in seven forms, in turn (least times in ms, Cascade Lake):
HardSwish as x * Clip(x / 6 + 1/2, 0, 1) 8.7, the form that is written; with
Clip(x + 3, 0, 6) times 1/6 8.8, divided by 6 9.3; as x * Clip(x + 3, 0, 6) / 6 9.4, times 1/6 9.2;
HardSigmoid left as it is 10.7, both left 10.4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....model_check import checked_content

if TYPE_CHECKING:
    import onnx

_OPSET, _IR = 18, 8
"""The newest that DeepSparse 1.8 takes."""


class UnsupportedModelError(Exception):
    """A model that a runtime does not take."""


def deepsparse_file(path: Path, to: Path) -> str:
    """Write the model in versions and operators that DeepSparse reads.

    Returns:
        What differs from the model, such as "rewritten: 9 ReduceMean".

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
    kinds = [f"{count} {kind}" for kind, count in sorted(rewritten.items())]
    return f"rewritten: {', '.join(kinds)}" if kinds else "as it is"


def use_known_operators(model: onnx.ModelProto) -> dict[str, int]:
    """Rewrite pooling and activations in operators that DeepSparse compiles; same function.

    ReduceMean over the pixels of images becomes GlobalAveragePool; HardSwish and HardSigmoid become
    Mul, Add and Clip. A Conv or Gemm without a bias gets one of zeros: DeepSparse makes the scalar
    of an Add behind it the bias, whose width it then refuses.

    Returns:
        Number of rewritten nodes of each operator.

    """
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model).graph
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*inferred.value_info, *inferred.input)
        if value.type.tensor_type.HasField("shape")
    }
    writer = _Writer(model.graph, ranks)
    rewrites: Mapping[str, Callable[[onnx.NodeProto], list[onnx.NodeProto]]] = {
        "ReduceMean": writer.pooled,
        "HardSigmoid": writer.hard_sigmoid,
        "HardSwish": writer.hard_swish,
        "Conv": writer.biased,
        "Gemm": writer.biased,
    }
    rewritten: Counter[str] = Counter()
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        rewrite = rewrites.get(node.op_type)
        new = rewrite(node) if rewrite else [node]
        rewritten[node.op_type] += new != [node]
        nodes += new
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return dict(+rewritten)


class _Writer:
    """Makes nodes, and the constants that they read; ``ranks`` are those of known values."""

    def __init__(self, graph: onnx.GraphProto, ranks: Mapping[str, int]) -> None:
        import onnx

        self._onnx, self._node = onnx, onnx.helper.make_node
        self._graph = graph
        self._ranks = ranks
        self._arrays = {tensor.name: tensor for tensor in graph.initializer}

    def pooled(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Rewrite a mean over the last two of four dimensions; others stay."""
        attributes, rank = self._attributes(node), self._ranks.get(node.input[0])
        axes = attributes.get("axes")
        if len(node.input) > 1 and node.input[1] in self._arrays:
            axes = self._onnx.numpy_helper.to_array(self._arrays[node.input[1]]).tolist()
        if rank != 4 or axes is None or {axis % rank for axis in axes} != {2, 3}:
            return [node]
        (x, *_), (out,), name = node.input, node.output, node.name
        if attributes.get("keepdims", 1):
            return [self._node("GlobalAveragePool", [x], [out], name=name)]
        mean = f"{out}/mean"
        return [
            self._node("GlobalAveragePool", [x], [mean], name=name),
            self._node("Flatten", [mean], [out], name=f"{name}/flatten", axis=1),
        ]

    def hard_sigmoid(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Clip(alpha x + beta, 0, 1)."""
        given = {"alpha": 0.2, "beta": 0.5, **self._attributes(node)}
        return self._ramp(node, node.output[0], given["alpha"], given["beta"])

    def hard_swish(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Multiply x by Clip(x / 6 + 1/2, 0, 1)."""
        (x,), (out,) = node.input, node.output
        gate = f"{out}/gate"
        last = self._node("Mul", [x, gate], [out], name=f"{node.name}/product")
        return [*self._ramp(node, gate, 1 / 6, 0.5), last]

    def biased(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Add a bias of zeros to Conv and Gemm without one, unless their weight is computed."""
        import onnx

        weight = self._arrays.get(node.input[1])
        if (len(node.input) > 2 and node.input[2]) or weight is None:
            return [node]
        axis = 1 if node.op_type == "Gemm" and not self._attributes(node).get("transB") else 0
        dtype = self._onnx.helper.tensor_dtype_to_np_dtype(weight.data_type)
        new = onnx.NodeProto()
        new.CopyFrom(node)
        bias = self._constant(f"{node.output[0]}/bias", np.zeros(weight.dims[axis], dtype))
        new.input[:] = [*node.input[:2], bias]
        return [new]

    def _ramp(
        self, node: onnx.NodeProto, out: str, slope: float, offset: float
    ) -> list[onnx.NodeProto]:
        (x,), name = node.input, node.name or node.output[0]
        scaled, moved = f"{out}/scaled", f"{out}/moved"
        values = {"slope": slope, "offset": offset, "least": 0.0, "most": 1.0}
        at = {
            part: self._constant(f"{out}/{part}", np.float32(value))
            for part, value in values.items()
        }
        return [
            self._node("Mul", [x, at["slope"]], [scaled], name=f"{name}/slope"),
            self._node("Add", [scaled, at["offset"]], [moved], name=f"{name}/offset"),
            self._node("Clip", [moved, at["least"], at["most"]], [out], name=f"{name}/clip"),
        ]

    def _attributes(self, node: onnx.NodeProto) -> dict[str, Any]:
        value = self._onnx.helper.get_attribute_value
        return {entry.name: value(entry) for entry in node.attribute}

    def _constant(self, name: str, value: np.ndarray | np.float32) -> str:
        tensor = self._onnx.numpy_helper.from_array(np.asarray(value), name)
        self._graph.initializer.append(tensor)
        return name
