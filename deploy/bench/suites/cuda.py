"""Layers on a GPU: the condensed kernels against what PyTorch and ONNX Runtime do with the weight.

Every output is checked against float64 before, during and after its times, as on the CPU.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ....ort_ops.format.condensed import VALUE_TYPES, CondensedWeight
from ....ort_ops.format.conv_geometry import ConvGeometry
from ..engines.child.conditions import CONDITIONS
from ..engines.cuda import (
    LAUNCHES,
    CudaEngine,
    DenseWeight,
    Device,
    SemiStructuredEngine,
    condensed,
    session,
)
from ..engines.cuda_binding import ACTIVATIONS, layer_arrays
from ..engines.protocol import Engine
from ..measure.layer_problem import layer_problem
from ..measure.loop import measure
from ..measure.problem import Problem
from ..measure.timing import Progress, Timing
from ..report.document import Bullets, Document, Notes, Section
from ..report.figure import Axis, Figure, Panel, Series, names_axis
from ..report.text import plain_text
from ..results.case import Case, make_case
from ..results.result import Recorder, Result
from .cases_report import cases_document
from .random_layer import random_sparse_layer
from .specs import check_batches, check_choices, check_features, check_seed, spec_facts

_FAMILIES = {"CSR": ("csr",), "tensor cores": ("dense-tf32", "dense-bfloat16")}
# TF32 has the mantissa of float16.
_TF32 = "float16"
_SEMI_STRUCTURED_FROM = 64
# That the delta kernel is for; it reads the weights once for each four of more.
_FEW_SAMPLES = 4

# Of ResNet-50 at 90 %: geometry, side of the image, fan-in.
_CONVOLUTIONS = {
    "3×3, 64 → 64": (ConvGeometry(64, 64, (3, 3), pads=(1, 1, 1, 1)), 56, 58),
    "1×1, 256 → 512, stride 2": (ConvGeometry(256, 512, (1, 1), strides=(2, 2)), 56, 26),
}
_CONV_BATCHES = (1, 8)


@dataclass(frozen=True)
class BenchCudaSpec:
    """Shapes (in, out) x sparsity x share of ablated neurons x batch x type x launch, on a GPU.

    ``activations`` are the types of x and y, ``values`` that of the condensed weights. Cases come
    in the order of ``sparsities``, and none begins after ``budget`` seconds. ``emulated`` runs the
    kernels' programs on the host instead, and everything else on the CPU: a rehearsal, whose times
    mean nothing. ``convolutions`` adds two of ResNet-50, in ONNX Runtime. ``conditions`` as in
    Timing; cold is with the L2 flushed. ``ring_kernels``: rings are also of each kernel whose row
    in the dispatch table has the batch, and of dense in TF32.
    """

    shapes: tuple[tuple[int, int], ...] = ((3072, 768), (768, 3072))
    sparsities: tuple[float, ...] = (0.9, 0.95, 0.8, 0.99)
    ablated: tuple[float, ...] = (0.0,)
    batches: tuple[int, ...] = (1, 256, 8, 64, 2048, 16, 32)
    activations: tuple[str, ...] = ("float32", "bfloat16")
    values: str = "float32"
    launches: tuple[str, ...] = LAUNCHES[:2]
    convolutions: bool = True
    rounds: int = 11
    conditions: tuple[str, ...] = CONDITIONS[:1]
    budget: float | None = None
    emulated: bool = False
    ring_kernels: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_batches(self.batches)
        check_seed(self.seed)
        check_choices("activations", self.activations, ACTIVATIONS)
        check_choices("values", (self.values,), VALUE_TYPES)
        check_choices("launches", self.launches, LAUNCHES)
        if not self.shapes or not self.sparsities or not self.ablated:
            raise ValueError("give at least one of shapes, sparsities and ablated shares")
        for features, outputs in self.shapes:
            check_features("shapes: inputs", features)
            check_features("shapes: outputs", outputs)
        if not all(0 < one < 1 for one in self.sparsities):
            raise ValueError(f"sparsities are {self.sparsities}; each must be in (0, 1)")
        if not all(0 <= one < 1 for one in self.ablated):
            raise ValueError(f"ablated shares are {self.ablated}; each must be in [0, 1)")
        self.timing()

    def timing(self) -> Timing:
        """How the cases are timed: an engine's run is a row of calls, so that few make a turn."""
        return Timing(
            rounds=self.rounds, turn=1e-5, lead_in=1e-4, max_warmup=0.2, conditions=self.conditions
        )

    def layer(self, shape: tuple[int, int], sparsity: float, ablated: float) -> CondensedWeight:
        """Draw a layer; the rows that are not ablated share what is kept."""
        features, outputs = shape
        active = max(1, round(outputs * (1 - ablated)))
        fan_in = min(features, max(1, round((1 - sparsity) * features * outputs / active)))
        rng = np.random.default_rng([self.seed, features, outputs, fan_in])
        weight = random_sparse_layer("random", rng, features, outputs, active, fan_in)
        return weight.astype(self.values)


