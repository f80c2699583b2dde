"""A whole model against its dense baseline, at several batch sizes."""

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
from ..engines.peers import DEEPSPARSE_PYTHON, peer_model
from ..engines.protocol import Engine, UnavailableEngine
from ..measure.breakdown import amdahl_limit, profile
from ..measure.loop import measure
from ..measure.pinning import pinned
from ..measure.problem import Problem
from ..measure.timing import Progress
from ..report.text import threads_text
from ..results.case import Case, make_case
from ..results.result import Recorder, Result
from .layer_engines import INT8_FAMILIES, OURS
from .model_pair import ModelPairSpec, file_bytes, input_shapes, with_batch
from .quantized_model import QuantizedNetwork, int8_model_engine
from .specs import TimedSpec, check_batches, check_choices

ENGINES = ("dense", "condensed", "structured", "deepsparse", "openvino")


INT8_ENGINES = (
    "dense",
    "condensed",
    "dense-int8-static",
    "condensed-int8-static",
    "openvino-int8",
    "deepsparse-int8",
    "dense-int8-dynamic",
    "condensed-int8-dynamic",
)
"""The engines of a network in 8 bits, beside the two in float32."""

ENGINES_OF = {"float32": ENGINES, "int8": INT8_ENGINES}
DEFAULT_ENGINES = {"float32": ENGINES[:2], "int8": INT8_ENGINES}
_FAMILIES = {
    "float32": {"DeepSparse": ("deepsparse",), "OpenVINO": ("openvino",)},
    "int8": INT8_FAMILIES,
}
_CALIBRATION_INPUTS = 8
_INT8 = {"int8_tolerance": 0.5, "step": 1.0}
"""Networks amplify what 8 bits round, and the input must stay in the range that it is rounded
for."""
_PROFILED = {"float32": ENGINES[:2], "int8": INT8_ENGINES[2:4]}
"""The engines whose nodes are timed: the dense one, then ours."""


@dataclass(frozen=True)
class BenchModelSpec(ModelPairSpec, TimedSpec):
    """An exported model against its dense baseline.

    Inputs are standard normal float32 numbers of ``seed``; their first dimension is the batch.

    Attributes:
        batches: batch sizes.
        tolerance: largest difference between the two models' outputs, relative to the largest one:
            they sum the same products in a different order.
        engines: ``dense`` and ``condensed`` always; ``structured`` runs NAME.structured.onnx beside
            ``model``, exported under that policy; ``deepsparse`` (run by ``deepsparse_python``) and
            ``openvino`` run the dense baseline's file, whose weights are as sparse. With the
            precision int8, those of INT8_ENGINES.
        precision: ``float32``, or ``int8``: the dense baseline is quantized as well, for engines
            that compute in 8 bits.
        breakdown: also time the single nodes, in runs of their own after the timed rounds.
        all_dense_allowed: do not refuse a model without a condensed node.
        deepsparse_python: interpreter that has DeepSparse.

    """

    batches: tuple[int, ...] = (1,)
    tolerance: float = 1e-4
    engines: tuple[str, ...] = ENGINES[:2]
    precision: str = "float32"
    breakdown: bool = True
    all_dense_allowed: bool = False
    deepsparse_python: Path = DEEPSPARSE_PYTHON

    def __post_init__(self) -> None:
        ModelPairSpec.__post_init__(self)
        TimedSpec.__post_init__(self)
        check_batches(self.batches)
        check_choices("precision", (self.precision,), tuple(ENGINES_OF))
        check_choices("engines", self.engines, ENGINES_OF[self.precision])
        if self.engines[:2] != ENGINES[:2]:
            raise ValueError(f"engines are {self.engines}; dense and condensed come first")
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance is {self.tolerance}; it must be between 0 and 1")


