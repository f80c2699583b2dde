"""Weights that are loaded into a model after its ``Sparsifier`` was made."""

import warnings
from collections.abc import Mapping

from torch import nn
from torch.utils.hooks import RemovableHandle

from .model_hooks import ModelHook
from .sparse_layer import SparseLayer


class LoadedWeights:
    """Notices ``load_state_dict`` of the modules that have sparse weights.

    Dense weights behind a mask become those that were loaded at once. Otherwise the next optimizer
    step masks what was loaded, and says so if that changes it.

    Args:
        layers: the sparse layers of a model by parameter name.

    """

    def __init__(self, layers: Mapping[str, SparseLayer]) -> None:
        self._layers = layers
        self._names: set[str] = set()

    def watch(self, model: nn.Module) -> list[RemovableHandle]:
        """Begin, and return the handles of the hooks."""
        owned = {id(layer.weight) for layer in self._layers.values()}
        return [
            # torch does not annotate it.
            module.register_load_state_dict_post_hook(ModelHook(self._loaded))  # type: ignore[no-untyped-call]
            for module in model.modules()
            if any(id(parameter) in owned for parameter in module.parameters(recurse=False))
        ]

    def _loaded(self, module: nn.Module) -> None:
        own = {id(parameter) for parameter in module.parameters(recurse=False)}
        for name, layer in self._layers.items():
            if id(layer.weight) in own:
                self._names.add(name)
                if layer.dense is not None:
                    layer.dense.copy_(layer.local_weight)

    def forget(self) -> None:
        """Take what was loaded as it is: the masks have been loaded, too."""
        self._names.clear()

    def settle(self) -> bool:
        """Warn if the masks of what was loaded are others; called before an optimizer step.

        Returns:
            Whether anything was loaded since the last step.

        """
        names, self._names = self._names, set()
        lost = {
            name: int((layer.local_weight != 0).logical_and(~layer.mask).sum())
            for name, layer in self._layers.items()
            if name in names and layer.dense is None
        }
        changed = [name for name, count in lost.items() if count]
        if changed:
            more = f" and {len(changed) - 1} more layers" if len(changed) > 1 else ""
            warnings.warn(
                f"weights were loaded into the model after its Sparsifier was made, and "
                f"{sum(lost.values()):,} of {changed[0]!r}{more} are not on its masks: this step "
                "makes them 0. Load trained weights before the Sparsifier is made, which then "
                "keeps the largest; to resume a sparse training, load the sparsifier's state as "
                "well (sparsifier.load_state_dict)",
                UserWarning,
                stacklevel=5,
            )
        return bool(names)
