"""Weights that are loaded into a model after its ``Sparsifier`` was made."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from torch import nn
from torch.utils.hooks import RemovableHandle

from .model_hooks import ModelHook
from .processes import Processes
from .sparse_layer import SparseLayer
from .straight_through import take_weight


class LoadedWeights:
    """Notices ``load_state_dict`` of the modules that have sparse weights.

    What was loaded is looked at when it is used, since weights are also loaded for an evaluation
    only, and others are put back before the next step. Dense weights behind a mask then become
    those that were loaded, but stay if what was loaded is 0 off the mask, as the weights of this
    very model are. Other methods mask what was loaded, and say so if that changes it.

    Args:
        layers: the sparse layers of a model by parameter name.
        processes: the data-parallel processes.

    Attributes:
        current: gives the layer that the model holds now instead of one of these.

    """

    def __init__(self, layers: Mapping[str, SparseLayer], processes: Processes) -> None:
        self._layers, self._processes = layers, processes
        self.current: Callable[[SparseLayer], SparseLayer] = lambda layer: layer
        self._names: set[str] = set()
        self._replaced_dense = False

    def watch(self, model: nn.Module) -> list[RemovableHandle]:
        """Begin, and return the handles of the hooks."""
        names = {id(layer.weight): name for name, layer in self._layers.items()}
        handles = []
        for module in model.modules():
            own = [id(parameter) for parameter in module.parameters(recurse=False)]
            if found := [names[key] for key in own if key in names]:
                hook = ModelHook(partial(self._loaded, found))
                # torch does not annotate it.
                handles.append(module.register_load_state_dict_post_hook(hook))  # type: ignore[no-untyped-call]
        return handles

    @property
    def pending(self) -> bool:
        """Whether anything was loaded since the last optimizer step."""
        return bool(self._names)

    def forget(self) -> None:
        """Take what was loaded as it is: the masks have been loaded, too."""
        self._names.clear()
        self._replaced_dense = False

    def take_dense(self) -> None:
        """Let the dense weights behind masks be those that were loaded, if these are others.

        With sharded weights, every process must call it.
        """
        dense = {name for name in self._names if self._layers[name].dense is not None}
        self._names -= dense
        for name in dense:
            take_weight(self.current(self._layers[name]))
        for layer, _ in self._off_mask(dense):
            layer.dense_weight.copy_(layer.local_weight)
            self._replaced_dense = True

    def settle(self) -> bool:
        """Do this, and warn if the masks of other loaded weights are others.

        Called before an optimizer step.

        Returns:
            Whether dense weights were replaced, so that masks must be chosen again.

        """
        self.take_dense()
        lost = self._off_mask(self._names)
        self._names.clear()
        if lost:
            (first, _), *others = lost
            count = sum(count for _, count in lost)
            more = f" and {len(others)} more layers" if others else ""
            warnings.warn(
                f"weights were loaded into the model after its Sparsifier was made, and "
                f"{count:,} of {first.name!r}{more} are not on its masks: this step "
                "makes them 0. Load trained weights before the Sparsifier is made, which then "
                "keeps the largest; to resume a sparse training, load the sparsifier's state as "
                "well (sparsifier.load_state_dict)",
                UserWarning,
                stacklevel=5,
            )
        replaced, self._replaced_dense = self._replaced_dense, False
        return replaced

    def _loaded(self, names: Iterable[str], _: nn.Module) -> None:
        self._names.update(names)

    def _off_mask(self, names: set[str]) -> list[tuple[SparseLayer, int]]:
        """Count the weights off the masks of some layers, without the layers that have none."""
        layers = [self.current(layer) for name, layer in self._layers.items() if name in names]
        counts = {
            layer.name: int((layer.local_weight != 0).logical_and(~layer.mask).sum())
            for layer in layers
        }
        sharded = [layer for layer in layers if layer.sharding is not None]
        if sharded:  # the part of one process may be zeros alone
            parts = [counts[layer.name] for layer in sharded]
            sums = self._processes.sum_values(parts, sharded[0].weight.device)
            counts |= {layer.name: int(n) for layer, n in zip(sharded, sums, strict=True)}
        return [(layer, counts[layer.name]) for layer in layers if counts[layer.name]]
