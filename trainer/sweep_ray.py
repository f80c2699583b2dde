"""Sweeps as trials of Ray Tune, on this machine or on a cluster that Ray is connected to."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from .sweep_config import SweepRun
from .sweep_run import SweepRecord, run_one
from .training_run import TrainingError


def run_with_ray(
    runs: Sequence[SweepRun], folder: Path, data_dir: str | os.PathLike[str] | None
) -> list[SweepRecord]:
    """Train the runs as trials, each with one CPU and, if there are GPUs, one GPU.

    Starts Ray on this machine, without dashboard and usage statistics, unless the process is
    already connected to a cluster.

    Args:
        runs: the runs.
        folder: absolute path, shared by all machines; Ray's own files go to its subfolder "ray".
        data_dir: folder that holds the data set.

    Raises:
        RuntimeError: ray cannot be imported.
        TrainingError: a trial failed.

    """
    # Ray reads this on import. Usage reports are off unless the user has set the variable.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray import tune
    except ImportError as error:
        raise RuntimeError(
            f"running a sweep on Ray needs ray ({error}); run: pip install 'fanin[ray]'"
        ) from error
    absolute = None if data_dir is None else Path(data_dir).absolute()

    def trial(config: dict[str, int]) -> None:
        tune.report({"record": asdict(run_one(runs[config["run"]], folder, absolute))})

    started = not ray.is_initialized()
    if started:
        ray.init(include_dashboard=False, log_to_driver=False)
    try:
        resources = {"cpu": 1, "gpu": 1} if torch.cuda.is_available() else {"cpu": 1}
        results = tune.Tuner(
            tune.with_resources(trial, resources),
            param_space={"run": tune.grid_search(list(range(len(runs))))},
            run_config=tune.RunConfig(name="ray", storage_path=str(folder), verbose=0),
        ).fit()
    finally:
        if started:
            ray.shutdown()
    records: dict[str, SweepRecord] = {}
    for result in results:
        if result.error is not None:
            raise TrainingError(f"a trial of the sweep failed: {result.error}") from result.error
        record = SweepRecord(**result.metrics["record"])
        records[record.name] = record
    return [records[run.name] for run in runs]
