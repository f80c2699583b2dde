"""Memory of a model's engines as files and as a table for the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from rich.table import Table

from .cases_report import plain, write_report
from .memory import EngineMemory, MemoryResult

HEADINGS = ("engine", "file", "own, 1 session", "own, all", "own, each further", "mapped files")


def save_memory_report(result: MemoryResult, folder: Path) -> list[Path]:
    """See MemoryResult.save."""

    def picture(file: IO[bytes]) -> None:
        draw(result, file)

    return write_report(folder, result.to_dict(), memory_markdown(result), picture)


def memory_table(result: MemoryResult) -> Table:
    """Lay the result out for the terminal."""
    table = Table(title=result.title)
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if number else "left")
    for engine in result.engines:
        table.add_row(*_row(engine))
    return table


def memory_notes(result: MemoryResult) -> list[str]:
    """Name the engines without numbers."""
    return [f"{one.engine} is excluded ({one.excluded})" for one in result.engines if one.excluded]


def memory_markdown(result: MemoryResult) -> str:
    """Write the content of results.md."""
    lines = [
        f"# {result.title}",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|" + "---:|" * (len(HEADINGS) - 1),
        *("| " + " | ".join(_row(engine)) + " |" for engine in result.engines),
        "",
        *(f"- {note}" for note in memory_notes(result)),
        "",
        "*own* are anonymous pages, which no other process shares; *mapped files* are pages of "
        "files, which all processes share that map them and which the system may take back. Both "
        "over what the process took with the packages loaded, after every session has run once, "
        "each engine in a process of its own (`/proc/self/smaps_rollup`).",
        "",
        "## Conditions",
        "",
        *(f"- {key}: {plain(value)}" for key, value in result.machine.items() if key != "kernels"),
        f"- spec: {plain(result.spec)}",
        f"- measured: {result.created}, {result.seconds:.0f} s",
        *(f"- {one.engine}: {one.version}" for one in result.engines if one.version),
    ]
    return "\n".join(lines) + "\n"


def draw(result: MemoryResult, file: IO[bytes]) -> None:
    """Write the figure as PNG: own memory against the number of sessions."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for engine in result.engines:
        if engine.excluded is None:
            sessions = range(1, len(engine.anonymous) + 1)
            axis.plot(
                sessions, [size / 1e6 for size in engine.anonymous], "o-", label=engine.engine
            )
    axis.set_xlabel("sessions in one process")
    axis.set_ylabel("anonymous memory, MB")
    axis.set_ylim(bottom=0)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{result.title}\n{result.machine.get('cpu') or ''}", fontsize=10)
    figure.savefig(file, format="png", dpi=150)


def _row(engine: EngineMemory) -> list[str]:
    if engine.excluded is not None:
        return [engine.engine, _megabytes(engine.file_bytes), "excluded", "", "", ""]
    each = engine.anonymous_per_session
    return [
        engine.engine,
        _megabytes(engine.file_bytes),
        _megabytes(engine.anonymous[0]),
        _megabytes(engine.anonymous[-1]),
        "" if each is None else _megabytes(each),
        _megabytes(engine.file_backed[-1]),
    ]


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.1f} MB"
