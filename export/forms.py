"""The forms that a layer can have in a file, and the choice between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from ..ort_ops import cuda_status, takes_unproven_kernels
from ..ort_ops.format.condensed import CondensedWeight
from ..ort_ops.format.conv_geometry import ConvGeometry
from .cost_model import CostModel
from .dimensions import MAX_SIZE, Dims, require_sizes
from .gpu_cost import CountedKernel, GpuCostModel
from .gpus import CUDA, device_of, find_gpu
from .quantized_costs import Form
from .report import Decision, LayerReport, PredictedTimes
from .row_groups import MAX_GROUPS, split_rows

Policy = Literal["auto", "condensed", "structured", "dense"]

POLICIES: tuple[Policy, ...] = get_args(Policy)

MIN_GAIN = 1.05
"""How much faster than dense a form must be predicted to be; the prediction errs as much."""

MIN_SAVED = 1e-6
"""Seconds that it must save: under a microsecond what surrounds a node decides, not the node."""

GPU_MIN_SAVED = 3e-7
"""The same on a GPU, where a small layer takes little more than its launch."""

MAX_THREADS = 1024
"""Most threads of a session, as open_session takes them."""

TOKENS = 32
"""What a symbolic dimension that is not the batch counts for, since no file says how long it is."""


_BATCH_NAMES = ("batch", "batch_size")
"""Symbols that are the batch on whichever axis they stand: attention puts the tokens first."""

IMAGE_SIZE = 56
"""What a symbolic size of an image counts for, on each of its axes."""


@dataclass(frozen=True)
class Choice:
    """A form with its reason.

    Attributes:
        form: "condensed", "structured" or "dense".
        reason: for the report.
        speedup: predicted time of dense over that of the form; None where nothing was predicted.
        times: that were predicted.
        kernel: name of the one that a condensed layer was counted with, on a GPU.

    """

    form: Decision
    reason: str
    speedup: float | None = None
    times: PredictedTimes | None = None
    kernel: str = ""


@dataclass(frozen=True)
class Chooser:
    """Decides the form of each layer.

    Attributes:
        policy: "auto" takes the form that is predicted to be the fastest; the others name one.
        batch: value of the first symbolic dimension that "auto" decides for.
        portable: whether only standard operators may be used.
        costs: what "auto" decides by, for a number of threads.
        dims: sizes of symbolic dimensions by name.
        precision: what the graph computes in that is chosen for.
        tokens: value of every other symbolic dimension: 1 in a language model with a cache, most of
            whose runs decode one token.

    """

    policy: Policy = "auto"
    batch: int = 1
    portable: bool = False
    costs: CostModel | GpuCostModel = field(default_factory=CostModel.of_this_machine)
    dims: Dims = field(default_factory=dict)
    precision: str = "float32"
    tokens: int = TOKENS

    @classmethod
    def of(
        cls,
        policy: str,
        batch: int,
        portable: bool,
        threads: int = 1,
        device: str = "cpu",
        precision: str = "float32",
        dims: Dims | None = None,
    ) -> Chooser:
        """Check the options and load the cost model of the device, or for threads of a session.

        ``device`` is "cpu", "cuda" or "cuda:NAME" of a known GPU; there, costs are those of a graph
        that computes in ``precision``.

        Raises:
            ValueError: an option is out of its range.
            ExportError: the user's calibration cannot be read, or the GPU lacks the precision.

        """
        known = next((known for known in POLICIES if known == policy), None)
        if known is None:
            raise ValueError(f"policy is {policy!r}, it must be {', '.join(POLICIES)}")
        if batch < 1:
            raise ValueError(f"batch is {batch}, it must be at least 1")
        if batch > MAX_SIZE:
            raise ValueError(f"batch is {batch}, it must be at most {MAX_SIZE}")
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads is {threads}, it must be 1 to {MAX_THREADS}")
        if portable and policy == "condensed":
            raise ValueError("portable files hold no condensed layers; choose another policy")
        dims = dict(dims or {})
        require_sizes(dims)
        kind, name = device_of(device)
        if kind != CUDA:
            costs = CostModel.of_this_machine(threads)
            return cls(known, batch, portable, costs, dims, precision)
        if threads != 1:
            raise ValueError(f"threads is {threads}, but layers are chosen for a GPU; leave it out")
        status = None if name else cuda_status()
        gpu, remark = find_gpu(name, status.devices, status.facts) if status else find_gpu(name, ())
        gpu_costs = GpuCostModel(gpu, precision, remark, takes_unproven_kernels())
        return cls(known, batch, portable, gpu_costs, dims, precision)

    @property
    def device(self) -> str:
        """What the costs are of: "cpu" or "cuda"."""
        return CUDA if isinstance(self.costs, GpuCostModel) else "cpu"

    @property
    def other_cpu(self) -> str:
        """What to do about times of another CPU; empty where none decide."""
        costs = self.costs
        return costs.other_cpu if self.policy == "auto" and isinstance(costs, CostModel) else ""

    def choose(self, weight: CondensedWeight, rows: int) -> Choice:
        """Choose for a weight that meets ``rows`` rows of X at a time."""
        size = (weight.out_features, weight.in_features)
        dense = self.costs.dense(rows, *size)
        groups = self.groups(weight, rows)
        seconds: dict[Decision, float] = {"condensed": self._seconds(groups, rows)}
        if weight.active < weight.out_features or self.policy == "structured":
            seconds["structured"] = self.costs.structured(rows, *size, weight.active)
        choice = self._decide(dense, seconds, _at_rows(rows), self._counted(groups, rows))
        stored = _equal_stored(weight)
        equal = None if stored is None else self.costs.condensed(rows, *size, stored)
        return _with_times(choice, dense, seconds, equal)

    def conv_seconds(
        self,
        weight: CondensedWeight,
        geometry: ConvGeometry,
        shape: Sequence[int | str | None] | None,
    ) -> dict[Decision, float]:
        """Predict each form of a convolution whose X has the shape ``[N, C, ...]``."""
        batch, sizes = self.images(geometry, shape)
        costs = self.costs.convolutions
        seconds: dict[Decision, float] = {
            "dense": costs.dense(geometry, batch, sizes),
            "condensed": costs.condensed(geometry, batch, sizes, weight.values.size),
        }
        if weight.active < weight.out_features or self.policy == "structured":
            seconds["structured"] = costs.structured(geometry, batch, sizes, weight.active)
        return seconds

    def choose_conv(
        self,
        weight: CondensedWeight,
        geometry: ConvGeometry,
        shape: Sequence[int | str | None] | None,
        settled: Decision | None = None,
    ) -> Choice:
        """Choose for a convolution; ``settled`` is the form that suits its neighbors, if known."""
        if self.policy in ("structured", "dense") and geometry.depthwise and _is_whole(weight):
            return Choice("dense", "depthwise, dense as it was")
        batch, sizes = self.images(geometry, shape)
        seconds = self.conv_seconds(weight, geometry, shape)
        where = _at_images(batch, sizes)
        dense = seconds.pop("dense")
        choice = self._decide(dense, seconds, where)
        if self.policy == "auto" and settled is not None and settled != choice.form:
            if settled == "dense":
                text = f"{choice.form} {choice.reason}, less than reordering activations costs"
                choice = Choice("dense", text)
            else:
                speedup = dense / seconds[settled]
                text = f"{speedup:.2g}× predicted {where}, nothing to reorder"
                choice = Choice(settled, text, speedup)
        stored, costs = _equal_stored(weight), self.costs.convolutions
        equal = None if stored is None else costs.condensed(geometry, batch, sizes, stored)
        return _with_times(choice, dense, seconds, equal)

    def choose_quantized(
        self,
        weight: CondensedWeight,
        shape: Sequence[int | str | None] | None,
        geometry: ConvGeometry | None,
        form: Form,
    ) -> Choice:
        """Choose between the condensed form in 8 bits and the source's own dense one.

        There is no structured form in 8 bits. The forms in float32 are no candidates: their results
        would be others than those of the source.

        Args:
            weight: its values are whole numbers.
            shape: of X.
            geometry: of a convolution; None for a linear layer.
            form: of a linear layer.

        """
        if self.portable:
            return Choice("dense", "only standard operators may be used")
        if self.policy == "condensed":
            return Choice("condensed", "policy condensed")
        if self.policy == "structured":
            return Choice("dense", "there is no structured form in 8 bits")
        if self.policy != "auto":
            return Choice("dense", f"policy {self.policy}, 8 bits as it was")
        if isinstance(self.costs, GpuCostModel):
            return Choice("dense", "the ops in 8 bits run on CPUs only")
        costs, stored = self.costs.quantized, weight.values.size
        if geometry is None:
            rows, size = self.rows_of(shape), (weight.out_features, weight.in_features)
            dense = costs.dense(form, rows, *size)
            condensed = costs.condensed(form, rows, *size, stored)
            choice = self._decide(dense, {"condensed": condensed}, _at_rows(rows))
            return _with_times(choice, dense, {"condensed": condensed})
        batch, sizes = self.images(geometry, shape)
        dense = costs.dense_conv(geometry, batch, sizes)
        condensed = costs.condensed_conv(geometry, batch, sizes, stored)
        choice = self._decide(dense, {"condensed": condensed}, _at_images(batch, sizes))
        return _with_times(choice, dense, {"condensed": condensed})

    def quantized_times(self, layers: Iterable[LayerReport]) -> str:
        """Say where the times of layers in 8 bits come from; empty where none decided."""
        costs = self.costs
        if self.policy != "auto" or isinstance(costs, GpuCostModel):
            return ""
        return costs.quantized.origin if any(x.values_dtype == "int8" for x in layers) else ""

    def images(
        self, geometry: ConvGeometry, shape: Sequence[int | str | None] | None
    ) -> tuple[int, list[int]]:
        """Return the batch and the sizes of the images, symbols as documented."""
        first, *sizes = (shape[0], *shape[2:]) if shape else (None,) * (1 + geometry.axes)
        # No form is faster on nothing; what is empty is decided as if it had one of each.
        batch = self._size(first, self.batch)
        return max(1, batch), [max(1, self._size(size, IMAGE_SIZE)) for size in sizes]

    def _size(self, size: int | str | None, unknown: int) -> int:
        """Return a size, a symbolic one as it was given, else ``unknown``."""
        return size if isinstance(size, int) else self.dims.get(str(size), unknown)

    def _counted(self, groups: Sequence[CondensedWeight], rows: int) -> CountedKernel | None:
        """Return the kernel of a condensed layer that is trusted least, on a GPU."""
        costs = self.costs
        if not isinstance(costs, GpuCostModel):
            return None
        kernels = [costs.kernel(rows, g.out_features, g.in_features, g.values.size) for g in groups]
        return max(kernels, key=lambda kernel: kernel.margin)

    @property
    def min_gain(self) -> float:
        """How much faster than dense a form must be predicted to be, unless its kernel says."""
        return self.costs.dense_margin if isinstance(self.costs, GpuCostModel) else MIN_GAIN

    def _decide(
        self,
        dense: float,
        seconds: dict[Decision, float],
        where: str,
        counted: CountedKernel | None = None,
    ) -> Choice:
        """Choose the fastest form that is trusted to be faster, or the one that the policy names.

        Args:
            dense: seconds of the dense form.
            seconds: of the others.
            where: rows or images, for the reason.
            counted: kernel of the condensed form, on a GPU.

        """
        if self.policy != "auto":
            speedup = dense / seconds[self.policy] if self.policy != "dense" else None
            return Choice(self.policy, f"policy {self.policy}", speedup or None)
        usable = [form for form in seconds if not (self.portable and form == "condensed")]
        if not usable:
            return Choice("dense", "no neuron is ablated, and only standard operators may be used")
        gains = dict.fromkeys(usable, self.min_gain)
        if counted and "condensed" in gains:
            gains["condensed"] = counted.margin
        trusted = [form for form in usable if dense / seconds[form] >= gains[form]]
        form = min(trusted or usable, key=seconds.__getitem__)
        speedup = dense / seconds[form]
        kernel = ""
        if counted and form == "condensed":
            kernel = counted.name
            where += f" by {kernel}" + (", an estimate" if not counted.measured else "")
        if not trusted:
            text = f"{form} predicted {speedup:.2f}× as fast {where}"
            if speedup == 0:
                text = f"the time of {kernel} is not known"
            elif speedup >= 1 and gains[form] > MIN_GAIN:
                text += f", {gains[form]:.3g}× is asked of it"
            return Choice("dense", text)
        min_saved = GPU_MIN_SAVED if isinstance(self.costs, GpuCostModel) else MIN_SAVED
        if dense - seconds[form] < min_saved:
            least = "a microsecond" if min_saved == MIN_SAVED else f"{min_saved * 1e6:.1g} µs"
            return Choice("dense", f"{form} predicted to save under {least} {where}")
        return Choice(form, f"{speedup:.2g}× predicted {where}", speedup, kernel=kernel)

    def counted_on(self, layers: Iterable[LayerReport]) -> tuple[str, ...]:
        """Say where the times of the kernels come from that layers were counted with, on a GPU."""
        if self.policy != "auto" or not isinstance(self.costs, GpuCostModel):
            return ()
        return self.costs.origins(layer.kernel for layer in layers if layer.kernel)

    def groups(self, weight: CondensedWeight, rows: int) -> list[CondensedWeight]:
        """Split a weight of unequal rows where that is predicted to be faster than padding it.

        Every group costs a pass over the outputs. Measured with one thread: rows drawn at random
        (padding 20 %) are slower in any number of groups, 0.92 times as fast in two at batch 1;
        2,048 rows of which an eighth is ten times as long are 1.8 times as fast in two at batch 1,
        0.8 times at batch 64.
        """
        best, seconds = [weight], self._seconds([weight], rows)
        for most in range(2, MAX_GROUPS + 1):
            groups = split_rows(weight, most)
            predicted = self._seconds(groups, rows)
            if len(groups) == most and predicted * MIN_GAIN < seconds:
                best, seconds = groups, predicted
        return best

    def _seconds(self, groups: Sequence[CondensedWeight], rows: int) -> float:
        return sum(
            self.costs.condensed(rows, g.out_features, g.in_features, g.values.size) for g in groups
        )

    def rows_of(self, shape: Sequence[int | str | None] | None) -> int:
        """Count the rows of X of a shape: its dimensions but the last, symbols as documented."""
        if shape is None:
            return self.batch
        # Flattened dimensions are written as products, such as 197*batch.
        factors = [
            (axis, factor)
            for axis, size in enumerate(shape[:-1])
            for factor in str(self.dims.get(str(size), size)).replace(" ", "").split("*")
        ]
        sizes, batch_seen = [], False
        for axis, factor in factors:
            if factor.isdecimal():
                sizes.append(int(factor))
            elif factor in self.dims:
                sizes.append(self.dims[factor])
                batch_seen = batch_seen or axis == 0
            else:
                is_batch = axis == 0 or factor in _BATCH_NAMES
                sizes.append(self.batch if is_batch and not batch_seen else self.tokens)
                batch_seen = True
        return max(1, math.prod(sizes))


def _at_rows(rows: int) -> str:
    return f"at {rows} row{'s' * (rows != 1)}"


def _at_images(batch: int, sizes: Sequence[int]) -> str:
    return f"at {'×'.join(map(str, sizes))}" + f", batch {batch}" * (batch != 1)


def _with_times(
    choice: Choice, dense: float, seconds: Mapping[Decision, float], equal_rows: float | None = None
) -> Choice:
    chosen = dense if choice.form == "dense" else seconds[choice.form]
    if not math.isfinite(chosen):
        return choice
    return replace(choice, times=PredictedTimes(dense, chosen, equal_rows))


def _equal_stored(weight: CondensedWeight) -> int | None:
    """Count what the active rows would store if they had equally many entries; None: they have."""
    if not weight.padding:
        return None
    entries = weight.values.size - weight.padding
    return math.ceil(entries / weight.active) * weight.active


def _is_whole(weight: CondensedWeight) -> bool:
    """Return whether a weight stores every entry."""
    full = weight.out_features * weight.in_features
    return weight.values.size == full and weight.padding == 0
