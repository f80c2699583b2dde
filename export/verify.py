"""Check the structure of a written file, and its outputs against the model's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from ..ort_ops.contract import DOMAIN
from .engines import EngineUnavailableError, Run, engines
from .errors import ExportError
from .quantization_units import Units, is_compared
from .report import ParityCheck
from .small_outputs import least_scales

RELATIVE_TOLERANCE = 1e-5
"""Largest difference in float32, as a share of the largest output, where rounding is usual."""

FLOAT16_TOLERANCE = 2e-3
"""The same for float16 outputs: four units in the last place of the largest one."""

BFLOAT16_TOLERANCE = 1.6e-2
"""The same for what is computed in bfloat16."""

_TEXTS = "OSU"
"""Kinds of arrays of texts, which tokenizers in a file give."""

NOISE_FACTOR = 8
"""How many times the model's own rounding error a difference may be where that error is large."""


@dataclass(frozen=True)
class Case:
    """Inputs in order and the outputs that the model gives for them.

    Attributes:
        inputs: in order.
        outputs: of the model as it is written.
        optimized: of the model as the runtime optimizes it, which may compute in other bits;
            empty where that is not known. A file that the runtime optimizes may give either.

    """

    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    optimized: tuple[np.ndarray, ...] = ()

    def possible(self, position: int) -> tuple[np.ndarray, ...]:
        """Return what is right for an output."""
        return (self.outputs[position], *self.optimized[position : position + 1])


@dataclass(frozen=True)
class Reference:
    """What a file is compared with.

    Attributes:
        source: who gave the outputs, for messages: "torch" or "the original".
        cases: inputs and outputs.
        noise: the source's own error from rounding in float32, as a share of the largest output.
        noises: the same for each output, where that is known.
        precisions: what each output is computed in, where that is known: see
            :func:`.output_precision.output_precisions`.
        units: of a quantized model, whose outputs are compared in them; None for others.
        locate: given a differing case and whether the library ran, names the node where a
            difference first appears; None when that is not known.
        least_tolerance: one that no output's is below, for a model that computes in bfloat16.

    """

    source: str
    cases: Sequence[Case]
    noise: float = 0.0
    units: Units | None = None
    locate: Callable[[Case, bool], str] | None = None
    least_tolerance: float = 0.0
    noises: Sequence[float] = ()
    precisions: Sequence[str] = ()

    def tolerance(self, position: int, dtype: np.dtype) -> float:
        """Return the share of its largest entry that an output of this type may differ by."""
        precision = self.precisions[position] if self.precisions else "float32"
        usual = max(usual_tolerance(precision), usual_tolerance(dtype.name))
        noise = self.noises[position] if self.noises else self.noise
        return max(usual, NOISE_FACTOR * noise, self.least_tolerance)


def usual_tolerance(precision: str) -> float:
    """Return the tolerance of a type where rounding is usual."""
    coarse = {"float16": FLOAT16_TOLERANCE, "bfloat16": BFLOAT16_TOLERANCE}
    return coarse.get(precision, RELATIVE_TOLERANCE)


def check_structure(path: Path, *, shape_after_every_node: bool = True) -> None:
    """Full checker, strict shape inference, and a shape after every node.

    Raises:
        ExportError: one of them fails.

    """
    try:
        onnx.checker.check_model(str(path), full_check=True)
        proto = onnx.load(path, load_external_data=False)
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"onnx refuses the exported model: {str(error).strip()}") from error
    graph = proto.graph
    known = {
        value.name
        for value in (*graph.value_info, *graph.output)
        if value.type.WhichOneof("value") != "tensor_type"
        or value.type.tensor_type.HasField("shape")
    }
    for node in graph.node if shape_after_every_node else ():
        lost = [name for name in node.output if name and name not in known]
        if lost:
            raise ExportError(
                f"the output {lost[0]} of node {node.name} ({node.op_type}) has no shape"
            )


