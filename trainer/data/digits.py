"""The digits of scikit-learn: 1,797 images of 8×8 that need no files."""

from pathlib import Path

import numpy as np
import torch

from .augmentation import Augmentation
from .base import DataConfig, DataError, Dataset, Split

WHITE = 16
"""Largest value of a pixel in the source."""
MEAN, DEVIATION = 0.3053, 0.3761
"""Of all pixels, as shares of white; the network sees (pixel / WHITE - MEAN) / DEVIATION."""


def load_digits_dataset(
    config: DataConfig,  # noqa: ARG001
    folder: Path | None,
    augmentation: Augmentation,
) -> Dataset:
    """Load and normalize the images, and split them 4 to 1, stratified by class.

    Raises:
        DataError: scikit-learn is missing, or a folder was given.

    """
    if folder is not None:
        raise DataError("the data set 'digits' is part of scikit-learn and takes no folder")
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise DataError("the data set 'digits' needs scikit-learn; install fanin[train]") from error
    images, labels = load_digits(return_X_y=True)
    inputs = torch.from_numpy(images.astype(np.float32).reshape(-1, 1, 8, 8))
    inputs = (inputs / WHITE - MEAN) / DEVIATION
    targets = torch.from_numpy(labels.astype(np.int64))
    train, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels
    )
    return Dataset(
        train=Split(inputs[train], targets[train], augmentation),
        test=Split(inputs[test], targets[test]),
        source="digits of scikit-learn",
    )
