"""Samples from the data set of a run folder's recipe."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from ...trainer.data import DataError, Dataset, DataSplit, epoch_order, load_dataset
from ...trainer.run_folder import FILES, read_config
from ..errors import ExportError
from .samples import BATCH, Samples

CALIBRATED, TESTED = 512, 10_000
"""Most training samples to find ranges on, and test samples to compare on."""

_MAX_BYTES = 512 << 20
"""Most bytes of either; large images reach it before the number."""


def belongs_to(folder: Path, target: Path) -> bool:
    """Return whether a file is one of a run folder's own."""
    return any(target.exists() and target.samefile(folder / name) for name in FILES)


def run_samples(
    folder: Path, data_dir: str | os.PathLike[str] | None, name: str
) -> tuple[Samples, Samples]:
    """Load training samples to calibrate on and test samples with labels to compare on.

    Args:
        folder: the run folder.
        data_dir: folder of the data set, for those that have files.
        name: of the model's input.

    Raises:
        RunFolderError: the folder is no run folder.
        ExportError: the data set cannot be loaded.

    """
    try:
        data = load_dataset(read_config(folder).data, data_dir)
    except DataError as error:
        raise ExportError(str(error)) from error
    return (
        _samples(data, data.train, "training", CALIBRATED, name),
        _samples(data, data.test, "test", TESTED, name),
    )


def _samples(data: Dataset, split: DataSplit, kind: str, most: int, name: str) -> Samples:
    sample, _ = next(split.batches([torch.zeros(1, dtype=torch.int64)]))
    most = max(1, min(most, _MAX_BYTES // sample.nbytes))
    chosen = epoch_order(len(split), 0, 0)[:most].sort().values
    batches: list[tuple[Tensor, Tensor]] = list(split.batches(torch.split(chosen, BATCH)))
    labels = torch.cat([labels for _, labels in batches]).numpy()
    feeds = tuple({name: inputs.numpy()} for inputs, _ in batches)
    return Samples(feeds, len(chosen), f"the {kind} split of {data.source}", labels)
