"""Sparse training with lightning.Trainer."""

from typing import Unpack

from lightning.pytorch import Callback, LightningModule, Trainer

from ..methods import Dense, SparseMethod
from ..sparsifier import Sparsifier
from ..sparsifier_state import SparsifierState
from .options import CallbackOptions, attached, check_options


class SparsifierCallback(Callback):  # type: ignore[misc, unused-ignore]  # not always installed
    """Makes a ``Sparsifier`` when training starts, and calls its ``step()`` after each batch.

    For modules with automatic optimization and one optimizer. Model, optimizer, number of steps and
    gradient scaler come from the trainer; Lightning's checkpoints hold the state. A checkpoint that
    ``test``, ``validate`` or ``predict`` load after training (``ckpt_path="best"``) brings its
    masks. The attribute ``sparsifier`` is None before training starts. With ``AST``, the module's
    ``training_step`` must call the module itself, ``self(inputs)``, which switches the sub-net.

    Args:
        method: the training method.
        options: further keywords of ``Sparsifier``.

    Raises:
        TypeError: ``Sparsifier`` does not have an option.

    """

    def __init__(self, method: SparseMethod | Dense, **options: Unpack[CallbackOptions]) -> None:
        self.method, self.options = method, check_options(options)
        self.sparsifier: Sparsifier | None = None
        self._saved: SparsifierState | None = None
        self._resuming = True

    def on_load_checkpoint(self, trainer: Trainer, *_: object) -> None:
        """Note whether the checkpoint is loaded for training."""
        self._resuming = trainer.state.fn == "fit"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the sparsifier; a resumed training has restored model and optimizer by then.

        Raises:
            ValueError: there is not exactly one optimizer, or the training has no end.

        """
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"SparsifierCallback needs one optimizer, but the module has "
                f"{len(trainer.optimizers)}"
            )
        if trainer.estimated_stepping_batches == float("inf"):
            raise ValueError(
                "the update schedule needs an end: set the Trainer's max_epochs or max_steps"
            )
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
        """Update the topology if due; the gradients have not been zeroed yet."""
        attached(self.sparsifier).step()

    def state_dict(self) -> SparsifierState | dict[str, object]:
        """Return the sparsifier's state for Lightning's checkpoint."""
        if self.sparsifier is None:
            return {} if self._saved is None else self._saved
        self.sparsifier.synchronize()
        return self.sparsifier.state_dict()

    def load_state_dict(self, state_dict: SparsifierState) -> None:
        """Keep the state until training starts; after training, take the masks at once."""
        if self._resuming or self.sparsifier is None:
            self._saved = state_dict or None
        else:
            self.sparsifier.load_state_dict(state_dict)
