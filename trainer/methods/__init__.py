"""Training methods: how a layer's topology starts and how it changes.

A method is a small frozen dataclass composed of a drop score, a grow score, a structure and an
ablation rule. To add one, compose the same functions differently.
"""

from dataclasses import dataclass
from typing import ClassVar

from .alternating import AST
from .base import DropFractions, LayerInputs, SparseMethod
from .chase import Chase
from .deep_rewiring import DeepR
from .dense_to_sparse import SRSTE, DenseToSparse, TopKAST
from .gradual import GMP
from .layerwise import SET, RigL, SRigL, Static
from .mest import MEST
from .redistributing import DSR, SNFS


@dataclass(frozen=True)
class Dense:
    """Ordinary dense training: no layer gets a mask."""

    name: ClassVar[str] = "dense"


METHODS: dict[str, type[Dense | SparseMethod | SRSTE | TopKAST]] = {
    method.name: method
    for method in (
        Dense,
        Static,
        SET,
        RigL,
        SRigL,
        SNFS,
        MEST,
        DSR,
        DeepR,
        Chase,
        GMP,
        AST,
        SRSTE,
        TopKAST,
    )
}

__all__ = [
    "AST",
    "DSR",
    "GMP",
    "MEST",
    "METHODS",
    "SET",
    "SNFS",
    "SRSTE",
    "Chase",
    "DeepR",
    "Dense",
    "DenseToSparse",
    "DropFractions",
    "LayerInputs",
    "RigL",
    "SRigL",
    "SparseMethod",
    "Static",
    "TopKAST",
]
