"""Commands that refuse empty arguments, and whose help shows flags as flags.

Newer releases of typer call flags ``<bool>``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command of the command line."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, flags without a type."""
        return _bare(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse empty arguments: as a path, one would be the current folder."""
        _require_no_empty(args)
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, flags without a type."""
        return _bare(super().get_params(ctx))


def _require_no_empty(args: Sequence[str]) -> None:
    for place, argument in enumerate(args):
        option, _, _ = argument.partition("=")
        if argument == "":
            option = args[place - 1] if place else ""
        elif not re.fullmatch("--[a-z0-9-]+=", argument):
            continue
        named = option if option.startswith("-") else None
        raise typer.BadParameter(
            f"{'it' if named else 'an argument'} is empty; is it a shell variable that is not set?",
            param_hint=named,
        )


def _bare(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters
