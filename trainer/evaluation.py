"""Loss and accuracy of a model on a split."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from .data import DataSplit
from .processes import Processes

_BATCH = 1024


@torch.no_grad()
def evaluate(
    model: nn.Module, split: DataSplit, processes: Processes | None = None
) -> tuple[float, float]:
    """Evaluate a model on a split, in evaluation mode.

    Args:
        model: from inputs [batch, …] to logits [batch, classes].
        split: the samples.
        processes: each takes its share of the samples, with the buffers of rank 0 (running
            statistics of norms), and all return the same figures; None: only this process.

    Returns:
        Mean cross-entropy, and accuracy in [0, 1].

    """
    processes = processes or Processes(None, 1)
    for buffer in model.buffers():
        processes.broadcast_(buffer)
    training = model.training
    model.eval()
    loss, correct = 0.0, 0.0
    own = torch.arange(processes.rank, len(split), processes.count)
    device = next(model.parameters()).device
    for inputs, labels in split.batches(torch.split(own, _BATCH)):
        logits = model(inputs)
        loss += cross_entropy(logits, labels, reduction="sum").item()
        correct += int((logits.argmax(1) == labels).sum())
    model.train(training)
    loss, correct = processes.sum_values((loss, correct), device)
    return loss / len(split), correct / len(split)
