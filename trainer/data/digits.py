"""The digits of scikit-learn: 1,797 images of 8×8, at hand without files."""

from pathlib import Path

import numpy as np
import torch

from .augmentation import Augmentation
from .base import DataConfig, Dataset, Split
from .idx_files import DataError


def load_digits_dataset(
    config: DataConfig,  # noqa: ARG001
    folder: Path | None,
    augmentation: Augmentation,
) -> Dataset:
    """Load, normalise, and split 4 to 1 by class. Raises DataError without scikit-learn."""
    if folder is not None:
        raise DataError("the data set 'digits' comes with scikit-learn and takes no folder")
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise DataError("the data set 'digits' needs scikit-learn; install fanin[train]") from error
    images, labels = load_digits(return_X_y=True)
    inputs = torch.from_numpy(images.astype(np.float32).reshape(-1, 1, 8, 8))
    inputs = (inputs / 16 - 0.3053) / 0.3761  # mean and deviation of all pixels
    targets = torch.from_numpy(labels.astype(np.int64))
    train, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels
    )
    return Dataset(
        train=Split(inputs[train], targets[train], augmentation),
        test=Split(inputs[test], targets[test]),
        source="digits of scikit-learn",
    )
