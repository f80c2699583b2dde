"""Sparse training within lightning.Trainer."""

from typing import Unpack

from lightning.pytorch import Callback, LightningModule, Trainer

from ..methods import Dense, SparseMethod
from ..sparsifier import Sparsifier
from ..sparsifier_state import SparsifierState
from .options import CallbackOptions, attached, check_options


class SparsifierCallback(Callback):  # type: ignore[misc, unused-ignore]  # not always installed
    """Makes a ``Sparsifier`` when training starts, and updates the topology after each step.

    ``method`` and ``options`` are the arguments of ``Sparsifier``; model, optimizer, number of
    steps and gradient scaler come from the trainer. Lightning's checkpoints hold the state.
    Automatic optimization with one optimizer. ``sparsifier`` is there once training has started.
    Raises TypeError for unknown options.
    """

    def __init__(self, method: SparseMethod | Dense, **options: Unpack[CallbackOptions]) -> None:
        self.method, self.options = method, check_options(options)
        self.sparsifier: Sparsifier | None = None
        self._saved: SparsifierState | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach; model and optimizer are restored already when training is resumed."""
        if len(trainer.optimizers) != 1:
            raise ValueError(f"needs one optimizer, the module has {len(trainer.optimizers)}")
        if trainer.estimated_stepping_batches == float("inf"):
            raise ValueError("the schedule needs an end: give the Trainer max_epochs or max_steps")
        if self.sparsifier is not None:
            self.sparsifier.detach()
        self.sparsifier = Sparsifier(
            pl_module,
            trainer.optimizers[0],
            method=self.method,
            total_steps=int(trainer.estimated_stepping_batches),
            grad_scaler=getattr(trainer.precision_plugin, "scaler", None),
            state=self._saved,
            **self.options,
        )
        self._saved = None

    def on_train_batch_end(self, *_: object) -> None:
        """Update the topology when it is due; the gradients are still there."""
        attached(self.sparsifier).step()

    def state_dict(self) -> SparsifierState | dict[str, object]:
        """Return what a resumed training needs, for Lightning's checkpoint."""
        if self.sparsifier is None:
            return {} if self._saved is None else self._saved
        self.sparsifier.synchronize()
        return self.sparsifier.state_dict()

    def load_state_dict(self, state_dict: SparsifierState) -> None:
        """Keep the state until training starts."""
        self._saved = state_dict or None
