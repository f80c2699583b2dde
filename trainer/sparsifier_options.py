"""Checks of ``Sparsifier``'s keywords: groups of options, and shorthands for their fields."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from .._base.names import near_matches
from .initialization import InitializationOptions
from .layer_choice import LayerOptions
from .schedule import ScheduleOptions

Group = TypeVar("Group", LayerOptions, ScheduleOptions, InitializationOptions)

GROUPS: dict[str, type[LayerOptions | ScheduleOptions | InitializationOptions]] = {
    "layers": LayerOptions,
    "schedule": ScheduleOptions,
    "initialization": InitializationOptions,
}


def option_group(
    keyword: str, kind: type[Group], group: Group | None, shorthands: Mapping[str, Any]
) -> Group:
    """Resolve one group of options.

    Args:
        keyword: the group's name as a keyword of ``Sparsifier``.
        kind: class of the group.
        group: the given group; None: not given.
        shorthands: fields of the group given as keywords of their own; None: not given.

    Raises:
        TypeError: ``group`` is of another class, or is combined with a shorthand.

    """
    given = {name: value for name, value in shorthands.items() if value is not None}
    if group is None:
        return kind(**given)
    if not isinstance(group, kind):
        raise TypeError(f"{keyword} must be {kind.__name__}(…), got {group!r}")
    for name, value in given.items():
        right = f"{keyword}={kind.__name__}({name}={value!r}, …)"
        raise TypeError(f"{name} cannot be combined with {keyword}; write {right}")
    return group


def keywords_of(function: Callable[..., object]) -> list[str]:
    """Return the names of the keyword-only parameters of a function."""
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def refuse_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for a keyword that is not ``known``, naming its group or similar keywords."""
    for name in names:
        for keyword, kind in GROUPS.items():
            if name in {field.name for field in fields(kind)}:
                raise TypeError(
                    f"{name} is a field of {keyword}; write {keyword}={kind.__name__}({name}=…)"
                )
        raise TypeError(f"Sparsifier has no option {name!r}." + near_matches(name, known))