def bench_cuda(spec: BenchCudaSpec, *, progress: Progress | None = None) -> Result[Case]:
    """Measure the layers.

    Raises RequirementError without torch, EngineUnavailableError without a GPU or kernels for it.
    """
    device = Device(emulated=spec.emulated)
    recorder, start = Recorder(), time.monotonic()
    card = device.facts()
    cases: list[Case] = []
    plan = list(_plan(spec, device, card))
    for number, (title, measured) in enumerate(plan):
        if spec.budget is not None and time.monotonic() - start > spec.budget:
            break
        if progress:
            progress(title, number / len(plan))
        cases.append(measured())
    left_out = [title for title, _ in plan[len(cases) :]]
    return recorder.result(
        "cuda",
        f"Layers on {card['device']}",
        spec_facts(spec),
        spec.timing(),
        tuple(cases),
        gpu=card,
        left_out=left_out,
        has_sessions=device.has_sessions,
    )


def _plan(
    spec: BenchCudaSpec, device: Device, card: Mapping[str, Any]
) -> Iterator[tuple[str, Callable[[], Case]]]:
    """List the cases with their titles, in the order of their weight."""
    for at, sparsity in enumerate(spec.sparsities):
        for launch, kind, shape, ablated, batch in itertools.product(
            spec.launches, spec.activations, spec.shapes, spec.ablated, spec.batches
        ):
            sizes = f"{shape[0]} → {shape[1]}"
            title = f"{sizes}, {100 * sparsity:g} %, batch {batch}, {kind}, {launch}"
            title += f", {ablated:.0%} ablated" if ablated else ""
            setting = (shape, sparsity, ablated)
            how = (batch, kind, launch)
            yield title, partial(_measure_layer, spec, device, card, title, setting, *how)
        if at == 0 and spec.convolutions and device.has_sessions:
            for name, batch in itertools.product(_CONVOLUTIONS, _CONV_BATCHES):
                title = f"convolution {name}, batch {batch}"
                yield title, partial(_measure_convolution, spec, device, title, name, batch)


def _measure_layer(
    spec: BenchCudaSpec,
    device: Device,
    card: Mapping[str, Any],
    title: str,
    setting: tuple[tuple[int, int], float, float],
    batch: int,
    kind: str,
    launch: str,
) -> Case:
    weight = _layer(spec, setting)
    dense = DenseWeight(device, weight)
    exact = None if device.emulated else dense.exact
    problem = layer_problem(weight, batch, spec.seed, exact)
    engines = _engines(device, weight, dense, batch, kind, launch, ring_kernels=spec.ring_kernels)
    measured, _ = measure(engines, problem, spec.timing())
    packed = device.binding.PackedGemm(
        **layer_arrays(weight), activations=kind, min_batch=batch, max_batch=batch
    ).info()[0]
    facts = {
        "type": kind,
        "kernel": packed["kernel"],
        "fan_in": weight.fan_in,
        "packed_bytes": packed["bytes"],
        "padding": packed["padding"],
        **_floors(weight, batch, kind, packed["bytes"], card),
    }
    return make_case(title, batch, 1 - weight.density, facts, measured, None, _FAMILIES)


