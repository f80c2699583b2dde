"""The doctor's plan of a model: how many threads each condensed layer will use, and how evenly."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._base.tables import Column, Sheet
from ..onnx_file import read_checked
from ..ort_ops.binding import MissingBindingError
from ..ort_ops.contract import (
    COMPUTE_BFLOAT16,
    CONDENSED_CONV,
    DOMAIN,
    INPUTS,
    INTEGER_LISTS,
    OPS,
    QLINEAR_CONDENSED_CONV,
    QUANTIZED_OPS,
)
from ..ort_ops.dispatch_cost import SPINNING, DispatchCalibration, DispatchCost
from .doctor_model import run_child
from .doctor_probe import FindingError

if TYPE_CHECKING:
    from ..ort_ops._native import WorkPlan

# What is packed; of ops on integers the bias comes with each run.
_QUANTIZED_WEIGHTS = ("values", "indices", "rows")
_WEIGHTS = (*_QUANTIZED_WEIGHTS, "bias")


@dataclass(frozen=True)
class LayerPlan:
    """The plan of a condensed node for one batch, or the reason why there is none."""

    node: str
    plan: WorkPlan | None
    reason: str = ""


@dataclass(frozen=True)
class ModelPlan:
    """The plans of all condensed nodes, by batch."""

    threads: int
    dispatch: DispatchCost
    measured: bool
    layers: dict[int, list[LayerPlan]]

    def totals(self) -> dict[int, tuple[float, float]]:
        """Add up the seconds of all layers, by batch: on one thread, and as planned."""
        return {
            batch: (
                sum(plan.microseconds for plan in plans) / 1e6,
                sum(plan.longest + plan.dispatch for plan in plans) / 1e6,
            )
            for batch, layers in self.layers.items()
            for plans in [[layer.plan for layer in layers if layer.plan is not None]]
        }

    def summary(self) -> str:
        """Say what the plans promise for all condensed layers together."""
        return "; ".join(
            f"batch {batch}: {1e6 * one:.0f} µs on one thread, {1e6 * planned:.0f} planned"
            for batch, (one, planned) in self.totals().items()
        )


def plan_model(
    model: Path, threads: int, batches: Sequence[int], libraries: Sequence[str] = ()
) -> ModelPlan:
    """Plan a session of ``threads`` threads; nothing is timed.

    The model is run once for each batch in a separate process, which tells the sizes of its layers.

    Args:
        model: Path of the model.
        threads: Threads of the session.
        batches: Sizes of the first dimension of its inputs; a model with a fixed one gets that.
        libraries: Paths of other custom-op libraries that it needs.

    Raises:
        FindingError: The model does not run, or its weights cannot be read.

    """
    layers = list(_layers(model, threads))
    arguments = (",".join(map(str, batches)), *libraries)
    result, _ = run_child("fanin.deploy.doctor_shapes", str(model), *arguments)
    calibration = _calibration()
    cost = calibration.spinning if calibration else SPINNING
    plans = {
        int(batch): [_plan(layer, shapes, threads, cost) for layer in layers]
        for batch, shapes in result["shapes"].items()
    }
    return ModelPlan(threads, cost, calibration is not None, plans)


def plan_sheet(plan: ModelPlan) -> Sheet:
    """Lay out a plan as a table: a row for each layer."""
    source = "measured by fanin calibrate" if plan.measured else "the library's default"
    title = (
        f"Planned for {plan.threads} threads, not measured; starting n threads takes "
        f"{plan.dispatch.fixed:g} + {plan.dispatch.per_thread:g} n µs ({source})"
    )
    columns = [Column("layer", words=True)]
    for number, batch in enumerate(plan.layers):
        columns += [
            Column(f"batch {batch}: threads", right=True),
            Column("longest / mean", right=True, drop=2 * number),
            Column("µs on one thread", right=True, drop=2 * number + 1),
            Column("µs planned", right=True),
        ]
    rows = [
        (row[0].node, *(cell for layer in row for cell in _cells(layer)))
        for row in zip(*plan.layers.values(), strict=True)
    ]
    cells = [
        cell
        for one, planned in plan.totals().values()
        for cell in ("", "", f"{1e6 * one:.0f}", f"{1e6 * planned:.0f}")
    ]
    rows.append(("all condensed layers", *cells))
    return Sheet(title, tuple(columns), tuple(rows))


def _cells(layer: LayerPlan) -> list[str]:
    plan = layer.plan
    if plan is None:
        return [layer.reason, "", "", ""]
    planned = plan.longest + plan.dispatch
    return [
        str(plan.threads),
        f"{plan.imbalance:.2f}",
        f"{plan.microseconds:.1f}",
        f"{planned:.1f}",
    ]


@dataclass(frozen=True)
class _Layer:
    """A condensed node with its packed weights; without, if they are not constant."""

    node: str
    op: str
    packed: Any = None  # PackedGemm, PackedConv, or one of int8 weights
    channels_last: bool = False


def _plan(
    layer: _Layer, shapes: Mapping[str, list[int]], threads: int, cost: DispatchCost
) -> LayerPlan:
    shape = shapes.get(layer.node)
    if layer.packed is None:
        return LayerPlan(layer.node, None, "weights not constant: 1")
    if shape is None or not math.prod(shape):
        return LayerPlan(layer.node, None, "did not run")
    dispatch = (cost.fixed, cost.per_thread)
    if layer.op in (CONDENSED_CONV, QLINEAR_CONDENSED_CONV):
        images, *size = shape
        del size[-1 if layer.channels_last else 0]
        samples: int | tuple[int, ...] = (images, *((1, *size)[-2:]))
    else:
        samples = math.prod(shape[:-1])
    return LayerPlan(layer.node, layer.packed.plan(samples, threads, dispatch))


def _layers(model: Path, threads: int) -> Iterator[_Layer]:
    """Pack the layers of the model as a session of so many threads would."""
    onnx = _onnx()
    read_checked(model)
    for node, constants in _condensed_nodes(onnx.load(model).graph, {}):
        quantized = node.op_type in QUANTIZED_OPS
        named = dict(zip(INPUTS[node.op_type], node.input, strict=False))
        weights = _QUANTIZED_WEIGHTS if quantized else _WEIGHTS
        tensors = {name: constants.get(named[name]) for name in weights}
        if None in tensors.values():
            yield _Layer(node.name, node.op_type)
            continue
        arrays = {name: onnx.numpy_helper.to_array(tensor) for name, tensor in tensors.items()}
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        binding = _native()
        if node.op_type in (CONDENSED_CONV, QLINEAR_CONDENSED_CONV):
            make = binding.PackedQuantizedConv if quantized else binding.PackedConv
            sizes = _geometry(attributes)
        else:
            make = binding.PackedQuantizedGemm if quantized else binding.PackedGemm
            sizes = {name: attributes[name] for name in ("in_features", "out_features")}
            if attributes.get("compute") == COMPUTE_BFLOAT16:
                sizes["compute"] = "bfloat16"
        packed = make(**arrays, **sizes, threads=threads)
        last = bool(attributes.get("channels_last", 0))
        yield _Layer(node.name, node.op_type, packed, channels_last=last)


def _condensed_nodes(graph: Any, outer: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the nodes of a graph and its subgraphs, each with the constants that it may use."""
    constants = outer | {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            constants[node.output[0]] = node.attribute[0].t
    for node in graph.node:
        if node.domain == DOMAIN and node.op_type in OPS:
            yield node, constants
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
                yield from _condensed_nodes(inner, constants)


def _geometry(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the binding's arguments, in two dimensions: those of Conv1d get a first axis of 1."""
    lists = {name: tuple(attributes[name]) for name in INTEGER_LISTS}
    if len(lists["kernel_shape"]) == 1:
        lists = {
            name: (0, sizes[0], 0, sizes[1]) if name == "pads" else (1, *sizes)
            for name, sizes in lists.items()
        }
    return lists | {name: attributes[name] for name in ("in_channels", "out_channels", "group")}


def _calibration() -> DispatchCalibration | None:
    try:
        return DispatchCalibration.of_this_machine()
    except ValueError as error:
        raise FindingError(str(error), "fanin calibrate measures them again.") from error


def _native() -> Any:
    try:
        from ..ort_ops import _native as binding
    except MissingBindingError:
        raise
    except ImportError as error:
        raise FindingError(
            f"the compiled kernels that make plans are missing ({error})",
            "Install fanin again (pip install --force-reinstall fanin).",
        ) from error
    return binding


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise FindingError(
            f"the onnx package, which reads the model's weights, is missing ({error})",
            f"Install it: {sys.executable} -m pip install onnx.",
        ) from error
    return onnx
