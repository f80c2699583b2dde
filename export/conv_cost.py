"""How long a convolution takes in each form, predicted from measurements of a machine.

A table for each kind of kernel: dense and condensed times over output pixels, entries of the weight
and share of them that is stored, interpolated linearly in logarithms as in :mod:`.cost_model`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ort_ops.dispatch_cost import SPINNING, DispatchCost
from ..ort_ops.format.conv_geometry import ConvGeometry
from .interpolation import are_times, as_numbers, interpolate, require_axis
from .thread_scaling import Work, condensed_seconds, dense_seconds, dense_speedup

KINDS = ("1x1", "1x1 strided", "kxk", "kxk strided", "depthwise", "depthwise strided", "stem")
"""Kernels of one tap and of several, each with steps of one and of more; those with a channel of
their own for each filter; and those of up to :data:`STEM_CHANNELS` channels, with a stride."""

_MANY = 16
"""Rows of X that scale with threads as the pixels of an image do."""

QUANTIZED_KINDS = tuple(kind for kind in KINDS if not kind.startswith("depthwise"))
"""Those that are condensed in 8 bits."""

STEM_CHANNELS = 4
"""Input channels up to which a convolution is of the kind "stem": it has kernels of its own."""


@dataclass(frozen=True)
class ConvTable:
    """Seconds of one image through convolutions of one kind, on the threads of its calibration.

    Attributes:
        kind: one of :data:`KINDS`.
        pixels: output pixels, increasing.
        weights: entries of the dense weight, increasing.
        densities: shares of entries that are stored, increasing.
        dense: ``[pixels][weights]``; what a dense convolution costs among others like it, where the
            runtime keeps activations in the layout that suits it.
        condensed: ``[pixels][weights][densities]``.
        place: seconds for each output entry that the structured form puts in its place; 0 in 8
            bits, which have no such form.
        reorder: seconds for each entry of an activation that the runtime copies from the layout of
            dense convolutions or into it; 0 in 8 bits, where it is the layout of ours.

    """

    kind: str
    pixels: tuple[int, ...]
    weights: tuple[int, ...]
    densities: tuple[float, ...]
    dense: tuple[tuple[float, ...], ...]
    condensed: tuple[tuple[tuple[float, ...], ...], ...]
    place: float = 0.0
    reorder: float = 0.0

    @classmethod
    def parse(cls, fields: Mapping[str, Any], *, quantized: bool = False) -> ConvTable:
        """Build a table from the fields of a JSON object; ``quantized`` are those of 8 bits.

        Raises:
            KeyError, TypeError, ValueError: they are not those of a table.

        """
        table = cls(**fields)
        if table.kind not in (QUANTIZED_KINDS if quantized else KINDS):
            raise ValueError(f"{table.kind!r} is no kind of convolution")
        for name in ("pixels", "weights", "densities"):
            require_axis(f"{name} of {table.kind}", getattr(table, name))
        sizes = (len(table.pixels), len(table.weights), len(table.densities))
        for name, wanted in (("dense", 2), ("condensed", 3)):
            array = as_numbers(getattr(table, name))
            if array.shape != sizes[:wanted] or not are_times(array):
                raise ValueError(f"{name} of {table.kind} is not a table of times")
        for name in () if quantized else ("place", "reorder"):
            if not are_times(as_numbers(getattr(table, name))):
                raise ValueError(f"{name} of {table.kind} is not a time")
        return table


class ConvCostModel:
    """Predicted seconds of a convolution on a number of threads; see thread_scaling for several.

    Args:
        tables: one for each of the kinds.
        threads: to predict for from tables of one thread; 1 takes the tables as they are.
        dispatch: cost of starting several threads.
        kinds: KINDS, or QUANTIZED_KINDS.
        weight_bytes: of an entry of a dense weight.

    Raises:
        ValueError: a kind is missing.

    """

    def __init__(
        self,
        tables: Sequence[ConvTable],
        threads: int = 1,
        dispatch: DispatchCost = SPINNING,
        kinds: Sequence[str] = KINDS,
        weight_bytes: int = 4,
    ) -> None:
        self._threads, self._dispatch, self._weight_bytes = threads, dispatch, weight_bytes
        self._tables = {table.kind: table for table in tables}
        missing = [kind for kind in kinds if kind not in self._tables]
        if missing:
            raise ValueError(f"no times of {', '.join(missing)} convolutions")
        self._axes = {
            table.kind: [
                np.log(np.asarray(axis, np.float64))
                for axis in (table.pixels, table.weights, table.densities)
            ]
            for table in tables
        }
        self._times = {
            (table.kind, form): np.log(np.asarray(getattr(table, form), np.float64))
            for table in tables
            for form in ("dense", "condensed")
        }

    @property
    def reorder(self) -> float:
        """Seconds to copy one entry of an activation into a different layout."""
        seconds = float(np.median([table.reorder for table in self._tables.values()]))
        return seconds / dense_speedup(_MANY, self._threads)

    def dense(self, geometry: ConvGeometry, batch: int, sizes: Sequence[int]) -> float:
        """Predict a dense Conv on images of ``sizes``."""
        return self._dense(geometry, batch, sizes, math.prod(geometry.weight_shape))

    def condensed(
        self, geometry: ConvGeometry, batch: int, sizes: Sequence[int], stored: int
    ) -> float:
        """Predict a condensed node of ``stored`` entries, padding included."""
        weights = math.prod(geometry.weight_shape)
        density = max(stored, 1) / weights
        pixels = output_pixels(geometry, sizes)
        seconds = batch * self._at(geometry, "condensed", pixels, weights, density)
        columns = 0 if geometry.depthwise else geometry.group * geometry.in_features
        work = Work.of_pixels(batch * pixels, geometry.out_channels, columns)
        return condensed_seconds(seconds, work, self._threads, self._dispatch)

    def structured(
        self, geometry: ConvGeometry, batch: int, sizes: Sequence[int], active: int
    ) -> float:
        """Predict a dense Conv of the active filters, and putting them in their places."""
        weights = max(active, 1) * geometry.in_features
        seconds = self._dense(geometry, batch, sizes, weights)
        if active == geometry.out_channels:
            return seconds
        outputs = batch * geometry.out_channels * output_pixels(geometry, sizes)
        return seconds + self._tables[kind_of(geometry)].place * outputs

    def _dense(
        self, geometry: ConvGeometry, batch: int, sizes: Sequence[int], weights: int
    ) -> float:
        seconds = batch * self._at(geometry, "dense", output_pixels(geometry, sizes), weights)
        room = weights * self._weight_bytes // 4
        return dense_seconds(seconds, _MANY, room, self._threads, self._dispatch)

    def _at(self, geometry: ConvGeometry, form: str, *point: float) -> float:
        kind = kind_of(geometry)
        return float(np.exp(interpolate(self._times[kind, form], self._axes[kind], np.log(point))))


def kind_of(geometry: ConvGeometry) -> str:
    """Name the table of a convolution."""
    if geometry.depthwise:
        return "depthwise strided" if max(geometry.strides) > 1 else "depthwise"
    if geometry.in_channels // geometry.group <= STEM_CHANNELS:
        return "stem"
    taps = "1x1" if math.prod(geometry.kernel_shape) == 1 else "kxk"
    return f"{taps} strided" if max(geometry.strides) > 1 else taps


def output_pixels(geometry: ConvGeometry, sizes: Sequence[int]) -> int:
    """Count the pixels of one output image; at least one."""
    return max(1, math.prod(max(1, size) for size in geometry.output_sizes(sizes)))