@lru_cache(maxsize=1)
def _layer(spec: BenchCudaSpec, setting: tuple[tuple[int, int], float, float]) -> CondensedWeight:
    return spec.layer(*setting)


def _engines(
    device: Device,
    weight: CondensedWeight,
    dense: DenseWeight,
    batch: int,
    kind: str,
    launch: str,
    *,
    ring_kernels: bool,
) -> list[Engine]:
    """List everything that computes the layer, dense first; of a ring, what it is for.

    A ring of few samples times the stream kernel, too, beside what dispatch takes in its place.
    """

    def engine(name: str, form: str, make: Any, **types: Any) -> CudaEngine:
        return CudaEngine(name, form, device, launch, make, **{"dtype": kind, **types})

    linear = "torch.nn.functional.linear"
    size = 4 if kind == "float32" else 2
    nbytes = {"dense": weight.out_features * weight.in_features * size}
    nbytes["condensed"] = max(1, weight.active * weight.fan_in * (size + 2))
    engines: list[Engine] = [
        engine("dense", linear, dense.linear, weight_bytes=nbytes["dense"]),
        engine(
            "condensed",
            "the dispatched kernel",
            condensed(device, weight, kind),
            weight_bytes=nbytes["condensed"],
        ),
    ]
    for row in device.binding.kernel_table():
        served = row["min_batch"] <= batch <= (row["max_batch"] or batch)
        if launch == "ring" and ring_kernels:
            measured = served and _fits(row["layout"], weight, kind)
        else:
            measured = _is_measured(row["layout"], weight, batch, kind, launch)
        if row["activations"] == kind and measured:
            make = condensed(device, weight, kind, row["name"])
            name = f"kernel-{row['layout']}"
            engines.append(engine(name, row["name"], make, weight_bytes=nbytes["condensed"]))
    tf32 = lambda x: dense.linear(x, tf32=True)  # noqa: E731
    of_dense = {"precision": _TF32, "weight_bytes": nbytes["dense"]}
    if launch == "ring":
        if ring_kernels and kind == "float32":
            engines.append(engine("dense-tf32", f"{linear}, TF32", tf32, **of_dense))
        return engines
    if kind == "float32":
        engines.append(engine("dense-tf32", f"{linear}, TF32", tf32, **of_dense))
        engines.append(engine("dense-bfloat16", linear, dense.linear, dtype="bfloat16"))
    elif batch >= _SEMI_STRUCTURED_FROM:
        engines.append(SemiStructuredEngine(dense, device, launch, kind))
    engines.append(engine("csr", "torch.sparse.mm, y left transposed", dense.csr))
    if weight.active < weight.out_features:
        engines.append(engine("structured", f"{linear} and index_copy_", dense.structured))
    if launch != "graph" and kind != "bfloat16" and device.has_sessions:
        engines += _sessions(device, weight, batch, kind, engine)
    return engines


def _is_measured(layout: str, weight: CondensedWeight, batch: int, kind: str, launch: str) -> bool:
    """Tell whether a kernel of that layout is worth a measurement."""
    if launch == "ring":
        return layout == "stream" and batch <= _FEW_SAMPLES
    if layout == "delta":
        return batch <= _FEW_SAMPLES
    return _fits(layout, weight, kind)


def _fits(layout: str, weight: CondensedWeight, kind: str) -> bool:
    """Tell whether a kernel can compute the layer: tensor cores take operands of one type."""
    return layout != "expand" or weight.values.dtype.name == kind


def _sessions(
    device: Device, weight: CondensedWeight, batch: int, kind: str, engine: Callable[..., Engine]
) -> list[Engine]:
    """Build the layer for ONNX Runtime; its models hold the weights in the type of x."""
    from ....export.onnx_op import condensed_layer_model, dense_layer_model

    y = (batch, weight.out_features)
    model = condensed_layer_model(weight, None, x_dtype=kind)
    model.ClearField("functions")  # without them it cannot be anything but the op
    found = [
        engine(
            "session-condensed",
            "ONNX Runtime, CondensedGemm",
            session(device, model.SerializeToString(), y, library=True),
        )
    ]
    if kind == "float32":
        model = dense_layer_model(weight.astype("float32"), None)
        make = session(device, model.SerializeToString(), y, library=False)
        found.append(engine("session-dense", "ONNX Runtime, Gemm without TF32", make))
    return found


