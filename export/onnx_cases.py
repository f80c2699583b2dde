"""Inputs to compare an ONNX file on, and its own outputs for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from .decoder_cases import decoder_feeds
from .dimensions import Dims
from .engines import Run, load_original
from .errors import ExportError
from .onnx_reading import graphs_of, read_proto
from .verify import Case, max_error, scale_of

_SIZES = ((2, 5), (1, 8), (3, 6), (1, 1), (1, 16), (1, 32), (1, 64), (1, 224))
"""Sizes tried for symbolic dimensions: for those that come first in an input, and for others."""

_WORDS = ("a sparse network", "is", "faster than", "Dense")

_WANTED = 3

_MOST_GUESSES = 12

_MOST_NOISE = {"float32": 1e-4, "float16": 2.5e-3, "bfloat16": 1.25e-2}

_MOST_NOISE_WITH_INTEGERS = 1e-5
"""The same for float32 where weights are dequantized, which the runtime may multiply in int8."""


def cases_for(
    path: Path,
    given: Sequence[Mapping[str, np.ndarray]] | None,
    remedy: str = "pass inputs of your own, or switch the verification off",
    dims: Dims | None = None,
) -> tuple[list[Case], tuple[str, ...]]:
    """Run the original on the user's inputs and on made-up ones.

    Made-up floats are standard normal, texts a few words. Made-up integers stay below the size of
    the table that they index, if one is found, else they are 1. Sizes of symbolic dimensions are
    tried until the model runs and gives finite outputs.

    Args:
        path: the model.
        given: inputs by name, to run before those.
        remedy: what to do where it runs on none.
        dims: sizes of symbolic dimensions by name; others are tried.

    Returns:
        The cases, and names of the model's inputs in the order of a case's.

    Raises:
        ExportError: the model runs on none of them.

    """
    proto = read_proto(path)
    constants = {tensor.name for tensor in proto.graph.initializer}
    ports = [port for port in proto.graph.input if port.name not in constants]
    names = tuple(port.name for port in ports)
    # As the file is written: what optimizers put in its place may compute in fewer bits.
    run = load_original(path, optimize=False)
    if any(
        node.op_type in ("LSTM", "GRU") for graph in graphs_of(proto.graph) for node in graph.node
    ):
        run = _not_on_empty(run)
    cases, problem = [], "it has an input that cannot be made up"
    for feeds in given or ():
        _require_names(names, feeds)
        cases.append(_run(run, names, {port.name: _fed(port, feeds[port.name]) for port in ports}))
    limits = _index_limits(proto)
    rng = np.random.default_rng(0)
    cases += [] if cases else _decoder_cases(run, names, decoder_feeds(ports, limits, rng))
    if cases and not given and not dims:
        return cases, names
    made, dims = 0, dims or {}
    for first, other in (*_SIZES, *_sizes_of_weights(proto)):
        if made == _WANTED or (given and not ports):
            break
        try:
            feeds = {p.name: _make(p, first, other, limits.get(p.name), rng, dims) for p in ports}
            case = _run(run, names, feeds)
        except Exception as error:
            problem = str(error)
            continue
        cases.append(case)
        made += 1
        if not _has_symbols(ports, dims):
            break
    if not cases:
        raise ExportError(f"{path} does not run on made-up inputs ({problem}); {remedy}")
    return cases, names


def _fed(port: onnx.ValueInfoProto, value: object) -> Any:
    """Convert an array-like; leave a sequence of arrays or an absent optional input as it is."""
    return np.asarray(value) if port.type.WhichOneof("value") == "tensor_type" else value


def _run(
    run: Run,
    names: tuple[str, ...],
    feeds: dict[str, np.ndarray],
) -> Case:
    outputs = run(feeds)
    for output in outputs:
        if not isinstance(output, np.ndarray):
            raise ExportError("it has outputs that are no tensors")
        if output.dtype.kind == "f" and not np.isfinite(output).all():
            raise ExportError("its outputs are not finite")
    return Case(tuple(feeds[name] for name in names), tuple(outputs))


def _not_on_empty(run: Run) -> Run:
    """Refuse empty inputs, on which ONNX Runtime's LSTM and GRU abort the process."""

    def guarded(feeds: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
        for name, value in feeds.items():
            if isinstance(value, np.ndarray) and not value.size:
                raise ExportError(
                    f"its input {name} is empty, and ONNX Runtime's LSTM and GRU abort the process "
                    "on an empty batch or sequence"
                )
        return run(feeds)

    return guarded


def _decoder_cases(
    run: Run, names: tuple[str, ...], calls: Iterable[tuple[int, dict[str, np.ndarray]]]
) -> list[Case]:
    """Run a decoder on each call for which one of the made-up inputs fits."""
    cases: dict[int, Case] = {}
    for number, feeds in calls:
        if number in cases:
            continue
        try:
            cases[number] = _run(run, names, feeds)
        except Exception:
            continue  # another size of heads, or a length that this file does not take
    return list(cases.values())


def _require_names(names: tuple[str, ...], feeds: Mapping[str, np.ndarray]) -> None:
    if set(feeds) != set(names):
        raise ExportError(
            f"the given inputs are {', '.join(sorted(feeds)) or 'none'}; "
            f"the model takes {', '.join(names)}"
        )


def _has_symbols(ports: Sequence[onnx.ValueInfoProto], dims: Dims) -> bool:
    return any(
        not dim.HasField("dim_value") and dim.dim_param not in dims
        for port in ports
        for dim in port.type.tensor_type.shape.dim
    )


def _make(
    port: onnx.ValueInfoProto,
    first: int,
    other: int,
    limit: int | None,
    rng: np.random.Generator,
    dims: Dims,
) -> np.ndarray:
    kind = port.type.tensor_type
    if port.type.WhichOneof("value") != "tensor_type":
        raise ExportError(f"its input {port.name} is no tensor")
    shape = [
        dim.dim_value
        if dim.HasField("dim_value")
        else dims.get(dim.dim_param, first if axis == 0 else other)
        for axis, dim in enumerate(kind.shape.dim)
    ]
    if kind.elem_type == TensorProto.STRING:
        return rng.choice(np.array(_WORDS, object), shape)
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if dtype.kind == "b":
        return np.ones(shape, bool)
    if dtype.kind in "iu":
        if limit is None:
            return np.ones(shape, dtype)
        return rng.integers(0, limit, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _sizes_of_weights(proto: onnx.ModelProto) -> list[tuple[int, int]]:
    """List sizes for inputs whose last dimension is a symbol although a layer's weight fixes it."""
    rows = {
        tensor.dims[axis]
        for tensor in proto.graph.initializer
        if len(tensor.dims) == 2
        for axis in (0, 1)
    }
    return [(first, size) for size in sorted(rows)[:_MOST_GUESSES] for first in (2, 1)]


def _index_limits(proto: onnx.ModelProto) -> dict[str, int]:
    """Find the tables that integer inputs index: input name to number of entries."""
    tables = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    limits: dict[str, int] = {}
    for node in proto.graph.node:
        if node.op_type != "Gather" or node.input[0] not in tables:
            continue
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        size = tables[node.input[0]][axis]
        limits[node.input[1]] = min(size, limits.get(node.input[1], size))
    return limits


def dequantizes(model: onnx.ModelProto) -> bool:
    """Return whether the model has dequantized weights or activations."""
    nodes = (node for graph in graphs_of(model.graph) for node in graph.node)
    return any(node.op_type == "DequantizeLinear" for node in nodes)


def own_noise(
    cases: Sequence[Case], precisions: Sequence[str], *, integers: bool
) -> tuple[float, ...]:
    """Measure how far the original is from itself when the runtime rearranges it.

    Both ways are right to rounding, so a conversion cannot be held to less. A runtime that goes on
    in fewer bits (int8 for a dequantized weight) is no measure, hence the bound.

    Args:
        cases: with the outputs of both ways.
        precisions: what each output is computed in.
        integers: whether the model has dequantized weights.

    Returns:
        The share of the largest entry, for each output.

    """
    changes = [0.0] * len(precisions)
    for case in cases:
        for position, (written, optimized) in enumerate(
            zip(case.outputs, case.optimized, strict=True)
        ):
            change = max_error(optimized, written) / scale_of(written)
            changes[position] = max(changes[position], change)
    most = _MOST_NOISE | ({"float32": _MOST_NOISE_WITH_INTEGERS} if integers else {})
    return tuple(
        min(change, most[precision]) for change, precision in zip(changes, precisions, strict=True)
    )


def optimized_cases(path: Path, names: tuple[str, ...], cases: Sequence[Case]) -> list[Case]:
    """Add what the runtime gives for the inputs of cases where it optimizes the model."""
    again = rerun(path, names, cases)
    return [
        replace(case, optimized=other.outputs) for case, other in zip(cases, again, strict=True)
    ]


def rerun(path: Path, names: tuple[str, ...], cases: Sequence[Case]) -> list[Case]:
    """Run another model on the inputs of cases, without our library."""
    run = load_original(path)
    return [
        Case(case.inputs, tuple(run(dict(zip(names, case.inputs, strict=True))))) for case in cases
    ]
