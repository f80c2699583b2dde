"""What the rules that expand operators share: the model, what decides, and constants."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ...ort_ops.format.condensed import CondensedWeight
from ...ort_ops.format.conv_geometry import ConvGeometry
from ..forms import IMAGE_SIZE, MIN_GAIN, Chooser
from ..gpu_cost import GpuCostModel
from .access import graph_of, label_of
from .builder import Builder, Size
from .condense_reports import kept_of
from .constants import ConstantWeight, resolve_constant
from .nodes import Names

KINDS = ("float32", "float16")
"""Types of weights of what is rewritten."""

_AROUND = 4e-6
"""Seconds of the nodes around a convolution that is written in place of another operator."""

_COPY = 1e-9
"""Seconds for each output that DepthToSpace, Slice or Transpose moves, as measured with 131,072
outputs on one thread of a Zen 4."""


@dataclass
class Expansion:
    """One run of the pass.

    Attributes:
        model: whose operators are expanded.
        chooser: what decides.
        min_sparsity: share of zeros from which a weight counts as sparse.
        masks: bool arrays by name of the initializer; when given, only those weights are sparse.
        names: names in use in the model.

    """

    model: ir.Model
    chooser: Chooser
    min_sparsity: float
    masks: dict[str, np.ndarray] | None
    names: Names = field(init=False)

    def __post_init__(self) -> None:
        self.names = Names(self.model)

    @property
    def opset(self) -> int:
        """Version of the standard operators."""
        return self.model.opset_imports.get("", 1)

    def weight(self, value: ir.Value) -> ConstantWeight | None:
        """Return the constant that a value is, None where it is none."""
        found = resolve_constant(value, self.opset, self.masks)
        return found if isinstance(found, ConstantWeight) else None

    def is_sparse(self, value: ir.Value, dimensions: Collection[int]) -> bool:
        """Return whether a value is a sparse weight of one of these numbers of dimensions."""
        found = self.weight(value)
        if found is None or found.array.ndim not in dimensions or not found.array.size:
            return False
        return self.masked(found) and self.enough_zeros(kept_of(found))

    def masked(self, found: ConstantWeight) -> bool:
        """Return whether a weight has a mask, where masks decide."""
        return self.masks is None or found.mask is not None

    def enough_zeros(self, kept: np.ndarray) -> bool:
        """Return whether the entries that are left out are as many as they have to be."""
        return 1 - float(np.count_nonzero(kept)) / kept.size >= self.min_sparsity

    def builder(self, node: ir.Node) -> Builder:
        """Build before a node, with names of its own."""
        prefix = label_of(node) or node.op_type.lower()
        return Builder(graph_of(node), node.prepend, self.names, prefix, node.op_type)

    def fixed_policy(self) -> str | None:
        """Say why no operator is rewritten, whatever it holds; None where one may be."""
        if self.chooser.portable:
            return "only standard operators may be used"
        if self.chooser.policy not in ("auto", "condensed"):
            return f"policy {self.chooser.policy}, which leaves this operator as it is"
        if self.chooser.policy == "auto" and isinstance(self.chooser.costs, GpuCostModel):
            return "on a GPU the operator is left as it is"
        return None

    def slower_as_conv(
        self,
        weight: np.ndarray,
        kept: np.ndarray,
        geometry: ConvGeometry,
        shape: list[Size] | None,
        work: float = 1,
        copies: int = 0,
    ) -> str | None:
        """Say why an operator is not written as a sparse convolution; None where it is.

        Args:
            weight: of the convolution, ``[out, in / group, *kernel]``.
            kept: its entries that are stored.
            geometry: of the convolution.
            shape: of its X.
            work: multiplications of the operator as a share of those of the convolution.
            copies: how often the outputs of the convolution are copied after it.

        """
        if (reason := self.fixed_policy()) is not None or self.chooser.policy == "condensed":
            return reason
        condensed = CondensedWeight.from_dense(weight.astype(np.float32), None, kept)
        seconds = self.chooser.conv_seconds(condensed, geometry, shape)
        around = _AROUND + copies * _COPY * self._outputs(geometry, shape)
        ratio = work * seconds["dense"] / (seconds["condensed"] + around)
        if ratio >= MIN_GAIN:
            return None
        return f"a sparse convolution in its place is predicted {ratio:.2g}× as fast"

    def _outputs(self, geometry: ConvGeometry, shape: list[Size] | None) -> int:
        first, *sizes = (shape[0], *shape[2:]) if shape else (None,) * (1 + geometry.axes)
        known = [size if isinstance(size, int) else IMAGE_SIZE for size in sizes]
        batch = first if isinstance(first, int) else self.chooser.batch
        return batch * geometry.out_channels * math.prod(geometry.output_sizes(known))
