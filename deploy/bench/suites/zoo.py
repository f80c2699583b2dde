"""Networks of many kinds, dense and sparse, in all runtimes, as one table."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from ...._base.atomic import output_folder
from ..engines.peers import DEEPSPARSE_PYTHON
from ..measure.statistics import Spread
from ..measure.timing import Progress
from ..report.files import write_report
from ..results.case import Case, EngineResult
from ..results.result import Result, read_result
from ..results.store import StoreError
from .cases_report import cases_document
from .model import ENGINES, BenchModelSpec, bench_model
from .specs import check_choices
from .zoo_models import KNOWN, ZOO, export_zoo_model, zoo_file

_RESAMPLES = 2_000
LEAST_RATIO = 0.95
"""What the median speed-up of a network that is not slower than dense may be at least."""


@dataclass(frozen=True)
class BenchZooSpec:
    """Networks of ZOO on a number of threads; the rest as in BenchModelSpec.

    ``sparsity``, ``batch`` and ``ablated``, the share of neurons without weights in every sparse
    layer but the network's last, are each network's own where they are None.

    With ``processes`` above 1, as many fresh processes measure each network, one after another and
    all networks in turn. Two copies of one file differ by up to 2 % within a process, by where
    their weights lie, so that rounds of one process do not show how certain a ratio is. Conditions
    are left out then.
    """

    models: tuple[str, ...] = tuple(KNOWN)
    sparsity: float | None = None
    ablated: float | None = None
    batch: int | None = None
    threads: int = 1
    rounds: int = 31
    budget: float | None = 120.0
    conditions: tuple[str, ...] = ("cold", "paced")
    engines: tuple[str, ...] = ENGINES
    precision: str = "float32"
    processes: int = 1
    deepsparse_python: Path = DEEPSPARSE_PYTHON

    def __post_init__(self) -> None:
        check_choices("models", self.models, tuple(ZOO))
        sparsity, ablated = self.sparsity, self.ablated
        if not (sparsity is None or 0 < sparsity < 1) or not (ablated is None or 0 <= ablated < 1):
            raise ValueError(
                f"sparsity is {sparsity}, ablated {ablated}; they must be in (0, 1) and [0, 1)"
            )
        if self.processes < 1 or (self.processes > 1 and self.conditions):
            raise ValueError(
                f"processes is {self.processes} and conditions are {self.conditions}; processes "
                "must be at least 1, and above 1 there are no conditions"
            )
        self.model_spec(self.models[0], Path("model.onnx"))

    def share_of_zeros(self, name: str) -> float:
        """Return the sparsity of a network."""
        return ZOO[name].sparsity if self.sparsity is None else self.sparsity

    def share_of_ablated(self, name: str) -> float:
        """Return the share of a network's neurons without weights."""
        return ZOO[name].ablated if self.ablated is None else self.ablated

    def model_spec(self, name: str, path: Path) -> BenchModelSpec:
        """Return what a network is measured as."""
        return BenchModelSpec(
            model=path,
            batches=(ZOO[name].batch if self.batch is None else self.batch,),
            threads=self.threads,
            rounds=self.rounds,
            budget=self.budget,
            conditions=self.conditions,
            engines=self.engines,
            precision=self.precision,
            tolerance=1e-3,
            all_dense_allowed=True,
            deepsparse_python=self.deepsparse_python,
        )


def bench_zoo(
    spec: BenchZooSpec,
    folder: Path,
    models: Path,
    *,
    reuse: bool = False,
    raw: bool = False,
    progress: Progress | None = None,
) -> dict[str, Result[Case]]:
    """Measure the networks one after another, each into its own folder in ``folder``.

    Their files are written into ``models``, or taken from there with ``reuse``. Returns the results
    of all networks that ``folder`` has now, those of earlier calls included.
    """
    output_folder(models)
    found: dict[str, list[Result[Case]]] = {}
    for number in range(spec.processes):
        for at, name in enumerate(spec.models):
            done = (number + at / len(spec.models)) / spec.processes
            measured = found.setdefault(name, [])
            measured.append(
                _measure(
                    spec, name, models, reuse=reuse or number > 0, done=done, progress=progress
                )
            )
            result = _titled(spec, name, pooled(measured))
            write_report(result, cases_document(result), folder / name, raw=raw)
    return read_zoo(folder)


