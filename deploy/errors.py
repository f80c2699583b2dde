"""The error for everything that can go wrong between a file and a session."""

from __future__ import annotations

from pathlib import Path


class SessionError(RuntimeError):
    """A model cannot be opened; the message tells what is wrong, where, and what to do next.

    Attributes:
        problem: What is wrong.
        remedy: What to do next.
        model: The file, if known.
        node: Name of the graph's node, if known.

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
        sentence = problem if problem.endswith("?") else f"{problem.rstrip('.')}."
        super().__init__(f"{where}{sentence} {remedy}".rstrip())
