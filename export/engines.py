"""Engines that run an ONNX file: onnxruntime with and without our library, or onnx."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from ..onnx_file import ModelFileError, read_model_file
from ..ort_ops.contract import DOMAIN
from ..ort_ops.custom_libraries import library_paths, register_libraries
from .errors import ExportError
from .onnx_reading import graphs_of

if TYPE_CHECKING:
    import onnxruntime

_LIBRARIES: ContextVar[tuple[str, ...]] = ContextVar("custom-op libraries", default=())

_UNKNOWN_OP = re.compile(r"([\w.]+):(\w+)\(-?\d+\) is not a registered function/op")

Run = Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]]
"""From inputs by name to outputs in order."""

Model = Path | bytes
"""A file, or a serialized model."""


class EngineUnavailableError(Exception):
    """An engine cannot run on this machine, or has no operator that the file needs."""


@dataclass(frozen=True)
class Engine:
    """A way to run a file.

    Attributes:
        name: the engine with its version.
        load: raises :class:`EngineUnavailableError` or ExportError.
        has_library: whether our kernels compute the condensed nodes.

    """

    name: str
    load: Callable[[Model], Run]
    has_library: bool = False


@contextmanager
def custom_libraries(libraries: Sequence[str | os.PathLike[str]]) -> Iterator[None]:
    """Register other people's custom-op libraries in every session that is made meanwhile.

    Raises:
        ValueError: one is not there.

    """
    token = _LIBRARIES.set(library_paths(libraries))
    try:
        yield
    finally:
        _LIBRARIES.reset(token)


def engines(uses_our_ops: bool) -> list[Engine]:
    """List the engines that a check should use."""
    try:
        import onnxruntime
    except ImportError:
        return [Engine("onnxruntime", _no_onnxruntime), reference_engine()]
    name = f"onnxruntime {onnxruntime.__version__}"
    found = [Engine(f"{name} without library", load_plain)]
    if uses_our_ops:
        found.append(Engine(f"{name} with library", load_with_library, has_library=True))
    return found


def reference_engine() -> Engine:
    """Return onnx's ReferenceEvaluator, which has every type, and is slow."""
    return Engine(f"onnx {onnx.__version__} reference", _load_reference)


def load_original(model: Model, *, optimize: bool = True) -> Run:
    """Load a model that is to be converted in the first available engine.

    It runs without our library, except where it holds nodes of ours without their functions, which
    other tools drop.

    Raises:
        ExportError: it does not load.

    """
    try:
        import onnxruntime
    except ImportError:
        try:
            return _load_reference(model)
        except EngineUnavailableError as error:
            raise ExportError(f"onnx's reference evaluator: {error}") from error
    options = onnxruntime.SessionOptions()
    # Its errors are raised; sizes that do not fit are tried, and are nothing to print.
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if _lacks_functions(model):
        _register(options)
    return _session(model, options, "the original model")


def load_plain(model: Model) -> Run:
    """Load an exported model in onnxruntime without our library."""
    import onnxruntime

    return _session(model, onnxruntime.SessionOptions(), "the exported model")


def load_with_library(model: Model) -> Run:
    """Load an exported model in onnxruntime with our library."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    try:
        _register(options)
    except ExportError as error:
        raise EngineUnavailableError(str(error)) from error
    return _session(model, options, "the exported model")


def _register(options: onnxruntime.SessionOptions) -> None:
    from ..ort_ops import register

    try:
        register(options)
    except Exception as error:
        # Not built, or an onnxruntime that the library does not support: no fault of the file.
        raise ExportError(str(error)) from error


def _lacks_functions(model: Model) -> bool:
    proto = (
        onnx.load_from_string(model)
        if isinstance(model, bytes)
        else onnx.load(model, "protobuf", load_external_data=False)
    )
    missing = {
        node.op_type
        for graph in graphs_of(proto.graph)
        for node in graph.node
        if node.domain == DOMAIN
    }
    return bool(missing - {body.name for body in proto.functions if body.domain == DOMAIN})


def _no_onnxruntime(model: Model) -> Run:  # noqa: ARG001
    raise EngineUnavailableError("not installed")


def _load_reference(model: Model) -> Run:
    proto = onnx.load_from_string(model) if isinstance(model, bytes) else str(model)
    try:
        evaluator = ReferenceEvaluator(proto)
    except RuntimeError as error:  # such as a Scan from the end to the start
        raise EngineUnavailableError(str(error)) from error
    # It gives a dict only where intermediate results are asked for.
    return lambda feeds: cast("list[np.ndarray]", evaluator.run(None, feeds))


def _session(model: Model, options: onnxruntime.SessionOptions, what: str) -> Run:
    import onnxruntime

    options.log_severity_level = max(options.log_severity_level, 3)
    optimizes = options.graph_optimization_level != (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    try:
        register_libraries(options, _LIBRARIES.get())
    except ValueError as error:
        raise ExportError(str(error)) from error
    try:
        session = onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else str(model),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=_crashing_optimizers(model) if optimizes else None,
        )
    except Exception as error:
        unknown = _UNKNOWN_OP.search(str(error))
        if unknown and unknown[1] != DOMAIN:
            raise ExportError(
                f"{what} has a node {unknown[2]} of the domain {unknown[1]!r}, which neither "
                f"onnxruntime {onnxruntime.__version__} nor the file knows; name its library with "
                "--custom-op-library PATH (custom_op_libraries=), or switch the verification off"
            ) from error
        raise ExportError(
            f"onnxruntime {onnxruntime.__version__} does not load {what}: {error}; "
            "a newer onnxruntime or a lower opset may"
        ) from error
    return lambda feeds: _tensors(session.run(None, feeds))


def _crashing_optimizers(model: Model) -> list[str]:
    if isinstance(model, Path):
        try:
            return read_model_file(model).crashing_optimizers
        except ModelFileError:  # a format that only onnxruntime reads
            return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(model)
        return read_model_file(path).crashing_optimizers


def _tensors(outputs: Sequence[Any]) -> list[Any]:
    """Replace a sequence by its tensors."""
    return [
        tensor
        for output in outputs
        for tensor in (output if isinstance(output, list) else [output])
    ]