def bench_model(spec: BenchModelSpec, *, progress: Progress | None = None) -> Result[Case]:
    """Measure a model and its dense baseline, and other runtimes, at each batch size.

    Args:
        spec: what to measure.
        progress: told each case's title and the share done.

    Raises:
        SessionError: one of the files does not open, or the two do not fit together.

    """
    spec.require_baseline()
    with pinned(spec.threads, pin=spec.pin):
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
            problem = _problem(spec, batch, shapes, dense)
            with tempfile.TemporaryDirectory(prefix="fanin-bench-") as folder:
                network = QuantizedNetwork(
                    spec.dense_path, Path(folder), _calibration(spec, shapes), batch, spec.threads
                )
                engines = _engines(spec, problem, network)
                measured, _ = measure(engines, problem, spec.timing())
                families = _FAMILIES[spec.precision]
                sizes = {
                    one.name: file_bytes(one.path) for one in engines if isinstance(one, OrtEngine)
                }
                own = {**facts, "file_bytes": sizes}
                case = make_case(title, batch, None, own, measured, None, families, OURS)
                case = _with_breakdowns(spec, case, problem, network) if spec.breakdown else case
            cases.append(case)
        int8 = ", int8" if spec.precision == "int8" else ""
        title = f"{spec.model.name}{int8}, {threads_text(spec.threads)}"
        return recorder.result("model", title, spec.to_dict(), spec.timing(), tuple(cases))


def _engines(spec: BenchModelSpec, problem: Problem, network: QuantizedNetwork) -> list[Engine]:
    """Make the engines; ``network`` makes the files of those in 8 bits, and has the folder."""
    engines: list[Engine] = []
    inputs = [array.shape for array in problem.inputs.values()]
    outputs = [array.shape for array in problem.timed.outputs]
    for name in spec.engines:
        path = spec.path_of(name)
        if name == "structured" and spec.no_structured:
            engines.append(UnavailableEngine(name, spec.no_structured))
        elif name in ENGINES[:3]:
            library = name == "condensed"
            engines.append(OrtEngine(name, path.name, path, spec.threads, library=library))
        elif len(inputs) != 1 or len(outputs) != 1:
            reason = f"the model has {len(inputs)} inputs and {len(outputs)} outputs; one is needed"
            engines.append(UnavailableEngine(name, reason))
        else:
            shapes, python = (inputs[0], outputs[0]), spec.deepsparse_python
            if "-int8" in name:
                engine = int8_model_engine(name, network, *shapes, python)
            else:
                folder = network.folder
                engine = peer_model(name, path, *shapes, spec.threads, folder, python)
            engines.append(engine)
    return engines


def _with_breakdowns(
    spec: BenchModelSpec, case: Case, problem: Problem, network: QuantizedNetwork
) -> Case:
    """Profile the engines that are not excluded."""
    profiled = [name for name in _PROFILED[spec.precision] if name in spec.engines]
    runs = {name: case.engine(name).run for name in profiled}
    try:
        breakdowns = tuple(
            profile(
                name,
                network.path_of(name) if "-int8" in name else spec.path_of(name),
                problem.inputs,
                spec.threads,
                run.median,
                library=name.startswith("condensed"),
            )
            for name, run in runs.items()
            if run is not None
        )
    except Exception as error:  # whatever fails here must not lose the measured times
        reason = f"{type(error).__name__}: {error}"
        return dataclasses.replace(case, facts={**case.facts, "breakdown_failed": reason})
    limit = None
    dense, condensed = (runs.get(name) for name in _PROFILED[spec.precision])
    if dense is not None and condensed is not None:
        limit = amdahl_limit(dense.median, condensed.median, breakdowns[-1])
    return dataclasses.replace(case, breakdowns=breakdowns, limit=limit)


def _calibration(
    spec: BenchModelSpec, shapes: dict[str, list[int | None]]
) -> list[dict[str, np.ndarray]]:
    """Draw inputs of a batch of 1 whose ranges the activations of a network in 8 bits get."""
    rng = np.random.default_rng([spec.seed, 3])
    return [
        {
            name: rng.standard_normal(shape, np.float32)
            for name, shape in with_batch(shapes, 1).items()
        }
        for _ in range(_CALIBRATION_INPUTS)
    ]


def _problem(
    spec: BenchModelSpec, batch: int, shapes: dict[str, list[int | None]], dense: Any
) -> Problem:
    """Draw inputs, and compute the dense model's outputs for them in a session of their own."""

    def draw(seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([spec.seed, seed])
        return {
            name: rng.standard_normal(shape, np.float32)
            for name, shape in with_batch(shapes, batch).items()
        }

    def expected(inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return [output.astype(np.float64) for output in dense.run(None, inputs)]

    options = _INT8 if spec.precision == "int8" else {}
    return Problem.of(draw(1), draw(2), expected, spec.tolerance, **options)


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
