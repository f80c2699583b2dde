"""What becomes of each weight while a model is condensed: one report for each."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ...ort_ops.format.condensed import CondensedWeight
from ..report import LayerReport, PredictedTimes
from .access import input_of, label_of, name_of
from .condense_quantized import CondensedLayer
from .constants import ConstantWeight
from .origins import is_part, source_of
from .quantized_weight import QuantizedWeight, Refused

_Key = tuple[str, int, tuple[str, ...], tuple[int, ...] | str]
"""Decision, id of the constant, operators before the layer, and shape of the values or reason."""


class CondenseReports:
    """The reports of one run; nodes that read one weight in the same way share theirs.

    Attributes:
        seen: ids of the constants that some report is about.
        computed: names of the constants that a layer stores other numbers than.

    """

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.computed: set[str | None] = set()
        self._layers: dict[_Key, LayerReport] = {}

    def layers(self) -> list[LayerReport]:
        """List the reports in the order of the graph."""
        return list(self._layers.values())

    def record(
        self,
        node: ir.Node,
        found: ConstantWeight,
        weight: CondensedWeight,
        new: str,
        how: str | None,
    ) -> None:
        """Report that a node of a name holds a weight now, and ``how`` that was decided."""
        self._see(found)
        content = hashlib.sha256(found.array.tobytes()).hexdigest() if found.computed else ""
        form = (*found.through, content, found.part)
        key: _Key = ("condensed", id(found.root), form, weight.values.shape)
        if key in self._layers:
            before = self._layers[key]
            self._layers[key] = replace(before, nodes=(*before.nodes, new))
            return
        how = how or ("by its zeros" if found.mask is None else "by mask")
        if found.through and found.through != ("Einsum",) and not is_part(node):
            how += f", behind {' and '.join(dict.fromkeys(found.through))}"
        self._layers[key] = replace(
            _dense(node, found, how),
            nodes=(new,),
            active=weight.active,
            fan_in=weight.fan_in,
            padding=weight.padding,
            bytes_dense=found.array.nbytes + weight.bias.nbytes,
            bytes_condensed=weight.nbytes,
            stored=weight.values.size,
            decision="condensed",
            values_dtype=weight.values.dtype.name,
        )

    def record_quantized(
        self, node: ir.Node, weight: QuantizedWeight, done: CondensedLayer
    ) -> None:
        """Report that a layer in 8 bits is one of ours now."""
        self._see(weight.found)
        shape = done.weight.values.shape
        key: _Key = ("condensed", id(weight.found.root), weight.found.through, shape)
        before = self._layers.get(key)
        self._layers[key] = replace(
            _quantized(node, weight.refuse(f"{done.choice.reason}, int8")),
            nodes=(*(before.nodes if before else ()), label_of(done.node)),
            fan_in=done.weight.fan_in,
            padding=done.weight.padding,
            bytes_condensed=done.nbytes,
            stored=done.weight.values.size,
            decision="condensed",
            speedup=done.choice.speedup,
            times=done.choice.times,
        )

    def leave(
        self,
        node: ir.Node,
        found: ConstantWeight,
        reason: str,
        times: PredictedTimes | None = None,
    ) -> None:
        """Report that a weight stays, and why, with the times that decided it."""
        self._see(found)
        key: _Key = ("dense", id(found.root), (*found.through, found.part), reason)
        if key not in self._layers:
            self._layers[key] = replace(_dense(node, found, reason), times=times)

    def leave_quantized(self, node: ir.Node, layer: Refused) -> None:
        """Report that a layer in 8 bits stays, and why."""
        if layer.kept is None:
            self.leave_unresolved(node, layer.reason, layer.value)
            return
        self.seen.add(id(layer.value))
        key: _Key = ("dense", id(layer.value), (), layer.reason)
        self._layers.setdefault(key, _quantized(node, layer))

    def leave_unresolved(self, node: ir.Node, reason: str, value: ir.Value | None = None) -> None:
        """Report that a value stays that is no constant, and why."""
        value = value or input_of(node, 1)
        self.seen.add(id(value))
        default = value.const_value if value.is_initializer() else None
        if default is not None and len(default.shape) > 1:  # of a graph input
            found = ConstantWeight(default.numpy(), None, value)
            self._layers.setdefault(("dense", id(value), (), reason), _dense(node, found, reason))
            return
        shape = tuple(d for d in value.shape or () if isinstance(d, int))
        if value.shape is None or len(shape) != len(value.shape) or len(shape) < 2:
            return
        report = LayerReport(
            name=name_of(value),
            kind=node.op_type,
            nodes=(),
            shape=shape,
            sparsity=0.0,
            active=shape[-1],
            fan_in=shape[0],
            padding=0,
            bytes_dense=4 * int(np.prod(shape)),
            bytes_condensed=None,
            decision="dense",
            reason=reason,
            node=label_of(node),
            counted=False,
        )
        self._layers.setdefault(("dense", id(value), (), reason), report)

    def _see(self, found: ConstantWeight) -> None:
        self.seen |= {id(value) for value in (found.root, *found.others)}
        if found.computed:
            self.computed.add(found.root.name)


def kept_of(found: ConstantWeight) -> np.ndarray:
    """Return which entries of a weight are stored: those of its mask, else what is not 0."""
    kept: np.ndarray = found.array != 0 if found.mask is None else found.mask.astype(bool)
    return kept


def too_dense(sparsity: float, least: float) -> str:
    """Say that a weight has too few zeros."""
    return f"sparsity {sparsity:.1%}, under {least:.0%}"


def _dense(node: ir.Node, found: ConstantWeight, reason: str) -> LayerReport:
    kept = kept_of(found)
    stored_out_in = (
        "Einsum" in found.through
        or node.op_type not in ("MatMul", "Gemm")
        or (node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0)
    )
    if kept.ndim == 2 and not stored_out_in:
        kept = kept.T
    name = name_of(found.root) + (f" ({found.part})" if found.part else "")
    report = LayerReport.of_dense(name, source_of(node), kept, found.array.nbytes, reason)
    return replace(report, node=label_of(node))


def _quantized(node: ir.Node, layer: Refused) -> LayerReport:
    kept = layer.kept
    assert kept is not None
    nbytes = kept.size + 8 * len(kept)  # a scale and a bias for each output
    name = name_of(layer.value)
    report = LayerReport.of_dense(name, node.op_type, kept, nbytes, layer.reason, "int8")
    return replace(report, node=label_of(node))
