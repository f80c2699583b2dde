"""Suggestions for unknown names."""

import difflib
from collections.abc import Iterable


def near_matches(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean …?" with similar names, or else " Known: …", shortened if long."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f" Did you mean {', '.join(map(repr, close))}?"
    shown = ", ".join(map(repr, names[:20])) or "none"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f" Known: {shown}{more}."
