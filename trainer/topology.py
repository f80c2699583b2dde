"""One update of a model's topology: the method's plan, the new masks, and their side effects."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from .methods import DropFractions, LayerInputs, SparseMethod
from .optimizer_state import reset_optimizer_state
from .processes import Processes
from .seeds import derived_generator
from .shared_windows import average_windows
from .sparse_layer import SparseLayer
from .update import LayerUpdate, UpdateStats, updated_layer


@dataclass(frozen=True)
class TopologyUpdate:
    """What ``Sparsifier.step`` changed.

    Attributes:
        step: optimizer steps so far.
        drop_fraction: fraction of the active weights that was dropped.
        layers: statistics by parameter name.
        skipped: layers that kept their topology because they had no finite gradient.

    """

    step: int
    drop_fraction: float
    layers: dict[str, UpdateStats]
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class TopologyUpdater:
    """Updates the masks of a model's layers by a method.

    Attributes:
        method: the method.
        layers: the sparse layers by parameter name.
        optimizers: their state of removed and grown weights is reset.
        processes: their gradients are averaged first, and all take the masks of rank 0.
        seed: seed of random growth.

    """

    method: SparseMethod
    layers: Mapping[str, SparseLayer]
    optimizers: Sequence[Optimizer]
    processes: Processes
    seed: int

    @torch.no_grad()
    def __call__(self, step: int, fractions: DropFractions) -> TopologyUpdate:
        """Update all layers from the gradients in their windows, and clear the windows.

        A layer without a finite gradient keeps its topology, with a RuntimeWarning.

        Args:
            step: optimizer steps so far.
            fractions: drop fractions of this update and of the following one.

        Raises:
            ValueError: a weight is not finite.

        """
        average_windows(self.layers.values(), self.method, self.processes)
        with _one_thread():
            return self._update(step, fractions)

    def _update(self, step: int, fractions: DropFractions) -> TopologyUpdate:
        skipped = [
            name
            for name, layer in self.layers.items()
            if self.method.uses_gradient and layer.window.total is None
        ]
        inputs = _Inputs(
            {name: layer for name, layer in self.layers.items() if name not in skipped},
            self.seed,
            step,
            uses_gradient=self.method.uses_gradient,
            behind_mask=self.method.dense_to_sparse,
        )
        stats = {}
        plans = self.method.plan(inputs, fractions) if inputs else {}
        for name, plan in plans.items():
            layer, before = self.layers[name], inputs[name]
            try:
                result = self._agreed(before, self.method.update(before, plan))
            except ValueError as error:
                raise ValueError(f"step {step}: {name!r} cannot be updated: {error}") from error
            if self.method.redistributes:
                layer.budget = plan.budget
            self._apply(layer, result)
            stats[name] = result.stats
        for layer in self.layers.values():
            layer.window.clear()
        if skipped:
            warnings.warn(
                f"step {step}: no finite gradient in the window for {', '.join(skipped)}; "
                "these layers keep their topology.",
                RuntimeWarning,
                stacklevel=7,
            )
        return TopologyUpdate(step, fractions.current, stats, tuple(skipped))

    def _agreed(self, before: LayerInputs, result: LayerUpdate) -> LayerUpdate:
        """Copy the mask of rank 0, in case rounding produced a different one here."""
        if self.processes.count == 1:
            return result
        mask = result.mask.contiguous()
        self.processes.broadcast_(mask)
        return updated_layer(before.weight, before.mask, mask)

    def _apply(self, layer: SparseLayer, result: LayerUpdate) -> None:
        if self.method.dense_to_sparse:  # dropped weights keep training, and their state with them
            layer.set_mask(layer.part(layer.turned(result.mask)).contiguous())
            return
        layer.local_weight.copy_(layer.part(layer.turned(result.weight)))
        layer.set_mask(layer.part(layer.turned(result.mask)).contiguous())
        changed = layer.part(layer.turned(~result.mask | result.grown))
        for optimizer in self.optimizers:
            reset_optimizer_state(optimizer, layer.weight, changed)
        layer.mask_gradient()


class _Inputs(Mapping[str, LayerInputs]):
    """What a method sees of the layers, each gathered from its processes when it is looked up.

    A plan that looks at one layer after the other so holds two whole ones at most, the last and the
    present one.
    """

    def __init__(
        self,
        layers: Mapping[str, SparseLayer],
        seed: int,
        step: int,
        *,
        uses_gradient: bool,
        behind_mask: bool,
    ) -> None:
        self._layers, self._seed, self._step = layers, seed, step
        self._uses_gradient, self._behind_mask = uses_gradient, behind_mask

    def __getitem__(self, name: str) -> LayerInputs:
        layer = self._layers[name]
        mask = layer.turned(layer.whole(layer.mask))

        def random() -> Tensor:
            generator = derived_generator(self._seed, name, "growth", self._step)
            return torch.rand(mask.shape, generator=generator).to(mask.device)

        gradient = layer.window.average() if self._uses_gradient else None
        if gradient is not None:
            gradient = layer.turned(layer.whole(gradient))
        whole = layer.weight if layer.sharding is None else layer.whole(layer.local_weight)
        weight = layer.turned(layer.whole(layer.dense_weight) if self._behind_mask else whole)
        return LayerInputs(weight, mask, gradient, layer.budget, layer.may_ablate, random)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Restrict torch to the calling thread.

    On the CPU an update is hundreds of short operations between selections by NumPy, which is
    single-threaded anyway. With two threads, ResNet-50's update took 1.1 to 1.6 s on two idle cores
    and 4 to 12 s if one was busy, since each operation waits for the slower thread; with one, 1.1
    to 1.8 s.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
