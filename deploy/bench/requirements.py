"""The optional packages of the benchmarks, with an error that says how to get them."""

from __future__ import annotations

import importlib
from types import ModuleType


class RequirementError(RuntimeError):
    """A package that the benchmark needs is not installed."""


def require(module: str, purpose: str, extra: str = "bench") -> ModuleType:
    """Import ``module``; RequirementError names it, what it is for, and the extra to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise RequirementError(
            f"{package} is not installed; {purpose}. Install it with pip install 'fanin[{extra}]'."
        ) from error
