"""Sparse training with transformers.Trainer."""

from pathlib import Path
from typing import Unpack

import torch
from torch import nn
from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..._base.atomic import atomic_file
from ..checkpoint import read_state
from ..methods import Dense, SparseMethod
from ..sparsifier import Sparsifier
from ..sparsifier_state import SparsifierState
from .options import CallbackOptions, attached, check_options

STATE = "sparsifier.pt"


class SparsifierCallback(TrainerCallback):
    """Makes a ``Sparsifier`` when training begins, and calls its ``step()`` after each step.

    Model, optimizer, number of steps and gradient scaler come from the trainer. Each checkpoint
    gets a sparsifier.pt, from which ``trainer.train(resume_from_checkpoint=…)`` continues. With
    ``load_best_model_at_end``, the masks are those of the best checkpoint, too. The attribute
    ``sparsifier`` is None before training begins.

    Args:
        method: the training method.
        options: further keywords of ``Sparsifier``.

    Raises:
        TypeError: ``Sparsifier`` does not have an option.

    """

    def __init__(self, method: SparseMethod | Dense, **options: Unpack[CallbackOptions]) -> None:
        self.method, self.options = method, check_options(options)
        self.sparsifier: Sparsifier | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        **_: object,
    ) -> None:
        """Make the sparsifier; a resumed training has restored model and optimizer by then."""
        if model is None or optimizer is None:
            raise TypeError("on_train_begin needs the model and optimizer of the trainer")
        if self.sparsifier is not None:
            self.sparsifier.detach()
        self.sparsifier = Sparsifier(
            model,
            optimizer,
            method=self.method,
            total_steps=state.max_steps,
            grad_scaler=getattr(optimizer, "scaler", None),
            state=_saved_state(args, state) if state.global_step else None,
            **self.options,
        )

    def on_optimizer_step(self, *_: object, **__: object) -> None:
        """Update the topology if due, after the optimizer's step and before zero_grad."""
        attached(self.sparsifier).step()

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: object,
    ) -> None:
        """Take the masks of the best checkpoint if the trainer has loaded its weights."""
        best = state.best_model_checkpoint
        if args.load_best_model_at_end and best is not None:
            if not (Path(best) / STATE).is_file():
                raise FileNotFoundError(
                    f"the trainer has loaded the weights of {best}, which has no {STATE} with "
                    "their masks; let it save checkpoints only while this callback is in use"
                )
            attached(self.sparsifier).load_state_dict(read_state(Path(best) / STATE))

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **_: object,
    ) -> None:
        """Write sparsifier.pt into the checkpoint."""
        sparsifier = attached(self.sparsifier)
        sparsifier.synchronize()
        saved = sparsifier.state_dict()  # of all processes, which gather sharded masks for it
        if state.is_world_process_zero:
            with atomic_file(_folder(args, state) / STATE) as file:
                torch.save(saved, file)


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    if args.output_dir is None:
        raise ValueError("the training arguments have no output_dir for checkpoints")
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _saved_state(args: TrainingArguments, state: TrainerState) -> SparsifierState:
    given = args.resume_from_checkpoint
    folders = [Path(given)] if isinstance(given, str) else []
    for folder in [*folders, _folder(args, state)]:
        if (folder / STATE).is_file():
            saved: SparsifierState = read_state(folder / STATE)
            return saved
    raise FileNotFoundError(
        f"training resumes at step {state.global_step}, but {_folder(args, state)} has no {STATE}; "
        "set args.resume_from_checkpoint to the folder of a checkpoint that has one"
    )
