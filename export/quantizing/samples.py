"""Inputs to calibrate and compare on, in runs that the model takes."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ..._base.local_paths import is_file, refuse_address
from ..errors import ExportError
from ..passes.access import name_of
from ..passes.nodes import dimensions_of

BATCH = 32
"""Samples of a run where the model leaves the batch open."""

Feeds = Mapping[str, np.ndarray]
"""Inputs of one run, by name."""

ArraySource = str | os.PathLike[str] | Mapping[str, np.ndarray]
"""A .npz or .npy file, or what such a file holds."""


@dataclass(frozen=True)
class Samples:
    """Samples in runs.

    Attributes:
        feeds: inputs of each run.
        count: samples in all.
        source: where they come from, for reports: "calib.npz".
        labels: int64 ``[count]``, the class of each; None where it is not known.

    """

    feeds: tuple[Feeds, ...]
    count: int
    source: str
    labels: np.ndarray | None = None

    def first(self, count: int) -> Samples:
        """Return the first runs with at least so many samples together, or all."""
        runs = -(-count * len(self.feeds) // self.count)
        taken = self.count * runs // len(self.feeds)
        return self if runs >= len(self.feeds) else Samples(self.feeds[:runs], taken, self.source)

    def __str__(self) -> str:
        return f"{self.count} sample{'s' * (self.count != 1)} of {self.source}"


def read_samples(given: ArraySource, model: ir.Model) -> Samples:
    """Read samples: for each input of the model an array ``[samples, ...]`` of its name.

    A .npy file holds the input of a model that has one. Inputs of no dimension are the same in all
    runs. Where the model fixes its first dimension, every run takes as many samples.

    Raises:
        FileNotFoundError: there is no such file.
        ExportError: it is no such file, holds no samples, values that are not finite, or arrays
            of another name, type or shape than the model takes.

    """
    ports = [port for port in model.graph.inputs if not port.is_initializer()]
    names = [name_of(port) for port in ports]
    if isinstance(given, Mapping):
        arrays, what = {name: np.asarray(array) for name, array in given.items()}, "what is given"
    else:
        what = os.fspath(given)
        arrays = _load(Path(given), names)
    if set(arrays) != set(names):
        raise ExportError(
            f"{what} holds arrays of the names {_listed(arrays)}; the model takes {_listed(names)}"
        )
    for port in ports:
        _check(what, port, arrays[name_of(port)])
    feeds, count = _in_runs(what, ports, arrays)
    return Samples(tuple(feeds), count, what)


def _load(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    refuse_address(path)
    if not is_file(path):
        raise FileNotFoundError(f"{path} does not exist or is not a file")
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            arrays = {"": loaded}
        else:
            with loaded:
                arrays = {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        reason = str(error)
        if "pickle" in reason:  # which NumPy takes any other file for
            reason = "it is of another format or holds objects; write one with numpy.savez"
        raise ExportError(f"{path} is no .npz or .npy file of numbers: {reason}") from error
    if "" not in arrays:
        return arrays
    if len(names) != 1:
        raise ExportError(
            f"{path} holds one array, the model takes {_listed(names)}; give a .npz of these"
        )
    return {names[0]: arrays[""]}


def _listed(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(names) or "none"


def _check(what: str, port: ir.Value, array: np.ndarray) -> None:
    name = name_of(port)
    if port.dtype is None or port.dtype.itemsize < 1:
        raise ExportError(f"the input {name} of the model is no tensor of numbers")
    dtype = port.dtype.numpy()
    if array.dtype != dtype:
        convertible = array.dtype.kind in "biuf"
        remedy = f"convert it with .astype(numpy.{dtype})" if convertible else "give numbers"
        raise ExportError(f"{what}: {name} is {array.dtype}, the model takes {dtype}; {remedy}")
    sizes = dimensions_of(port)
    if sizes is not None:
        fits = array.ndim == len(sizes) and all(
            not isinstance(size, int) or size == actual
            for size, actual in zip(sizes[1:], array.shape[1:], strict=True)
        )
        if not fits:
            shown = [size if size is not None else "?" for size in sizes]
            wanted = ", ".join(map(str, ["samples", *shown[1:]] if shown else []))
            raise ExportError(
                f"{what}: {name} has the shape {list(array.shape)}, the model takes [{wanted}]"
            )
    if not array.size:
        raise ExportError(f"{what}: {name} holds no samples; its shape is {list(array.shape)}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ExportError(f"{what}: {name} holds {array[tuple(bad)]} at {bad}; remove that sample")


def _in_runs(
    what: str, ports: Sequence[ir.Value], arrays: Mapping[str, np.ndarray]
) -> tuple[list[Feeds], int]:
    """Deal the samples out to runs."""
    counts: dict[str, int] = {}
    fixed: dict[str, int] = {}
    for port in ports:
        array = arrays[name_of(port)]
        if array.ndim:
            counts[name_of(port)] = len(array)
            first = (dimensions_of(port) or [None])[0]
            if isinstance(first, int):
                fixed[name_of(port)] = first
    if not counts:
        return [dict(arrays)], 1
    runs = {counts[name] / size for name, size in fixed.items()}
    if not fixed:
        if len(set(counts.values())) > 1:
            raise ExportError(
                f"{what}: the arrays hold different numbers of samples: "
                + ", ".join(f"{name} {count}" for name, count in counts.items())
            )
        count = next(iter(counts.values()))
        edges = list(range(0, count, BATCH))
        sliced = [
            {name: a[i : i + BATCH] if a.ndim else a for name, a in arrays.items()} for i in edges
        ]
        return list(sliced), count
    number = int(min(runs))
    for name, count in counts.items():
        size = fixed.get(name, count // number if number else 0)
        if not number or size * number != count:
            raise ExportError(
                f"{what}: {name} holds {count} samples; the model takes "
                + (f"{size} in every run" if name in fixed else f"as many of it in {number} runs")
            )
    return list(_dealt(arrays, number)), max(counts.values())


def _dealt(arrays: Mapping[str, np.ndarray], number: int) -> Iterator[Feeds]:
    for run in range(number):
        yield {
            name: a[run * (len(a) // number) : (run + 1) * (len(a) // number)] if a.ndim else a
            for name, a in arrays.items()
        }
