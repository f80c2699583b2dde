"""Weights that no other test uses, for tests of sharing within a process."""

import itertools
from dataclasses import replace
from typing import TypeVar

import numpy as np

AnyLayer = TypeVar("AnyLayer")  # of any of the dataclasses with a bias

_NUMBERS = itertools.count(1)


def of_its_own(layer: AnyLayer) -> AnyLayer:
    """The layer with another bias at each call.

    Layouts are shared by content. Whatever still holds this layer (a session in the traceback of a
    test that failed, garbage that waits for its collection) thus holds another one.
    """
    shift = np.float32(next(_NUMBERS) / 1024)
    return replace(layer, bias=layer.bias + shift)
