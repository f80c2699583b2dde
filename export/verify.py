"""The proof that a written file is sound and computes what the model computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from .errors import ExportError
from .onnx_schema import DOMAIN
from .report import ParityCheck

RELATIVE_TOLERANCE = 1e-5
"""Largest difference from torch in float32, as a share of the largest output."""

if TYPE_CHECKING:
    import onnxruntime

_Run = Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]]


@dataclass(frozen=True)
class Case:
    """Inputs in order and the outputs that the model gives for them."""

    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]


def check_structure(path: Path) -> None:
    """Full checker, strict shape inference, and a shape after every node.

    Raises:
        ExportError: one of them fails.

    """
    try:
        onnx.checker.check_model(str(path), full_check=True)
        proto = onnx.load(path, load_external_data=False)
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"onnx refuses the exported model: {error}") from error
    graph = proto.graph
    known = {
        value.name
        for value in (*graph.value_info, *graph.output)
        if value.type.WhichOneof("value") != "tensor_type"
        or value.type.tensor_type.HasField("shape")
    }
    for node in graph.node:
        lost = [name for name in node.output if name and name not in known]
        if lost:
            raise ExportError(
                f"the output {lost[0]} of node {node.name} ({node.op_type}) has no shape"
            )


def check_parity(
    path: Path, cases: Sequence[Case]
) -> tuple[tuple[ParityCheck, ...], tuple[str, ...]]:
    """Run the file in every engine at hand and compare with the model.

    Engines are onnxruntime without our library, onnxruntime with it, and where onnxruntime is not
    installed onnx's ReferenceEvaluator, which is slow.

    Returns:
        The checks, and one line for each engine that did not run.

    Raises:
        ExportError: a difference over :data:`RELATIVE_TOLERANCE`, or a file that does not load.

    """
    proto = onnx.load(path, load_external_data=False)
    names = [value.name for value in proto.graph.input]
    checks, missing = [], []
    uses_our_ops = any(function.domain == DOMAIN for function in proto.functions)
    for engine in _engines(uses_our_ops):
        try:
            run = engine.load(path)
        except _NotAtHandError as error:
            missing.append(f"{engine.name}: {error}")
        else:
            checks.append(_compare(engine.name, run, names, cases))
    return tuple(checks), tuple(missing)


class _NotAtHandError(Exception):
    """An engine cannot run here, whatever the file is."""


@dataclass(frozen=True)
class _Engine:
    name: str
    load: Callable[[Path], _Run]


def _engines(uses_our_ops: bool) -> list[_Engine]:
    try:
        import onnxruntime
    except ImportError:
        return [
            _Engine("onnxruntime", _no_onnxruntime),
            _Engine(f"onnx {onnx.__version__} reference", _load_reference),
        ]
    name = f"onnxruntime {onnxruntime.__version__}"
    engines = [_Engine(f"{name} without library", _load_plain)]
    if uses_our_ops:
        engines.append(_Engine(f"{name} with library", _load_with_library))
    return engines


def _no_onnxruntime(path: Path) -> _Run:
    raise _NotAtHandError(f"not installed, so it did not load {path.name}")


def _load_reference(path: Path) -> _Run:
    evaluator = ReferenceEvaluator(str(path))
    return lambda feeds: evaluator.run(None, feeds)


def _load_plain(path: Path) -> _Run:
    import onnxruntime

    return _session(path, onnxruntime.SessionOptions())


def _load_with_library(path: Path) -> _Run:
    import onnxruntime

    from ..ort_ops import register

    options = onnxruntime.SessionOptions()
    try:
        register(options)
    except Exception as error:
        # Not built, or an onnxruntime that the library does not support: no fault of the file.
        raise _NotAtHandError(str(error)) from error
    return _session(path, options)


def _session(path: Path, options: onnxruntime.SessionOptions) -> _Run:
    import onnxruntime

    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise ExportError(
            f"onnxruntime {onnxruntime.__version__} does not load the exported model: {error}; "
            "a newer onnxruntime or a lower opset may"
        ) from error
    return lambda feeds: session.run(None, feeds)


def _compare(engine: str, run: _Run, names: Sequence[str], cases: Sequence[Case]) -> ParityCheck:
    largest = relative = 0.0
    for case in cases:
        got = run(dict(zip(names, case.inputs, strict=True)))
        for position, (actual, expected) in enumerate(zip(got, case.outputs, strict=True)):
            where = f"output {position} at batch {len(case.inputs[0])} in {engine}"
            if actual.shape != expected.shape or actual.dtype != expected.dtype:
                raise ExportError(
                    f"{where} is {actual.dtype} {list(actual.shape)}, "
                    f"torch gives {expected.dtype} {list(expected.shape)}"
                )
            error, scale = _max_error(actual, expected), _scale(expected)
            if not error <= RELATIVE_TOLERANCE * scale:
                raise ExportError(
                    f"{where} differs from torch by {error:.3g} at a scale of {scale:.3g}, "
                    f"over the tolerance of {RELATIVE_TOLERANCE:g} relative; nothing was written"
                )
            largest, relative = max(largest, error), max(relative, error / scale)
    batches = tuple(len(case.inputs[0]) for case in cases)
    return ParityCheck(engine, batches, largest, relative)


def largest_change(before: Sequence[Case], after: Sequence[Case]) -> float:
    """Return the largest difference of an output, as a share of the largest of its batch."""
    return max(
        _max_error(new, old) / _scale(old)
        for old_case, new_case in zip(before, after, strict=True)
        for old, new in zip(old_case.outputs, new_case.outputs, strict=True)
    )


def _scale(expected: np.ndarray) -> float:
    return float(np.abs(expected.astype(np.float64)).max(initial=0.0)) or 1.0


def _max_error(actual: np.ndarray, expected: np.ndarray) -> float:
    difference = actual.astype(np.float64) - expected.astype(np.float64)
    return float(np.abs(difference).max(initial=0.0))
