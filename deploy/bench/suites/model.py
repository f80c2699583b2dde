"""A whole model, dense against condensed, at several batch sizes."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....ort_ops.contract import DOMAIN
from ...errors import SessionError
from ...model_check import checked_content
from ...session import open_session
from ..engines.ort import OrtEngine
from ..engines.peers import DEEPSPARSE_PYTHON, deepsparse_model, openvino_model
from ..engines.protocol import Engine, UnavailableEngine
from ..measure.breakdown import amdahl_limit, profile
from ..measure.loop import measure
from ..measure.pinning import pinned
from ..measure.problem import Problem
from ..measure.timing import Progress, Timing
from ..report.text import threads_text
from ..results.case import Case, make_case
from ..results.result import Recorder, Result
from .model_pair import ModelPairSpec, file_bytes, input_shapes
from .specs import check_batches, check_choices, check_seed, timing_of

ENGINES = ("dense", "condensed", "structured", "deepsparse", "openvino")


_FAMILIES = {"DeepSparse": ("deepsparse",), "OpenVINO": ("openvino",)}


@dataclass(frozen=True)
class BenchModelSpec(ModelPairSpec):
    """An exported model against its dense baseline.

    Inputs are standard normal float32 numbers of
    ``seed``; their first dimension is the batch. ``tolerance`` bounds the difference between the
    two models' outputs, relative to the largest one: they sum the same products in another order.
    ``turn``, ``budget`` (of a batch) and ``warmup`` (at most) are in seconds; they and
    ``conditions`` are Timing's. ``pin``: see pinned.

    ``engines``: ``dense`` and ``condensed`` always; ``structured`` runs NAME.structured.onnx beside
    ``model``, exported under that policy; ``deepsparse`` (run by ``deepsparse_python``) and
    ``openvino`` run the dense baseline's file, whose weights are as sparse. ``breakdown`` adds
    the times of the single nodes, from runs of their own after the timed rounds. Unless
    ``all_dense_allowed``, a model without a condensed node is refused.
    """

    batches: tuple[int, ...] = (1,)
    threads: int = 1
    rounds: int = Timing.rounds
    turn: float = Timing.turn
    budget: float | None = None
    warmup: float = Timing.max_warmup
    pin: bool = True
    conditions: tuple[str, ...] = ()
    seed: int = 0
    tolerance: float = 1e-4
    engines: tuple[str, ...] = ENGINES[:2]
    breakdown: bool = True
    all_dense_allowed: bool = False
    deepsparse_python: Path = DEEPSPARSE_PYTHON

    def __post_init__(self) -> None:
        super().__post_init__()
        check_batches(self.batches)
        check_seed(self.seed)
        check_choices("engines", self.engines, ENGINES)
        if self.engines[:2] != ENGINES[:2]:
            raise ValueError(f"engines are {self.engines}; dense and condensed come first")
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance is {self.tolerance}; it must be between 0 and 1")
        self.timing()

    def timing(self) -> Timing:
        """How the cases are timed."""
        return timing_of(self)


def bench_model(spec: BenchModelSpec, *, progress: Progress | None = None) -> Result[Case]:
    """Measure the model of ``spec``; ``progress`` is told each case's title and the share done.

    Raises SessionError when one of the files does not open or the two do not fit together.
    """
    spec.require_baseline()
    with pinned(spec.threads, pin=spec.pin):
        return _bench_model(spec, progress)


def _bench_model(spec: BenchModelSpec, progress: Progress | None) -> Result[Case]:
    recorder = Recorder()
    condensed, dense = open_session(spec.model), open_session(spec.dense_path)
    facts = _facts(spec)
    shapes = input_shapes(spec.model, spec.dense_path, spec.batches, condensed, dense)
    del condensed
    cases: list[Case] = []
    for batch in spec.batches:
        title = f"batch {batch}"
        if progress:
            progress(title, len(cases) / len(spec.batches))
        cases.append(_measure_case(spec, batch, title, shapes, dense, facts))
    title = f"{spec.model.name}, {threads_text(spec.threads)}"
    return recorder.result("model", title, spec.to_dict(), spec.timing(), tuple(cases))


def _measure_case(
    spec: BenchModelSpec,
    batch: int,
    title: str,
    shapes: dict[str, list[int | None]],
    dense: Any,
    facts: dict[str, Any],
) -> Case:
    problem = _problem(spec, batch, shapes, dense)
    with tempfile.TemporaryDirectory(prefix="fanin-bench-") as folder:
        engines = _engines(spec, problem, Path(folder))
        measured, _ = measure(engines, problem, spec.timing())
    case = make_case(title, batch, None, facts, measured, None, _FAMILIES)
    return _with_breakdowns(spec, case, problem) if spec.breakdown else case


def _engines(spec: BenchModelSpec, problem: Problem, folder: Path) -> list[Engine]:
    dense, threads = spec.dense_path, spec.threads
    engines: list[Engine] = [
        OrtEngine("dense", dense.name, dense, threads, library=False),
        OrtEngine("condensed", spec.model.name, spec.model, threads, library=True),
    ]
    inputs = [array.shape for array in problem.inputs.values()]
    outputs = [array.shape for array in problem.timed.outputs]
    for name in spec.engines[2:]:
        if name == "structured":
            engines.append(_structured(spec))
        elif len(inputs) != 1 or len(outputs) != 1:
            reason = f"the model has {len(inputs)} inputs and {len(outputs)} outputs; one is needed"
            engines.append(UnavailableEngine(name, reason))
        elif name == "openvino":
            engines.append(openvino_model(dense, inputs[0], outputs[0], threads, folder))
        else:
            python = spec.deepsparse_python
            engines.append(deepsparse_model(dense, inputs[0], outputs[0], threads, folder, python))
    return engines


def _structured(spec: BenchModelSpec) -> Engine:
    path = spec.structured_path
    if path.is_file():
        return OrtEngine("structured", path.name, path, spec.threads, library=False)
    return UnavailableEngine(
        "structured",
        f"there is no {path.name} beside the model, which fanin export --policy structured "
        "writes; without ablated neurons it is the dense one",
    )


def _with_breakdowns(spec: BenchModelSpec, case: Case, problem: Problem) -> Case:
    """Profile the engines whose times count."""
    runs = {name: case.engine(name).run for name in ENGINES[:2]}
    try:
        breakdowns = tuple(
            profile(
                name,
                spec.model if name == "condensed" else spec.dense_path,
                problem.inputs,
                spec.threads,
                run.median,
                library=name == "condensed",
            )
            for name, run in runs.items()
            if run is not None
        )
    except Exception as error:  # whatever fails here, the times that were taken are not lost
        reason = f"{type(error).__name__}: {error}"
        return dataclasses.replace(case, facts={**case.facts, "breakdown_failed": reason})
    limit = None
    dense, condensed = runs["dense"], runs["condensed"]
    if dense is not None and condensed is not None:
        limit = amdahl_limit(dense.median, condensed.median, breakdowns[-1])
    return dataclasses.replace(case, breakdowns=breakdowns, limit=limit)


def _problem(
    spec: BenchModelSpec, batch: int, shapes: dict[str, list[int | None]], dense: Any
) -> Problem:
    """Random inputs and the dense model's outputs for them, from a session that is not timed."""

    def draw(seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([spec.seed, seed])
        return {
            name: rng.standard_normal(
                [batch if size is None else size for size in shape], np.float32
            )
            for name, shape in shapes.items()
        }

    def right(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [output.astype(np.float64) for output in dense.run(None, inputs)]

    return Problem.of(draw(1), draw(2), right, spec.tolerance)


def _facts(spec: BenchModelSpec) -> dict[str, Any]:
    nodes = sum(node.domain == DOMAIN for node in checked_content(spec.model).nodes)
    if not nodes and not spec.all_dense_allowed:
        raise SessionError(
            f"it holds no {DOMAIN} node, so there is nothing to compare with the dense model",
            "Pass the file that fanin export wrote; it prints which layers it made sparse.",
            model=spec.model,
        )
    condensed_bytes, dense_bytes = file_bytes(spec.model), file_bytes(spec.dense_path)
    return {
        "condensed_nodes": nodes,
        "condensed_bytes": condensed_bytes,
        "dense_bytes": dense_bytes,
        "size_ratio": condensed_bytes / dense_bytes,
    }