def _measure_convolution(
    spec: BenchCudaSpec, device: Device, title: str, name: str, batch: int
) -> Case:
    """Compare CondensedConv with Conv in ONNX Runtime, both with ReLU."""
    from ....export.onnx_op import condensed_conv_model, dense_conv_model

    geometry, side, fan_in = _CONVOLUTIONS[name]
    rng = np.random.default_rng(spec.seed)
    out = geometry.out_channels
    weight = random_sparse_layer("random", rng, geometry.in_features, out, out, fan_in)
    free = (None, None, None)
    models = {
        "dense": dense_conv_model(weight, geometry, free, clip_min=0.0),
        "condensed": condensed_conv_model(weight, geometry, free, clip_min=0.0),
    }
    models["condensed"].ClearField("functions")
    y = (batch, out, *geometry.output_sizes((side, side)))
    engines = [
        CudaEngine(
            engine,
            f"ONNX Runtime, {'CondensedConv' if engine == 'condensed' else 'Conv without TF32'}",
            device,
            "stream",
            session(device, model.SerializeToString(), y, library=engine == "condensed"),
        )
        for engine, model in models.items()
    ]
    conv2d = device.torch.nn.functional.conv2d
    wide = device.torch.from_numpy(weight.to_dense().reshape(geometry.weight_shape)).double()
    bias = device.torch.from_numpy(np.array(weight.bias)).double()
    window = {"stride": geometry.strides, "padding": geometry.pads[:2], "groups": geometry.group}

    def right(inputs: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        x = device.torch.from_numpy(inputs["x"]).double()
        return [conv2d(x, wide, bias, **window).clamp(min=0).numpy()]

    shape = (batch, geometry.in_channels, side, side)
    timed, fresh = ({"x": rng.standard_normal(shape, np.float32)} for _ in range(2))
    problem = Problem.of(timed, fresh, right, tolerance=1e-5)
    measured, _ = measure(engines, problem, spec.timing())
    return make_case(title, batch, 1 - weight.density, {"fan_in": fan_in}, measured, None)


def _floors(
    weight: CondensedWeight, batch: int, kind: str, packed: int, card: Mapping[str, Any]
) -> dict[str, float]:
    """Return seconds for all bytes once, for the multiply-adds, for columns of shared memory."""
    if "hertz" not in card:
        return {}
    size = 4 if kind == "float32" else 2
    macs = batch * weight.active * weight.fan_in
    moved = packed + batch * (weight.in_features + weight.out_features) * size
    return {
        "floor_of_bytes": moved / card["bytes_per_second"],
        "floor_of_operations": macs / card["float32_macs_per_second"],
        "floor_of_shared_memory": macs * size / (128 * card["multiprocessors"] * card["hertz"]),
    }


def cuda_document(result: Result[Case]) -> Document:
    """Report on the cases, the card and what it does at most."""
    left_out = result.facts["left_out"]
    notes = [f"{len(left_out)} cases are left out, no time was left"] if left_out else []
    if not result.facts["has_sessions"]:
        notes.append("onnxruntime has no CUDA provider here, so that there are no sessions")
    document = cases_document(result, _figure(result))
    card = [f"{name}: {plain_text(value)}" for name, value in result.facts["gpu"].items()]
    return replace(
        document, blocks=[Notes(notes), *document.blocks, Section("Device"), Bullets(card)]
    )


def _figure(result: Result[Case]) -> Figure:
    """Show the speed-up of condensed over dense in every case."""
    found = [(case, case.comparison("condensed")) for case in result.cases]
    places = [(at, one.run_ratio) for at, (_, one) in enumerate(found) if one]
    series = [Series.of_spreads("condensed", "spans", places)] if places else []
    y = Axis("speed-up over dense", log=10, unit="×")
    x = names_axis([case.title for case in result.cases])
    return Figure(result.title, [Panel(series, x, y, reference=1)])
