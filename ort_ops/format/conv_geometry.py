"""The geometry of a convolution: the attributes of ``ai.fanin::CondensedConv``.

Imports neither onnx nor torch, so that every part of the product can use it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from .condensed import CondensedWeight

_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True)
class ConvGeometry:
    """A convolution over one or two spatial axes, with explicit padding.

    Omitted attributes get their defaults (strides and dilations 1, pads 0). Construction raises
    ValueError, naming the attribute, for anything that the op refuses.

    Attributes:
        in_channels: channels of X, a multiple of ``group``.
        out_channels: channels of Y, a multiple of ``group``.
        kernel_shape: one size for each spatial axis, ``(kh, kw)`` or ``(kl,)``.
        strides: one step for each axis.
        pads: zeros around X in ONNX's order: the beginnings of all axes, then their ends.
        dilations: one distance between taps for each axis.
        group: number of groups of channels; an output reads the channels of its own group.

    """

    in_channels: int
    out_channels: int
    kernel_shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    group: int = 1

    def __post_init__(self) -> None:
        axes = len(self.kernel_shape)
        if axes not in (1, 2):
            raise ValueError(
                f"kernel_shape is {list(self.kernel_shape)}, it must have one or two sizes"
            )
        fillers = {"kernel_shape": (), "strides": (1,), "pads": (0, 0), "dilations": (1,)}
        for name, filler in fillers.items():
            given = tuple(operator.index(size) for size in getattr(self, name))
            object.__setattr__(self, name, given or filler * axes)
        for name in ("in_channels", "out_channels", "group"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))
            _require(name, getattr(self, name), 1)
        for name, least in (("kernel_shape", 1), ("strides", 1), ("pads", 0), ("dilations", 1)):
            sizes = getattr(self, name)
            length = 2 * axes if name == "pads" else axes
            if len(sizes) != length:
                raise ValueError(f"{name} is {list(sizes)}, it must have {length} numbers")
            for place, size in enumerate(sizes):
                _require(f"{name}[{place}]", size, least)
        for name in ("in_channels", "out_channels"):
            if getattr(self, name) % self.group:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, it must be a multiple of group, "
                    f"which is {self.group}"
                )
        _require("in_channels / group * kernel_shape", self.in_features, 1)

    @property
    def axes(self) -> int:
        """Spatial axes: 1 or 2."""
        return len(self.kernel_shape)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The dense weight's shape: ``[out_channels, in_channels / group, *kernel_shape]``."""
        return (self.out_channels, self.in_channels // self.group, *self.kernel_shape)

    @property
    def in_features(self) -> int:
        """Columns of the flattened weight: the size of an output's receptive field."""
        return self.in_channels // self.group * math.prod(self.kernel_shape)

    @property
    def depthwise(self) -> bool:
        """Whether every filter reads one channel, its own."""
        return self.group == self.in_channels == self.out_channels > 1

    def keeps_size(self, axis: int) -> bool:
        """Return whether Y is as long as X along a spatial axis, whatever that length is."""
        return self.strides[axis] == 1 and self._shrinkage(axis) == 0

    def output_size(self, axis: int, size: int) -> int:
        """Return Y's length along a spatial axis; below 1 if the kernel is larger than padded X."""
        return (size - 1 - self._shrinkage(axis)) // self.strides[axis] + 1

    def output_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return Y's lengths along all spatial axes."""
        return tuple(self.output_size(axis, size) for axis, size in enumerate(sizes))

    def attributes(self) -> dict[str, int | list[int]]:
        """Return all attributes of the node by name."""
        return {
            "kernel_shape": list(self.kernel_shape),
            "strides": list(self.strides),
            "pads": list(self.pads),
            "dilations": list(self.dilations),
            "group": self.group,
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
        }

    def check(self, weight: CondensedWeight) -> None:
        """Raise ValueError unless the condensed weight has this convolution's size."""
        wanted = (self.out_channels, self.in_features)
        if (weight.out_features, weight.in_features) != wanted:
            raise ValueError(
                f"the weight is [{weight.out_features}, {weight.in_features}], a convolution of "
                f"weight shape {list(self.weight_shape)} needs {list(wanted)}"
            )

    def _shrinkage(self, axis: int) -> int:
        reach = self.dilations[axis] * (self.kernel_shape[axis] - 1)
        return reach - self.pads[axis] - self.pads[self.axes + axis]


def _require(name: str, value: int, least: int) -> None:
    if not least <= value <= _INT32_MAX:
        raise ValueError(f"{name} is {value}, it must be {least} to {_INT32_MAX}")