def check_parity(
    path: Path, reference: Reference
) -> tuple[tuple[ParityCheck, ...], tuple[str, ...]]:
    """Run the file in every available engine and compare with the model.

    Engines are onnxruntime without our library, onnxruntime with it, and where onnxruntime is not
    installed onnx's ReferenceEvaluator, which is slow.

    Returns:
        The checks, and one line for each engine that did not run.

    Raises:
        ExportError: a difference over the tolerance, or a file that does not load.

    """
    proto = onnx.load(path, load_external_data=False)
    constants = {tensor.name for tensor in proto.graph.initializer}
    names = [value.name for value in proto.graph.input if value.name not in constants]
    scales = least_scales(proto)
    checks, missing = [], []
    uses_our_ops = any(function.domain == DOMAIN for function in proto.functions)
    for engine in engines(uses_our_ops):
        try:
            run = engine.load(path)
        except EngineUnavailableError as error:
            missing.append(f"{engine.name}: {error}")
        else:
            checks.append(_compare(engine.name, run, names, scales, reference, engine.has_library))
    return tuple(checks), tuple(missing)


def _compare(
    engine: str,
    run: Run,
    names: Sequence[str],
    scales: Sequence[float],
    reference: Reference,
    library: bool,
) -> ParityCheck:
    largest = relative = tolerance = steps = 0.0
    units = reference.units
    for case in reference.cases:
        try:
            got = run(dict(zip(names, case.inputs, strict=True)))
        except Exception as problem:
            raise ExportError(
                f"the exported model fails at batch {case_batch(case)} in {engine}: {problem}; "
                "nothing was written"
            ) from problem
        # A sequence is one output of the graph and gives several here.
        least = scales if len(scales) == len(got) else [0.0] * len(got)
        for position, (actual, expected) in enumerate(zip(got, case.outputs, strict=True)):
            possible = case.possible(position)
            where = f"output {position} at batch {case_batch(case)} in {engine}"
            if actual.shape != expected.shape or actual.dtype != expected.dtype:
                raise ExportError(
                    f"{where} is {actual.dtype} {list(actual.shape)}, "
                    f"{reference.source} gives {expected.dtype} {list(expected.shape)}"
                )
            if units and not is_compared(expected):
                continue
            error = min(max_error(actual, right) for right in possible)
            scale = max(scale_of(expected), least[position])
            if units:
                distance = min(units.distance(position, actual, right) for right in possible)
                steps = max(steps, distance)
                allowed = units.tolerance * units.size(position) / scale
                fits = distance <= units.tolerance
                limit = f"{distance:.3g} quantization units, over the {units.tolerance:.3g} allowed"
            else:
                allowed = reference.tolerance(position, expected.dtype)
                fits = error <= allowed * scale
                limit = f"over the tolerance of {allowed:.3g} relative"
            if not fits:
                node = reference.locate(case, library) if reference.locate else ""
                raise ExportError(
                    f"{where} differs from {reference.source} by {error:.3g} at a scale of "
                    f"{scale:.3g}, {limit}{node}; nothing was written"
                )
            largest, relative = max(largest, error), max(relative, error / scale)
            tolerance = max(tolerance, allowed)
    batches = tuple(dict.fromkeys(case_batch(case) for case in reference.cases))
    check = ParityCheck(engine, batches, largest, relative, tolerance)
    return replace(check, units=steps, unit_tolerance=units.tolerance) if units else check


def case_batch(case: Case) -> int:
    """Return the first dimension of a case; 1 where there is none."""
    return next((x.shape[0] for x in case.inputs if isinstance(x, np.ndarray) and x.ndim), 1)


def largest_change(before: Sequence[Case], after: Sequence[Case]) -> float:
    """Return the largest difference of an output, as a share of the largest of its batch."""
    return max(
        (
            max_error(new, old) / scale_of(old)
            for old_case, new_case in zip(before, after, strict=True)
            for old, new in zip(old_case.outputs, new_case.outputs, strict=True)
        ),
        default=0.0,
    )


def scale_of(expected: np.ndarray) -> float:
    """Return the largest entry, which differences are shares of; 1 where all are 0, or texts."""
    if expected.dtype.kind in _TEXTS:
        return 1.0
    return float(np.abs(expected.astype(np.float64)).max(initial=0.0)) or 1.0


def max_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest absolute difference; NaN where one side has one. Texts are 0 or inf."""
    if expected.dtype.kind in _TEXTS:
        return 0.0 if np.array_equal(actual, expected) else math.inf
    difference = actual.astype(np.float64) - expected.astype(np.float64)
    return float(np.abs(difference).max(initial=0.0))
