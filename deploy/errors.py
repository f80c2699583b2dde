"""The error of everything that can go wrong on the way from a file to a session."""

from __future__ import annotations

from pathlib import Path


class SessionError(RuntimeError):
    """A model cannot be opened: what is wrong, where, and what to do next.

    ``problem`` and ``remedy`` are sentences; ``model`` is the file and ``node`` the name of the
    graph's node, each None where it is not known or does not matter. The text has them all.
    """

    def __init__(
        self, problem: str, remedy: str, *, model: Path | None = None, node: str | None = None
    ):
        self.problem = problem
        self.remedy = remedy
        self.model = model
        self.node = node
        where = f"{model}: " if model is not None else ""
        if node is not None and node not in problem:
            where += f"node '{node}': "
        super().__init__(f"{where}{problem.rstrip('.')}. {remedy}")
