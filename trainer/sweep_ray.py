"""A sweep as tasks of Ray Tune, on this machine or on a cluster that Ray is connected to."""

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
    """Make the runs as trials, each with one CPU and, where there are GPUs, with one of them.

    ``folder``: absolute, and seen by all machines; Ray's own files go to its subfolder "ray".
    Starts Ray on this machine, without dashboard and usage statistics, unless the process is
    connected to a cluster already. Raises RuntimeError without ray, and TrainingError when a trial
    fails.
    """
    # Ray reads it when it is imported; whoever wants to report says so.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray import tune
    except ImportError as error:
        raise RuntimeError(
            f"a sweep by Ray needs ray ({error}); run: pip install 'fanin[ray]'"
        ) from error
    absolute = None if data_dir is None else Path(data_dir).absolute()

    def trial(choice: dict[str, int]) -> None:
        tune.report({"record": asdict(run_one(runs[choice["run"]], folder, absolute))})

    started = not ray.is_initialized()
    if started:
        ray.init(include_dashboard=False, log_to_driver=False)
    try:
        needs = {"cpu": 1, "gpu": 1} if torch.cuda.is_available() else {"cpu": 1}
        results = tune.Tuner(
            tune.with_resources(trial, needs),
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