def _measure(
    spec: BenchZooSpec,
    name: str,
    models: Path,
    *,
    reuse: bool,
    done: float,
    progress: Progress | None,
) -> Result[Case]:
    sparsity, ablated = spec.share_of_zeros(name), spec.share_of_ablated(name)
    path = zoo_file(name, models, sparsity, ablated)
    model = spec.model_spec(name, path)
    if not (reuse and path.is_file()):
        if progress:
            progress(f"{name}: export", done)
        export_zoo_model(name, models, sparsity, ablated, model.batches[0])
    if progress:
        progress(f"{name}: measurement", done)
    if spec.processes == 1:
        return bench_model(model)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(bench_model, model).result()


def _titled(spec: BenchZooSpec, name: str, result: Result[Case]) -> Result[Case]:
    sparsity, ablated = spec.share_of_zeros(name), spec.share_of_ablated(name)
    title = f"{ZOO[name].about}, {sparsity:.0%} sparse, {result.title.partition(', ')[2]}"
    batch = result.cases[0].batch
    title += f", batch {batch}" if batch > 1 else ""
    title += f", {ablated:.0%} of the neurons ablated" if ablated else ""
    title += ", int8" if spec.precision == "int8" else ""
    return replace(result, title=title)


def pooled(results: Sequence[Result[Case]]) -> Result[Case]:
    """Combine the measurements that several processes made of one network.

    Runs and speed-ups spread over the rounds of all processes; the interval of a speed-up's median
    resamples the processes as well as their rounds. All else is of the first process.
    """
    first, cases = results[0], [result.cases[0] for result in results]
    if len(cases) == 1:
        return first
    wrong = [engine for case in cases for engine in case.engines if engine.excluded]
    if wrong:
        case = next(case for case in cases if wrong[0] in case.engines)
        return replace(first, cases=(case,))

    def rounds(name: str) -> list[tuple[float, ...]]:
        return [case.engine(name).rounds_seconds for case in cases]

    def engine(one: EngineResult) -> EngineResult:
        seconds = tuple(time for times in rounds(one.name) for time in times)
        return replace(one, run=Spread.of(seconds), rounds_seconds=seconds)

    comparisons = tuple(
        replace(one, run_ratio=spread_of_processes(rounds(one.baseline), rounds(one.engine)))
        for one in cases[0].comparisons
    )
    case = replace(
        cases[0],
        engines=tuple(engine(one) for one in cases[0].engines),
        comparisons=comparisons,
        facts={**cases[0].facts, "processes": len(cases)},
    )
    seconds = sum(result.seconds for result in results)
    return replace(first, cases=(case,), seconds=seconds)


def spread_of_processes(slow: Sequence[Sequence[float]], fast: Sequence[Sequence[float]]) -> Spread:
    """Return how often as fast, from times of the same rounds, ``[processes][rounds]``.

    Processes may differ in their number of rounds.
    """
    ratios = [np.divide(one, other) for one, other in zip(slow, fast, strict=True)]
    rng = np.random.default_rng(0)
    medians = []
    for _ in range(_RESAMPLES):
        drawn = [ratios[at] for at in rng.integers(len(ratios), size=len(ratios))]
        medians.append(np.median(np.concatenate([rng.choice(one, len(one)) for one in drawn])))
    low, high = np.quantile(medians, (0.025, 0.975)).tolist()
    return replace(Spread.of(np.concatenate(ratios).tolist()), interval=(low, high))


def is_not_slower(case: Case) -> bool | None:
    """Say whether a network is not slower than its dense export; None where it was not measured.

    The median speed-up must be 0.95 at least, and its interval reach 1.
    """
    compared = case.comparison("condensed")
    if compared is None or compared.run_ratio.interval is None:
        return None
    return compared.run_ratio.median >= LEAST_RATIO and compared.run_ratio.interval[1] >= 1


def read_zoo(folder: Path) -> dict[str, Result[Case]]:
    """Read the results of a folder. Raises StoreError when they do not belong together."""
    files = {name: folder / name / "results.json" for name in ZOO}
    found = {
        name: read_result(file, {"model": Case}) for name, file in files.items() if file.is_file()
    }
    if len({one.spec.get("precision", "float32") for one in found.values()}) > 1:
        raise StoreError(f"{folder} has results of several precisions; take a folder for each")
    if len({one.require_timing().threads for one in found.values()}) > 1:
        raise StoreError(
            f"{folder} has results of several numbers of threads; take a folder for each"
        )
    return found
