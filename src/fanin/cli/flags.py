"""Commands whose help shows flags as flags; newer releases of typer call them ``<bool>``."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command of the command line."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, flags without a type."""
        return _bare(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, flags without a type."""
        return _bare(super().get_params(ctx))


def _bare(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters
