"""Time of whole networks against the number of threads."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...._base.atomic import output_folder
from ...cpus import default_threads
from ...doctor_probe import FindingError
from ..measure.timing import Progress
from ..report.text import threads_text
from ..results.case import Case
from ..results.plain import to_plain
from ..results.result import Recorder, Result
from .model import BenchModelSpec, bench_model
from .planned import Planned, plan_network
from .specs import thread_counts
from .zoo_models import ZOO, export_zoo_model, zoo_file


@dataclass(frozen=True)
class BenchNetworksSpec:
    """Networks at many numbers of threads, dense and condensed.

    Attributes:
        models: names of ``fanin bench zoo``, or files of fanin export with their dense baselines.
        threads: 1, 2, 4 … and all CPUs.
        batch: of every network.
        sparsity: share of zeros in each sparse layer of the networks with names.
        rounds: interleaved rounds of a case.
        budget: seconds after which a case's rounds end.
        seed: of inputs.

    """

    models: tuple[str, ...] = ("mlp", "resnet-50", "vit-b-16")
    threads: tuple[int, ...] = field(default_factory=lambda: thread_counts(default_threads()))
    batch: int = 1
    sparsity: float = 0.9
    rounds: int = 15
    budget: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [name for name in self.models if name not in ZOO and not Path(name).is_file()]
        if unknown or not self.models:
            raise ValueError(
                f"models are {self.models}; {', '.join(unknown) or 'nothing'} is neither a file "
                f"nor one of {', '.join(ZOO)}"
            )
        if not 0 < self.sparsity < 1:
            raise ValueError(f"sparsity is {self.sparsity}; it must be in (0, 1)")
        for threads in self.threads:
            self.model_spec(Path("model.onnx"), threads)

    def model_spec(self, path: Path, threads: int) -> BenchModelSpec:
        """Return what a network is measured as on so many threads."""
        return BenchModelSpec(
            model=path,
            batches=(self.batch,),
            threads=threads,
            rounds=self.rounds,
            budget=self.budget,
            warmup=1.0,
            seed=self.seed,
            tolerance=1e-3,
            breakdown=False,
            all_dense_allowed=True,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it with file names only."""
        models = [Path(name).name for name in self.models]
        return {**to_plain(self), "models": models, "axis": "threads"}


def bench_networks(
    spec: BenchNetworksSpec,
    files: Path,
    *,
    reuse: bool = False,
    progress: Progress = lambda title, done: None,  # noqa: ARG005
) -> Result[Case]:
    """Measure each network at each number of threads.

    Args:
        spec: what to measure.
        files: folder for the networks with names, which are exported into it.
        reuse: take those that are there from before.
        progress: told each case's title and the share done.

    Raises:
        SessionError: a file does not open.

    """
    recorder = Recorder()
    paths = {name: _path(spec, name, files, reuse=reuse, progress=progress) for name in spec.models}
    cases: list[Case] = []
    settings = list(itertools.product(paths, spec.threads))
    for name, threads in settings:
        network = _about(spec, name)
        title = f"{network}, batch {spec.batch}, {threads_text(threads)}"
        progress(title, len(cases) / len(settings))
        (case,) = bench_model(spec.model_spec(paths[name], threads)).cases
        facts = {"network": network, "threads": threads, **case.facts}
        cases.append(replace(case, title=title, facts=facts))
    planned, no_plan = _plans(spec, paths)
    return recorder.result(
        "scaling",
        "Networks against threads",
        spec.to_dict(),
        spec.model_spec(Path(), spec.threads[0]).timing(),
        tuple(cases),
        planned=to_plain(planned),
        no_plan=no_plan,
    )


def _path(
    spec: BenchNetworksSpec, name: str, files: Path, *, reuse: bool, progress: Progress
) -> Path:
    if name not in ZOO:
        return Path(name)
    path = zoo_file(name, files, spec.sparsity, 0.0)
    if not (reuse and path.is_file()):
        output_folder(files)
        progress(f"{name}: export", 0.0)
        export_zoo_model(name, files, spec.sparsity, 0.0, spec.batch)
    return path


def _about(spec: BenchNetworksSpec, name: str) -> str:
    return f"{name} {spec.sparsity:.0%}" if name in ZOO else Path(name).name


def _plans(spec: BenchNetworksSpec, paths: dict[str, Path]) -> tuple[list[Planned], list[str]]:
    """Plan every network; also returns why some have no plan."""
    plans: list[Planned] = []
    problems = []
    for name, path in paths.items():
        what = f"{_about(spec, name)}, batch {spec.batch}, condensed layers"
        try:
            plans += plan_network(what, path, spec.batch)
        except FindingError as error:
            problems.append(f"{_about(spec, name)} has no plan: {error}")
    return plans, problems
