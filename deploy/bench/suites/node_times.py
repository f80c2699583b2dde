"""Times the nodes of a model file, for the page about it (``--measure``)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ....export.forms import TOKENS
from ....export.html_report import Measured
from ...diagnosis import plain
from ...errors import SessionError
from ...input_types import numpy_type
from ..engines.ort import open_model
from ..measure.breakdown import profile

_RUNS = 5


def measure_nodes(
    path: Path, batch: int, threads: int, *, library: bool, dims: Mapping[str, int]
) -> Measured:
    """Run a model on random numbers, and time its nodes with ONNX Runtime's profiler.

    Symbolic sizes are those that times are predicted for: the batch, and 32 elsewhere.

    Args:
        path: the model.
        batch: first dimension of its inputs, where it is symbolic.
        threads: of the session.
        library: with fanin's ops; without them for a dense model.
        dims: sizes of symbolic dimensions by name.

    Raises:
        SessionError: the model does not open, or does not run on such inputs.

    """
    try:
        session = open_model(path, threads, library=library)
        inputs = {meta.name: _numbers(meta, batch, dims, path) for meta in session.get_inputs()}
        walls = []
        for _ in range(1 + _RUNS):
            start = time.perf_counter()
            session.run(None, inputs)
            walls.append(time.perf_counter() - start)
    except SessionError:
        raise
    except Exception as error:  # the runtime's exceptions share no base class
        raise SessionError(
            f"it does not run on made-up inputs of batch {batch}: {plain(str(error))}",
            "Give sizes that fit together (--batch, --dim NAME=SIZE), or leave out --measure.",
            model=path,
        ) from error
    del session
    found = profile(path.name, path, inputs, threads, median(walls[1:]), library=library)
    seconds = {node.name: node.seconds for node in found.nodes}
    return Measured(seconds, found.total_seconds / found.explained)


def _numbers(meta: Any, batch: int, dims: Mapping[str, int], path: Path) -> np.ndarray:
    sizes = [
        size if isinstance(size, int) else dims.get(str(size), batch if axis == 0 else TOKENS)
        for axis, size in enumerate(meta.shape)
    ]
    dtype = numpy_type(meta.type)
    if dtype is None:
        raise SessionError(
            f"input '{meta.name}' is a {meta.type}, for which there are no made-up numbers",
            "Leave out --measure.",
            model=path,
        )
    if dtype.kind == "f":
        return np.random.default_rng(0).standard_normal(sizes).astype(dtype)
    # The first of the entries that indices may name; masks let everything through.
    return np.full(sizes, dtype.kind == "b", dtype)
