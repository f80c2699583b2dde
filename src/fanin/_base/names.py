"""Suggestions for misspelled names in error messages."""

import difflib
from collections.abc import Iterable

_MAX_LISTED = 20


def near_matches(name: str, known: Iterable[str]) -> str:
    """Suggest what a misspelled name may have meant.

    Args:
        name: The name that was not found.
        known: All valid names.

    Returns:
        A sentence to append to the error, with a leading space: " Did you mean …?" if any valid
        name is similar, otherwise " Known: …." with at most 20 of them.

    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f" Did you mean {', '.join(map(repr, close))}?"
    shown = ", ".join(map(repr, names[:_MAX_LISTED])) or "none"
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f" Known: {shown}{more}."
