"""A loaded model version: session, signature and scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SessionError
from ..session import open_session
from ..transient import is_transient
from .datatypes import NUMPY
from .errors import InsufficientMemoryError, RequestError
from .model_options import DEFAULTS, ModelOptions
from .scheduler import Batching, Scheduler
from .settings import ServeSettings
from .signature import Signature, read_signature
from .versions import Version


class LoadedModel:
    """A model version in memory, opened and run once; creating it raises SessionError."""

    def __init__(
        self,
        name: str,
        version: Version,
        settings: ServeSettings,
        options: ModelOptions = DEFAULTS,
        on_run: Callable[[], None] = lambda: None,
    ):
        started = time.perf_counter()
        settings = options.applied_to(settings)
        self.name = name
        self.version = version
        self.settings = settings
        self.version_policy = options.version_policy(settings)
        self._session: Any = open_session(
            version.path,
            threads=settings.session_threads,
            custom_op_libraries=settings.custom_op_libraries,
        )
        self.signature: Signature = read_signature(self._session, version.path)
        options.require_fit(self.signature, version.path)
        batching = None
        if options.max_rows is not None:
            _require_batchable(self.signature, version)
            self.signature = replace(self.signature, max_rows=options.max_rows)
        if settings.max_batch > 1:
            _require_batchable(self.signature, version)
            self.signature = replace(self.signature, batched=True)
            batching = Batching(settings.max_batch, settings.batch_delay)
        warm_up(self._session, self.signature, version.path)
        self.scheduler = Scheduler(
            name,
            self._run,
            concurrency=settings.runs,
            limit=settings.queue,
            timeout=settings.timeout,
            batching=batching,
            on_run=on_run,
        )
        self.seconds = time.perf_counter() - started

    def metadata(self, versions: Sequence[str]) -> dict[str, Any]:
        """Return the protocol's model metadata."""
        return {
            "name": self.name,
            "versions": list(versions),
            "platform": "onnxruntime_onnx",
            "inputs": [spec.metadata() for spec in self.signature.inputs],
            "outputs": [spec.metadata() for spec in self.signature.outputs],
        }

    def close(self) -> None:
        """Finish the queued requests, then free the session."""
        self.scheduler.close()
        self._session = None

    def _run(self, outputs: Sequence[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        try:
            arrays: list[np.ndarray] = self._session.run(list(outputs), inputs)
        except Exception as error:  # the runtime's exceptions share no base class
            if is_transient(error):
                raise InsufficientMemoryError(_first_line(error)) from error
            # Types and fixed sizes were checked before. What remains are combinations of sizes, or
            # values (an index, a reshape), that a node of the model refuses.
            if type(error).__name__ in ("InvalidArgument", "RuntimeException", "Fail"):
                message = f"the model refuses these inputs: {_first_line(error)}"
                raise RequestError(message) from error
            raise
        return arrays


def warm_up(session: Any, signature: Signature, path: Path) -> None:
    """Run once with every open size 1, so that the first request is not slow."""
    inputs = {
        spec.name: np.full(
            [size if isinstance(size, int) else 1 for size in spec.shape],
            "" if spec.datatype == "BYTES" else 0,
            NUMPY[spec.datatype],
        )
        for spec in signature.inputs
    }
    try:
        session.run(None, inputs)
    except Exception as error:
        if is_transient(error):
            raise SessionError(
                f"there is not enough memory to run it ({_first_line(error)})",
                "Use a machine with more memory, or fewer models and workers.",
                model=path,
            ) from error
        # Any other error: the model may refuse sizes of 1; requests will tell.


def _require_batchable(signature: Signature, version: Version) -> None:
    """Require that every input and output begins with the same symbolic dimension."""
    tensors = (*signature.inputs, *signature.outputs)
    firsts = {spec.shape[0] if spec.shape else None for spec in tensors}
    if len(firsts) != 1 or not isinstance(next(iter(firsts)), str):
        found = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in tensors)
        raise SessionError(
            f"its requests cannot be batched: the first dimensions of {found} are not the same "
            "symbol",
            "Export it with a symbolic batch, or serve it without --max-batch (in config.pbtxt: "
            "max_batch_size: 0).",
            model=version.path,
        )


def _first_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."
