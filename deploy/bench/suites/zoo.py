"""Known networks, dense and sparse, in all runtimes, as one table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ...._base.atomic import output_folder
from ..engines.peers import DEEPSPARSE_PYTHON
from ..measure.timing import Progress
from ..report.files import write_report
from ..results.case import Case
from ..results.result import Result, read_result
from ..results.store import StoreError
from .cases_report import cases_document
from .model import ENGINES, BenchModelSpec, bench_model
from .specs import check_choices
from .zoo_models import ZOO, export_zoo_model


@dataclass(frozen=True)
class BenchZooSpec:
    """Networks of ZOO at one sparsity, batch and number of threads; the rest as in BenchModelSpec.

    ``ablated`` is the share of neurons without weights in every sparse layer but the last.
    """

    models: tuple[str, ...] = tuple(ZOO)
    sparsity: float = 0.9
    ablated: float = 0.0
    batch: int = 1
    threads: int = 1
    rounds: int = 31
    budget: float | None = 120.0
    conditions: tuple[str, ...] = ("cold", "paced")
    engines: tuple[str, ...] = ENGINES
    deepsparse_python: Path = DEEPSPARSE_PYTHON

    def __post_init__(self) -> None:
        check_choices("models", self.models, tuple(ZOO))
        if not 0 < self.sparsity < 1 or not 0 <= self.ablated < 1:
            raise ValueError(
                f"sparsity is {self.sparsity}, ablated {self.ablated}; they must be in (0, 1) and "
                "[0, 1)"
            )
        self.model_spec(Path("model.onnx"))

    def model_spec(self, path: Path) -> BenchModelSpec:
        """Return what a network is measured as."""
        return BenchModelSpec(
            model=path,
            batches=(self.batch,),
            threads=self.threads,
            rounds=self.rounds,
            budget=self.budget,
            conditions=self.conditions,
            engines=self.engines,
            tolerance=1e-3,
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
    for number, name in enumerate(spec.models):
        if progress:
            progress(f"{name}: export", number / len(spec.models))
        path = models / f"{name}-{100 * spec.sparsity:g}-{100 * spec.ablated:g}.onnx"
        if not (reuse and path.is_file()):
            path = export_zoo_model(name, models, spec.sparsity, spec.ablated, spec.batch)
        if progress:
            progress(f"{name}: measurement", (number + 0.5) / len(spec.models))
        result = bench_model(spec.model_spec(path))
        title = f"{ZOO[name].about}, {spec.sparsity:.0%} sparse, {result.title.partition(', ')[2]}"
        if spec.ablated:
            title += f", {spec.ablated:.0%} of the neurons ablated"
        result = replace(result, title=title)
        write_report(result, cases_document(result), folder / name, raw=raw)
    return read_zoo(folder)


def read_zoo(folder: Path) -> dict[str, Result[Case]]:
    """Read the results of a folder. Raises StoreError when they do not belong together."""
    files = {name: folder / name / "results.json" for name in ZOO}
    found = {
        name: read_result(file, {"model": Case}) for name, file in files.items() if file.is_file()
    }
    settings = {(one.require_timing().threads, one.cases[0].batch) for one in found.values()}
    if len(settings) > 1:
        raise StoreError(
            f"{folder} has results of several numbers of threads or batches; take a folder for each"
        )
    return found
