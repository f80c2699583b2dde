"""Compatibility of a saved sparsifier state with the sparsifier that loads it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor

from .alternation import AlternationState
from .methods import SRSTE, Dense, SparseMethod, TopKAST
from .sparse_layer import LayerState, SparseLayer

Method = SparseMethod | SRSTE | TopKAST | Dense

STATE_VERSION = 2
_KEYS = ("settings", "step", "update_pending", "layers")
_LAYER_KEYS = ("budget", "mask", "explored", "window")


class SparsifierState(TypedDict):
    """``Sparsifier.state_dict()``; ``settings`` are those of method and schedule, by name."""

    format_version: int
    settings: dict[str, object]
    step: int
    update_pending: bool
    layers: dict[str, LayerState]
    alternation: NotRequired[AlternationState]


def flat_structure(structure: str) -> str:
    """Name the N:M structure whose groups are those of version 1 (see ``structures.NM``)."""
    return f"{structure.removesuffix('-flat')}-flat"


def upgraded(state: SparsifierState) -> SparsifierState:
    """Return a state of version 1 as one of the present version."""
    if not isinstance(state, Mapping) or state.get("format_version") != 1:
        return state
    settings = dict(state.get("settings", {}))
    if settings.get("method") == "srigl":
        settings.setdefault("ablated_gradients", "raw")
    if ":" in str(settings.get("structure", "")):
        settings["structure"] = flat_structure(str(settings["structure"]))
    return {**state, "format_version": STATE_VERSION, "settings": settings}


def fitting_state(
    state: SparsifierState,
    method: Method,
    settings: Mapping[str, object],
    layers: Mapping[str, SparseLayer],
) -> tuple[SparsifierState, Method, dict[str, object]]:
    """Return a saved state of the present version, with the method and settings that continue it.

    N:M structures of a state of version 1 keep its groups.

    Args:
        state: the saved state.
        method: method of the sparsifier that loads it.
        settings: its settings.
        layers: its sparse layers.

    Raises:
        ValueError: as for ``check_state``.

    """
    current, settings = upgraded(state), dict(settings)
    if current is not state and ":" in str(settings.get("structure")):
        settings["structure"] = structure = flat_structure(str(settings["structure"]))
        changed: Any = {"structure": structure}
        method = replace(method, **changed)
    moves = getattr(method, "redistributes", False)
    check_state(current, settings, layers, budgets_move=moves)
    return current, method, settings


def check_state(
    state: SparsifierState,
    settings: Mapping[str, object],
    layers: Mapping[str, SparseLayer],
    *,
    budgets_move: bool,
) -> None:
    """Validate a saved state.

    Args:
        state: the saved state.
        settings: settings of the sparsifier that loads it.
        layers: its sparse layers.
        budgets_move: whether the method moves weights between layers, so that budgets may differ.

    Raises:
        ValueError: the state is damaged, or of a different format, method or model.

    """
    version = state.get("format_version") if isinstance(state, Mapping) else None
    if version != STATE_VERSION:
        raise ValueError(f"sparsifier state has format {version}, expected {STATE_VERSION}")
    if missing := [key for key in _KEYS if key not in state]:
        raise ValueError(f"sparsifier state is damaged: it lacks {', '.join(missing)}")
    saved = state["settings"]
    for key in sorted(saved.keys() | settings.keys(), key=lambda key: (key != "method", key)):
        if saved.get(key) != settings.get(key):
            raise ValueError(
                f"sparsifier state was saved with {key}={saved.get(key)!r}, but this sparsifier "
                f"has {key}={settings.get(key)!r}"
            )
    for name in sorted(state["layers"].keys() | layers.keys()):
        here, there = layers.get(name), state["layers"].get(name)
        if there is not None:
            _check_layer(name, there, dense=here is not None and here.dense is not None)
        expected = None if here is None else (here.budget, tuple(here.weight.shape))
        found = None if there is None else (there["budget"], tuple(there["mask"].shape))
        if budgets_move and expected and found:
            found = (expected[0], found[1])
        if expected != found:
            raise ValueError(
                f"sparsifier state does not fit the model at {name!r}: (budget, shape) is "
                f"{found} in the state and {expected} here (None: not sparse)"
            )


def _check_layer(name: str, saved: LayerState, *, dense: bool) -> None:
    keys = (*_LAYER_KEYS, "dense") if dense else _LAYER_KEYS
    if missing := [key for key in keys if key not in saved]:
        raise ValueError(f"sparsifier state is damaged: {name!r} lacks {', '.join(missing)}")
    for key, value in (("mask", saved["mask"]), ("explored", saved["explored"])):
        if not isinstance(value, Tensor) or value.dtype != torch.bool:
            raise ValueError(f"sparsifier state is damaged: {key} of {name!r} is not a bool tensor")
