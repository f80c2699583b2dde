"""Running a sweep: one run folder per combination, resumable at any moment."""

import csv
import io
import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .._base.atomic import output_folder, write_file
from .._base.texts import parse_json, read_text
from .config_table import ConfigError, from_table
from .loop import TrainingError, TrainResult, train
from .processes import started_by_torchrun
from .run_folder import CONFIG, is_finished
from .sweep_config import SweepRun, load_sweep

RESULTS = "sweep.json"
SEED = "training.seed"


@dataclass(frozen=True)
class SweepRecord:
    """What came of a run. ``error`` instead of figures when it failed.

    ``values``: of the grid, by dotted key. ``active``: share of neurons of sparse layers that
    hold weights.
    """

    name: str
    variant: str
    values: dict[str, object]
    test_accuracy: float | None = None
    train_accuracy: float | None = None
    density: float | None = None
    itop_rate: float | None = None
    active: float | None = None
    seconds: float | None = None
    error: str | None = None


def run_sweep(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    ray: bool = False,
    on_run: Callable[[SweepRun, int, int], None] | None = None,
) -> list[SweepRecord]:
    """Make the runs of a sweep file that are not finished yet, each into ``out``/NAME.

    One after the other on this machine, or with ``ray`` as tasks of a Ray Tune experiment
    (``out`` must then be shared by its machines). A run that diverges is recorded and the sweep
    goes on. Writes sweep.json and sweep.csv after every run, with ``ray`` after the last.
    Raises ConfigError before anything is trained; DataError, RunFolderError and OSError.
    """
    if started_by_torchrun():
        raise ConfigError("torchrun is for one training; start a sweep alone, or with Ray")
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


def run_one(
    run: SweepRun, folder: Path, data_dir: str | os.PathLike[str] | None = None
) -> SweepRecord:
    """Train one run, or take it up where it stopped; a finished one is only read."""
    out = folder / run.name
    resume = is_finished(out) or (out / CONFIG).is_file()
    try:
        result = train(run.config, out, resume=resume, data_dir=data_dir, progress=False)
    except TrainingError as error:
        return SweepRecord(run.name, run.variant, run.values, error=str(error))
    return SweepRecord(run.name, run.variant, run.values, **_figures(result))


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
    """Read sweep.json. Raises ValueError when it is missing or of another version."""
    try:
        table = parse_json(read_text(folder / RESULTS))
        if table["schema_version"] != 1:
            raise ValueError(f"schema_version {table['schema_version']}")
        found = [{k: v for k, v in run.items() if v is not None} for run in table["runs"]]
        return [from_table(SweepRecord, run, "runs") for run in found]
    except (OSError, LookupError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{folder} is no finished or running sweep: {error}") from error


def grouped(records: Sequence[SweepRecord]) -> list[dict[str, object]]:
    """Mean and spread over seeds: one row per variant and values of the grid but the seed.

    ``accuracy``, ``deviation`` (sample deviation, None for one run), ``runs``, and means of the
    other figures. Runs that failed are counted in ``failed`` and in nothing else.
    """
    rows: dict[str, list[SweepRecord]] = {}
    for record in records:
        values = {k: v for k, v in record.values.items() if k != SEED}
        rows.setdefault(json.dumps([record.variant, values]), []).append(record)
    table = []
    for key, members in rows.items():
        variant, values = json.loads(key)
        done = [member for member in members if member.error is None]
        accuracies = [member.test_accuracy for member in done]

        def mean(name: str, done: list[SweepRecord] = done) -> float | None:
            found = [v for v in (getattr(member, name) for member in done) if v is not None]
            return statistics.fmean(found) if found else None

        table.append(
            {
                "variant": variant,
                "values": values,
                "runs": len(done),
                "failed": len(members) - len(done),
                "accuracy": mean("test_accuracy"),
                "deviation": statistics.stdev(accuracies) if len(done) > 1 else None,
                "density": mean("density"),
                "itop_rate": mean("itop_rate"),
                "active": mean("active"),
                "seconds": mean("seconds"),
            }
        )
    return table


def _figures(result: TrainResult) -> dict[str, float | None]:
    sparse = [row for row in result.summary if row.sparse]
    neurons = sum(row.shape[0] for row in sparse)
    return {
        "test_accuracy": result.test_accuracy,
        "train_accuracy": result.train_accuracy,
        "density": result.summary.density,
        "itop_rate": result.itop_rate,
        "active": sum(row.active for row in sparse) / neurons if neurons else None,
        "seconds": result.seconds,
    }
