"""Training methods: how a layer's topology starts and how it changes.

A method is a small frozen dataclass composed of a drop score, a grow score, a structure and an
ablation rule. To add one, compose the same functions differently.
"""

from dataclasses import dataclass
from typing import ClassVar

from .base import DropFractions, LayerInputs, SparseMethod
from .layerwise import SET, RigL, SRigL, Static
from .mest import MEST
from .redistributing import DSR, SNFS
from .sr_ste import SRSTE


@dataclass(frozen=True)
class Dense:
    """Ordinary dense training: no layer gets a mask."""

    name: ClassVar[str] = "dense"


METHODS: dict[str, type[Dense | SparseMethod | SRSTE]] = {
    method.name: method for method in (Dense, Static, SET, RigL, SRigL, SNFS, MEST, DSR, SRSTE)
}

__all__ = [
    "DSR",
    "MEST",
    "METHODS",
    "SET",
    "SNFS",
    "SRSTE",
    "Dense",
    "DropFractions",
    "LayerInputs",
    "RigL",
    "SRigL",
    "SparseMethod",
    "Static",
]
