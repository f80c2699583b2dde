"""One update of a model's topology: the method's plan, the new masks, and their side effects."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from .methods import DropFractions, LayerInputs, SparseMethod
from .optimizer_state import reset_optimizer_state
from .processes import Processes
from .seeds import derived_generator
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
        inputs = {name: self._inputs(layer, step) for name, layer in self.layers.items()}
        skipped = [
            name
            for name, layer in inputs.items()
            if self.method.uses_gradient and layer.gradient is None
        ]
        inputs = {name: layer for name, layer in inputs.items() if name not in skipped}
        stats = {}
        plans = self.method.plan(inputs, fractions) if inputs else {}
        for name, plan in plans.items():
            layer = self.layers[name]
            try:
                result = self._agreed(layer, self.method.update(inputs[name], plan))
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
                stacklevel=6,
            )
        return TopologyUpdate(step, fractions.current, stats, tuple(skipped))

    def _inputs(self, layer: SparseLayer, step: int) -> LayerInputs:
        def random() -> Tensor:
            generator = derived_generator(self.seed, layer.name, "growth", step)
            return torch.rand(layer.turned(layer.mask).shape, generator=generator).to(
                layer.weight.device
            )

        gradient = layer.window.average() if self.method.uses_gradient else None
        if gradient is not None:
            gradient = layer.turned(gradient)
        weight, mask = layer.turned(self._weight(layer)), layer.turned(layer.mask)
        return LayerInputs(weight, mask, gradient, layer.budget, layer.may_ablate, random)

    def _agreed(self, layer: SparseLayer, result: LayerUpdate) -> LayerUpdate:
        """Copy the mask of rank 0, in case rounding produced a different one here."""
        if self.processes.count == 1:
            return result
        mask = result.mask.contiguous()
        self.processes.broadcast_(mask)
        return updated_layer(layer.turned(self._weight(layer)), layer.turned(layer.mask), mask)

    def _weight(self, layer: SparseLayer) -> Tensor:
        """Return the weights that an update is about: the dense ones, if they train."""
        return layer.dense_weight if self.method.dense_to_sparse else layer.weight

    def _apply(self, layer: SparseLayer, result: LayerUpdate) -> None:
        if self.method.dense_to_sparse:  # dropped weights keep training, and their state with them
            layer.set_mask(layer.turned(result.mask).contiguous())
            return
        layer.weight.copy_(layer.turned(result.weight))
        layer.set_mask(layer.turned(result.mask).contiguous())
        changed = layer.turned(~result.mask | result.grown)
        for optimizer in self.optimizers:
            reset_optimizer_state(optimizer, layer.weight, changed)
        layer.mask_gradient()


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


@torch.no_grad()
def average_windows(
    layers: Iterable[SparseLayer], method: SparseMethod, processes: Processes
) -> None:
    """Average the gradient windows over the processes; every process must call it."""
    if processes.count == 1 or not method.uses_gradient:
        return
    for layer in layers:
        layer.window.average_over(layer.weight, processes.sum_, processes.count)
