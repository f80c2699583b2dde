"""How far the outputs of a quantized model are from those of the float one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..engines import Run
from ..errors import ExportError
from .samples import Samples

Outputs = Sequence[np.ndarray]
"""Of one run, in order."""


@dataclass(frozen=True)
class OutputError:
    """The difference of outputs, of the worst output where there are several.

    Attributes:
        relative: root mean square of the difference over that of the float outputs; for outputs
            that are no floats, the share of entries that differ.
        cosine: between the outputs of a sample, the mean over samples; 1 for outputs that are no
            floats.
        is_share: whether ``relative`` is the share of entries that differ.

    """

    relative: float
    cosine: float
    is_share: bool = False


def run_all(run: Run, samples: Samples, what: object) -> list[Outputs]:
    """Run a model, which errors call ``what``, on all samples.

    Raises:
        ExportError: it does not run on them.

    """
    try:
        return [tuple(run(dict(feeds))) for feeds in samples.feeds]
    except MemoryError:
        raise
    except Exception as error:  # of whichever engine runs it
        reason = str(error).strip().splitlines()[0]
        raise ExportError(f"{what} does not run on {samples}: {reason}") from error


def compare(expected: Sequence[Outputs], actual: Sequence[Outputs]) -> OutputError:
    """Compare the outputs of all runs."""
    errors = [
        _compare_output(list(old), list(new))
        for old, new in zip(zip(*expected, strict=True), zip(*actual, strict=True), strict=True)
    ]
    if not errors:
        return OutputError(0.0, 1.0)
    worst = max(errors, key=lambda error: error.relative)
    return replace(worst, cosine=min(error.cosine for error in errors))


def _compare_output(expected: list[np.ndarray], actual: list[np.ndarray]) -> OutputError:
    if expected[0].dtype.kind != "f":
        pairs = list(zip(expected, actual, strict=True))
        count = sum(old.size for old in expected)
        differing = sum(np.count_nonzero(old != new) for old, new in pairs)
        return OutputError(differing / count if count else 0.0, 1.0, is_share=True)
    difference = squares = 0.0
    cosines: list[float] = []
    for old, new in zip(expected, actual, strict=True):
        one, two = (a.astype(np.float64).reshape(len(a) if a.ndim else 1, -1) for a in (old, new))
        difference += float(np.square(one - two).sum())
        squares += float(np.square(one).sum())
        products, norms = (one * two).sum(axis=1), _norms(one) * _norms(two)
        same = np.all(one == two, axis=1).astype(np.float64)
        cosines += np.divide(products, norms, out=same, where=norms > 0).tolist()
    if not difference:
        return OutputError(0.0, 1.0)
    relative = math.sqrt(difference / squares) if squares else math.inf
    return OutputError(relative, float(np.mean(cosines)))


def _norms(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(rows, axis=1))


def accuracy(outputs: Sequence[Outputs], labels: np.ndarray) -> float:
    """Return the share of samples whose largest entry of the first output is their label's."""
    guesses = np.concatenate([run[0].argmax(axis=-1).reshape(-1) for run in outputs])
    return float(np.mean(guesses == labels))
