"""Loss and accuracy of a model on a split."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .backends import in_memory_format
from .data import DataSplit
from .precision import autocast
from .processes import Processes
from .recipe import TrainingConfig

_BATCH = 1024


@dataclass(frozen=True)
class Evaluation:
    """Figures of a split.

    Attributes:
        loss: mean cross-entropy.
        accuracy: fraction of the samples whose label has the largest logit.
        top5: fraction of the samples whose label is among the five largest; None for five classes
            or fewer.

    """

    loss: float
    accuracy: float
    top5: float | None

    def figures(self, prefix: str) -> dict[str, float]:
        """Return the figures by name, without those that do not exist."""
        named = {"loss": self.loss, "accuracy": self.accuracy, "top5_accuracy": self.top5}
        return {f"{prefix}_{name}": value for name, value in named.items() if value is not None}


@torch.no_grad()
def evaluate(
    model: nn.Module,
    split: DataSplit,
    processes: Processes | None = None,
    config: TrainingConfig | None = None,
) -> Evaluation:
    """Evaluate a model on a split, in evaluation mode.

    Args:
        model: from inputs [batch, …] to logits [batch, classes].
        split: the samples.
        processes: each takes its share of the samples, with the buffers of rank 0 (running
            statistics of norms), and all return the same figures; None: only this process.
        config: precision and memory format of the forward pass; None: float32.

    """
    processes = processes or Processes(None, 1)
    for buffer in model.buffers():
        processes.broadcast_(buffer)
    training = model.training
    model.eval()
    loss, correct, among_five, classes = 0.0, 0.0, 0.0, 0
    own = torch.arange(processes.rank, len(split), processes.count)
    device = next(model.parameters()).device
    for inputs, labels in split.batches(torch.split(own, _BATCH)):
        with autocast(device, "float32" if config is None else config.precision):
            logits = model(inputs if config is None else in_memory_format(inputs, config))
        logits = logits.float()
        classes = logits.shape[1]
        loss += cross_entropy(logits, labels, reduction="sum").item()
        correct += int((logits.argmax(1) == labels).sum())
        among_five += _among_five(logits, labels)
    model.train(training)
    # A process may have no samples, and then knows no number of classes.
    sums = processes.sum_values((loss, correct, among_five, classes > 5), device)
    loss, correct, among_five, many = (value / len(split) for value in sums)
    return Evaluation(loss, correct, among_five if many else None)


def _among_five(logits: Tensor, labels: Tensor) -> int:
    if logits.shape[1] <= 5:
        return 0
    return int((logits.topk(5, dim=1).indices == labels[:, None]).any(1).sum())
