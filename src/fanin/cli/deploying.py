"""fanin doctor."""

from __future__ import annotations

import typer


def doctor() -> None:
    """Check everything that running an exported model needs; exit status 1 when a check fails."""
    from rich.console import Console

    from ..deploy.doctor import checks_table, run_checks

    checks = run_checks()
    Console().print(checks_table(checks))
    if not all(check.ok for check in checks):
        raise typer.Exit(1)
