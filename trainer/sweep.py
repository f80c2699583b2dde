"""Running a sweep: one run folder per combination, resumable at any point."""

import csv
import io
import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict

from .._base.atomic import output_folder, write_file
from .._base.texts import parse_json, read_text
from .config_table import ConfigError, from_table
from .processes import launched_by_torchrun
from .sweep_config import SweepRun, load_sweep
from .sweep_run import SweepRecord, run_one

RESULTS = "sweep.json"
SEED = "training.seed"


class SweepRow(TypedDict):
    """Mean and spread over the seeds of one variant with the same grid values.

    ``accuracy`` is the mean test accuracy, ``deviation`` its sample standard deviation and
    ``interval`` half the width of its 95 % confidence interval by Student's t (both None for one
    run); other figures are means. Failed runs are counted in ``failed`` and nowhere else.
    """

    variant: str
    values: dict[str, object]
    runs: int
    failed: int
    accuracy: float | None
    deviation: float | None
    interval: float | None
    density: float | None
    itop_rate: float | None
    active: float | None
    seconds: float | None


def run_sweep(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    ray: bool = False,
    on_run: Callable[[SweepRun, int, int], None] | None = None,
) -> list[SweepRecord]:
    """Train the unfinished runs of a sweep, each into ``out``/NAME.

    A run that diverges is recorded, and the sweep continues. sweep.json and sweep.csv are written
    after every run, or with ``ray`` after the last.

    Args:
        path: sweep file, or the name of a shipped sweep.
        out: folder of the runs; with ``ray``, shared by the machines of the cluster.
        data_dir: folder that holds the data set.
        ray: run them as trials of Ray Tune instead of one after the other.
        on_run: called with each run, its index and the number of runs before it starts.

    Raises:
        ConfigError: the sweep file is wrong; nothing is trained then.
        DataError: the data are missing or damaged.
        RunFolderError: a run folder cannot be used.
        OSError: a file cannot be written.

    """
    if launched_by_torchrun():
        raise ConfigError("torchrun trains a single run; start a sweep without it, or use --ray")
    runs, folder = load_sweep(path), Path(out)
    output_folder(folder)
    if ray:
        from .sweep_ray import run_with_ray

        records = run_with_ray(runs, folder.absolute(), data_dir)
        write_records(folder, records)
        return records
    records = []
    for number, run in enumerate(runs):
        if on_run is not None:
            on_run(run, number, len(runs))
        records.append(run_one(run, folder, data_dir))
        write_records(folder, records)
    return records


def write_records(folder: Path, records: Sequence[SweepRecord]) -> None:
    """Write sweep.json and sweep.csv."""
    table = {"schema_version": 1, "runs": [asdict(record) for record in records]}
    write_file(folder / RESULTS, json.dumps(table, indent=1) + "\n")
    keys = sorted({key for record in records for key in record.values})
    plain = [name for name in SweepRecord.__dataclass_fields__ if name != "values"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*plain, *keys])
    for record in records:
        figures = [getattr(record, name) for name in plain]
        writer.writerow(figures + [record.values.get(key) for key in keys])
    write_file(folder / "sweep.csv", text.getvalue())


def read_records(folder: Path) -> list[SweepRecord]:
    """Read sweep.json.

    Raises:
        ValueError: it is missing, damaged or of an unsupported version.

    """
    try:
        table = parse_json(read_text(folder / RESULTS))
        if table["schema_version"] != 1:
            raise ValueError(f"schema_version {table['schema_version']}")
        found = [{k: v for k, v in run.items() if v is not None} for run in table["runs"]]
        records = [from_table(SweepRecord, run, "runs") for run in found]
        for record in records:
            if record.error is None and record.test_accuracy is None:
                raise ValueError(f"run {record.name!r} has neither a test_accuracy nor an error")
        return records
    except (OSError, LookupError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{folder} is not the folder of a sweep: {error}") from error


def group_runs(records: Sequence[SweepRecord]) -> list[SweepRow]:
    """Return one row per variant and grid values, over all seeds."""
    groups: dict[str, tuple[str, dict[str, object], list[SweepRecord]]] = {}
    for record in records:
        values = {k: v for k, v in record.values.items() if k != SEED}
        key = json.dumps([record.variant, values])
        groups.setdefault(key, (record.variant, values, []))[2].append(record)
    return [_row(*group) for group in groups.values()]


def _row(variant: str, values: dict[str, object], members: Sequence[SweepRecord]) -> SweepRow:
    done = [member for member in members if member.error is None]
    accuracies = _known(member.test_accuracy for member in done)
    return {
        "variant": variant,
        "values": values,
        "runs": len(done),
        "failed": len(members) - len(done),
        "accuracy": _mean(member.test_accuracy for member in done),
        "deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "interval": confidence(accuracies),
        "density": _mean(member.density for member in done),
        "itop_rate": _mean(member.itop_rate for member in done),
        "active": _mean(member.active for member in done),
        "seconds": _mean(member.seconds for member in done),
    }


def confidence(values: Sequence[float]) -> float | None:
    """Return half the width of the 95 % confidence interval of a mean; None for one value."""
    if len(values) < 2:
        return None
    from scipy.stats import t

    quantile = float(t.ppf(0.975, len(values) - 1))
    deviation: float = statistics.stdev(values)
    return quantile * deviation / math.sqrt(len(values))


def _known(figures: Iterable[float | None]) -> list[float]:
    return [figure for figure in figures if figure is not None]


def _mean(figures: Iterable[float | None]) -> float | None:
    known = _known(figures)
    return statistics.fmean(known) if known else None
