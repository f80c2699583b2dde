"""CIFAR-10, read by torchvision; pixels in [0, 1], not normalized, as in the authors' code."""

from pathlib import Path

import numpy as np
import torch

from ..._base.user_folders import cache_folder
from .augmentation import Augmentation
from .base import DataConfig, DataError, Dataset, Split


def load_cifar10(
    config: DataConfig,  # noqa: ARG001
    folder: Path | None,
    augmentation: Augmentation,
) -> Dataset:
    """Load both splits from ``folder`` (which holds cifar-10-batches-py), or download them.

    Raises:
        DataError: the files are missing, damaged, or cannot be downloaded.

    """
    try:
        from torchvision.datasets import CIFAR10
    except ImportError as error:
        raise DataError("CIFAR-10 needs torchvision; install fanin[train]") from error
    root = folder or cache_folder()
    if root is None:
        raise DataError(
            "CIFAR-10 cannot be downloaded, since this user has no home folder; give a folder that "
            "holds cifar-10-batches-py"
        )
    splits = []
    for training in (True, False):
        try:
            source = CIFAR10(root, train=training, download=folder is None)
        except Exception as error:  # network and damaged pickles raise errors of any type
            raise DataError(
                f"CIFAR-10 cannot be loaded from {root} ({error}). Give a folder that holds "
                "cifar-10-batches-py, or run once with network access and without a folder"
            ) from error
        images = torch.from_numpy(np.ascontiguousarray(source.data.transpose(0, 3, 1, 2)))
        labels = torch.tensor(source.targets, dtype=torch.int64)
        splits.append(Split(images.float().div_(255), labels, augmentation if training else None))
    train, test = splits
    return Dataset(train, test, source=f"CIFAR-10 from {root}")
