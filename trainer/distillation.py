"""Distillation: a second loss from the outputs of a trained teacher."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from .config_table import ConfigError
from .data import describe
from .recipe import DistillationConfig, TrainConfig
from .run_folder import RunFolderError, load_run


class Teacher:
    """A trained model in evaluation mode, and how much of the loss is its part.

    Args:
        model: from inputs [batch, …] to logits [batch, classes].
        options: weight and temperature.

    """

    def __init__(self, model: nn.Module, options: DistillationConfig) -> None:
        self._model, self._options = model.eval().requires_grad_(False), options

    def loss(self, inputs: Tensor, logits: Tensor, label_loss: Tensor) -> Tensor:
        """Mix the loss of the labels with that of the teacher.

        (1 − w) · label_loss + w · T² · KL(teacher / T ‖ student / T), mean over the batch (arXiv
        1503.02531, section 2.1: T² keeps the size of the gradients).

        Args:
            inputs: [batch, …].
            logits: of the student, [batch, classes].
            label_loss: scalar.

        """
        weight, temperature = self._options.weight, self._options.temperature
        with torch.no_grad():
            targets = log_softmax(self._model(inputs).float() / temperature, dim=1)
        student = log_softmax(logits.float() / temperature, dim=1)
        divergence = kl_div(student, targets, reduction="batchmean", log_target=True)
        return (1 - weight) * label_loss + weight * temperature**2 * divergence


def load_teacher(config: TrainConfig, device: torch.device) -> Teacher | None:
    """Load the teacher that a configuration names.

    Raises:
        ConfigError: its run cannot be loaded, or has other inputs or classes.

    """
    options = config.distillation
    if not options.teacher:
        return None
    try:
        run = load_run(Path(options.teacher))
    except RunFolderError as error:
        raise ConfigError(f"in [distillation]: teacher: {error}") from error
    if describe(run.config.data) != describe(config.data):
        raise ConfigError(
            f"in [distillation]: the teacher maps inputs of shape and classes "
            f"{describe(run.config.data)}, but this run has {describe(config.data)}"
        )
    return Teacher(run.model.to(device), options)
