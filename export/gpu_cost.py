"""What the exporter predicts for a GPU: a layer dense, and by the kernel that will run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..ort_ops import cuda_kernel_serving
from ..ort_ops.format.conv_geometry import ConvGeometry
from .errors import ExportError
from .gpu_kernels import KERNELS, SCALED_ERROR, KernelCost, Layer, dense_seconds, family_of
from .gpus import DENSE, MEASURED, Gpu, known_gpus

_TO_MICROSECONDS = 1e6

_LAUNCH = 3.2
"""Microseconds of a launch that puts what was computed in its places."""

_CONV_FAMILY = "conv-direct"
_CONV_RATIO = {1: 0.9, 8: 0.26, 32: 0.18}
"""Speed of condensed convolutions as a share of cuDNN's, by images: ResNet-50, 90 % sparse."""


@dataclass(frozen=True)
class CountedKernel:
    """The kernel that a session will take for a layer, as far as the exporter knows.

    Attributes:
        name: of its row in the dispatch table.
        seconds: that it takes; infinite for one whose time is not known.
        margin: how much faster than dense it must be predicted to be.
        measured: whether the kernel itself was measured, on this GPU or another.
        origin: where the seconds come from.

    """

    name: str
    seconds: float
    margin: float
    measured: bool
    origin: str


@dataclass(frozen=True)
class GpuConvCosts:
    """Convolutions: cuDNN is faster at everything that was measured."""

    gpu: Gpu
    dtype: str
    reorder: float = 0.0

    def dense(self, geometry: ConvGeometry, batch: int, sizes: Sequence[int]) -> float:
        """Predict cuDNN."""
        return self._dense(geometry, batch, sizes, geometry.out_channels)

    def condensed(
        self,
        geometry: ConvGeometry,
        batch: int,
        sizes: Sequence[int],
        stored: int,  # noqa: ARG002, as of other machines
    ) -> float:
        """Predict the direct kernel by the share of cuDNN's speed that it had in ResNet-50."""
        ratio = next(r for most, r in reversed(_CONV_RATIO.items()) if batch >= most)
        return self.gpu.factor(_CONV_FAMILY) * self.dense(geometry, batch, sizes) / ratio

    def structured(
        self, geometry: ConvGeometry, batch: int, sizes: Sequence[int], active: int
    ) -> float:
        """Predict the active filters, and a launch that puts their channels in their places."""
        launch = self.gpu.factor(DENSE) * _LAUNCH / _TO_MICROSECONDS
        return self._dense(geometry, batch, sizes, max(active, 1)) + launch

    def _dense(
        self, geometry: ConvGeometry, batch: int, sizes: Sequence[int], channels: int
    ) -> float:
        pixels = math.prod(geometry.output_sizes(tuple(sizes)))
        size = (batch * pixels, channels, geometry.in_features)
        return dense_seconds(self.gpu, Layer(*size, 1, self.dtype))


@dataclass(frozen=True)
class GpuCostModel:
    """Predicted seconds of a layer on a GPU, under the names that a CostModel has.

    Attributes:
        gpu: whose times they are.
        dtype: what the graph computes in: float32 (TF32 where the GPU has it), float16 or bfloat16.
        remark: for the report, why it is this GPU.
        unproven: whether sessions take kernels that have not run on a GPU.
        convolutions: costs of convolutions.

    Raises:
        ExportError: the GPU does not compute in the type.

    """

    gpu: Gpu
    dtype: str
    remark: str = ""
    unproven: bool = False
    convolutions: GpuConvCosts = field(init=False)

    threads = 1
    measured_threads = 1

    def __post_init__(self) -> None:
        if self.dtype == "bfloat16" and not self.gpu.has_bfloat16:
            raise ExportError(
                f"{self.gpu.name} has no bfloat16 (it is there from compute capability 8.0 on); "
                "export for it with --precision float16"
            )
        object.__setattr__(self, "convolutions", GpuConvCosts(self.gpu, self.dtype))

    @property
    def origin(self) -> str:
        """Say in a few words where the times come from."""
        gpu = self.gpu
        if DENSE in gpu.factors:
            how = f"measured on {gpu.name}"
        else:
            measured = known_gpus()[MEASURED].name
            how = (
                f"estimated for {gpu.name} from those measured on {measured}, by multiprocessors, "
                "bandwidth and clock"
            )
        kind = "TF32" if self.dtype == "float32" and gpu.has_bfloat16 else self.dtype
        return f"times in {kind} {how}" + (f"; {self.remark}" if self.remark else "")

    @property
    def machine(self) -> str:
        """What reports name as what decided."""
        return self.origin

    def kernel(self, rows: int, out_features: int, in_features: int, stored: int) -> CountedKernel:
        """Return the kernel that serves a condensed layer, from the library's own dispatch."""
        layer = Layer(rows, out_features, in_features, max(stored, 1), self.dtype)
        row = cuda_kernel_serving(
            activations=self.dtype,
            in_features=in_features,
            out_features=out_features,
            weights=layer.stored,
            batch=rows,
            multiprocessors=self.gpu.multiprocessors,
            shared_bytes=self.gpu.shared_bytes,
            capability=self.gpu.capability,
            unproven=self.unproven,
        )
        family = family_of(row.name)
        cost = KERNELS.get(family)
        if cost is None:
            return CountedKernel(row.name, math.inf, math.inf, False, "not known")
        seconds = self.gpu.factor(family) * cost.seconds(self.gpu, layer)
        return CountedKernel(row.name, seconds, *self._trust(cost, family))

    def _trust(self, cost: KernelCost, family: str) -> tuple[float, bool, str]:
        measured = cost.measured or family in self.gpu.factors
        return cost.margin(self.gpu, family), measured, cost.origin(self.gpu, family)

    def dense(self, batch: int, out_features: int, in_features: int) -> float:
        """Predict a dense Gemm."""
        return dense_seconds(self.gpu, Layer(batch, out_features, in_features, 1, self.dtype))

    def condensed(self, batch: int, out_features: int, in_features: int, stored: int) -> float:
        """Predict a condensed node by the kernel that serves it."""
        return self.kernel(batch, out_features, in_features, stored).seconds

    def structured(self, batch: int, out_features: int, in_features: int, active: int) -> float:
        """Predict a dense Gemm of the active rows, and a launch that puts them in their places."""
        gemm = self.dense(batch, max(active, 1), in_features)
        if active == out_features:
            return gemm
        item = 4 if self.dtype == "float32" else 2
        moved = 2 * batch * out_features * item / self.gpu.bytes_per_second
        return gemm + self.gpu.factor(DENSE) * _LAUNCH / _TO_MICROSECONDS + moved

    @property
    def dense_margin(self) -> float:
        """How much faster than dense the active rows alone must be predicted to be."""
        return _DENSE_MARGIN if DENSE in self.gpu.factors else _DENSE_MARGIN * SCALED_ERROR

    def origins(self, kernels: Iterable[str]) -> tuple[str, ...]:
        """Say of kernels that were counted on where their times come from, a line each."""
        lines = []
        for name in dict.fromkeys(kernels):
            family = family_of(name)
            lines.append(f"counted on {name}: {KERNELS[family].origin(self.gpu, family)}")
        return tuple(lines)

    def in_precision(self, dtype: str) -> GpuCostModel:
        """Return the costs of a graph that computes in another type."""
        return replace(self, dtype=dtype)


_DENSE_MARGIN = 1.1
"""Two dense layers of one GPU against each other: cuBLAS's times jump as much between sizes."""
