#!/usr/bin/env python3
"""Measure whole networks in ONNX Runtime's CUDA provider: ``--device cuda`` against dense.

    python tools/gpu_networks.py --out results
    python tools/gpu_networks.py --out results --networks decoder --batches 1 --precisions float16
    python tools/gpu_networks.py --out rehearsal --emulated --networks mlp-tiny --batches 2

Networks of ``fanin bench zoo`` at their sparsities, and ``decoder``: four Llama-style layers of
4,096 features that compute one token, 90 % sparse (``decoder-tiny`` rehearses it). Both sides are
in the same precision; float32 is TF32, ONNX Runtime's default. Inputs and outputs are on the
device. With ``FANIN_CUDA_UNPROVEN=on`` a third file of a network of the zoo has all layers
condensed. ``--emulated`` rehearses on the CPU; then times mean nothing.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fanin.deploy.bench import print_report, report_of, save_result
from fanin.deploy.bench.engines.cuda import CudaEngine, Device, session
from fanin.deploy.bench.measure.loop import measure
from fanin.deploy.bench.measure.problem import Problem
from fanin.deploy.bench.measure.timing import Timing
from fanin.deploy.bench.requirements import require
from fanin.deploy.bench.results.case import Case, make_case
from fanin.deploy.bench.results.result import Recorder
from fanin.deploy.bench.suites.zoo_models import ZOO, export_zoo_model
from fanin.export import convert, export
from fanin.ort_ops import takes_unproven_kernels

DECODERS = {
    "decoder": {},
    "decoder-tiny": {
        "hidden": 64,
        "intermediate": 96,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "past": 8,
    },
}
"""Sizes of decoder stacks."""

# Of dense float32 on the CPU: what TF32 and the order of sums make of a deep network.
TOLERANCE = 2e-3


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--networks", default="mlp,minilm,vit-b-16,resnet-50")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--precisions", default="float32,float16")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--time", type=float, help="start no network after this many seconds")
    parser.add_argument("--emulated", action="store_true", help="on the CPU")
    options = parser.parse_args()
    device = Device(emulated=options.emulated)
    timing = Timing(rounds=options.rounds, turn=1e-3, lead_in=1e-3, max_warmup=0.5)
    recorder, start = Recorder(), time.monotonic()
    card, cases, left_out = device.facts(), list[Case](), list[str]()
    for name in options.networks.split(","):
        if options.time is not None and time.monotonic() - start > options.time:
            left_out.append(name)
            continue
        with tempfile.TemporaryDirectory() as folder:
            for case in network_cases(name, Path(folder), device, timing, options):
                cases.append(case)
    title = f"Networks on {card['device']}"
    facts: dict[str, Any] = {"gpu": card, "left_out": left_out, "has_sessions": True}
    result = recorder.result(
        "cuda", title, vars(options) | {"out": ""}, timing, tuple(cases), **facts
    )
    print_report(report_of(result))
    save_result(result, options.out)


@dataclass(frozen=True)
class Network:
    """A network to measure.

    Attributes:
        sample: shape of a sample.
        sparsity: of its weights.
        exact: computes the outputs in float32.
        files: writes its forms for a batch and a precision, dense first.

    """

    sample: tuple[int, ...]
    sparsity: float
    exact: Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]
    files: Callable[[int, str], dict[str, Path]]


def network_cases(
    name: str, folder: Path, device: Device, timing: Timing, options: argparse.Namespace
) -> Iterator[Case]:
    """Measure a network at each precision and batch."""
    make = decoder_network if name in DECODERS else zoo_network
    network = make(name, folder, "cuda:h200" if device.emulated else "cuda")
    for batch in map(int, options.batches.split(",")):
        rng = np.random.default_rng(batch)
        timed, fresh = (
            {"x": rng.standard_normal((batch, *network.sample), np.float32)} for _ in "12"
        )
        problem = Problem.of(timed, fresh, network.exact, tolerance=TOLERANCE)
        shape = network.exact(timed)[0].shape
        for precision in options.precisions.split(","):
            engines = [
                engine(form, file, device, shape, precision)
                for form, file in network.files(batch, precision).items()
            ]
            measured, _ = measure(engines, problem, timing)
            title = f"{name}, batch {batch}, {'TF32' if precision == 'float32' else precision}"
            yield make_case(title, batch, network.sparsity, {"type": precision}, measured, None)


def zoo_network(name: str, folder: Path, place: str) -> Network:
    """Export a network of the zoo, to convert it for every batch and precision."""
    entry = ZOO[name]
    path = export_zoo_model(name, folder, entry.sparsity, entry.ablated, 1)
    dense = path.with_name(f"{path.stem}.dense.onnx")

    def files(batch: int, precision: str) -> dict[str, Path]:
        forms: dict[str, dict[str, Any]] = {
            "dense": {"policy": "dense"},
            "condensed": {"policy": "auto", "device": place, "batch": batch},
        }
        if takes_unproven_kernels():
            forms["all-condensed"] = {"policy": "condensed"}
        paths = {form: folder / f"{form}-{precision}-{batch}.onnx" for form in forms}
        for form, settings in forms.items():
            convert(dense, paths[form], precision=precision, verify=False, **settings)
        return paths

    return Network(entry.sample, entry.sparsity, reference(dense), files)


def decoder_network(name: str, folder: Path, place: str) -> Network:
    """Build a decoder stack; at full size it has 3.5 GB, so every file is exported once."""
    import torch
    from _decoder_stack import StackSizes, decoder_stack

    sizes = StackSizes(**DECODERS[name])
    stack = decoder_stack(sizes)

    def exact(inputs: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        with torch.no_grad():
            return [stack(torch.from_numpy(inputs["x"])).double().numpy()]

    def files(batch: int, precision: str) -> dict[str, Path]:
        path = folder / f"{name}-{precision}-{batch}.onnx"
        report = export(
            stack,
            torch.randn(2, sizes.hidden),
            path,
            device=place,
            batch=batch,
            precision=precision,
            dense_baseline=True,
            verify=False,
        )
        return {"dense": Path(str(report.dense_path)), "condensed": path}

    return Network((sizes.hidden,), sizes.sparsity, exact, files)


def reference(dense: Path) -> Any:
    """Return what computes the outputs, in float32 on the CPU."""
    runtime = require("onnxruntime", "outputs are compared with it")
    opened = runtime.InferenceSession(str(dense), providers=["CPUExecutionProvider"])
    (source,) = opened.get_inputs()

    def right(inputs: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        return [opened.run(None, {source.name: inputs["x"]})[0].astype(np.float64)]

    return right


def engine(form: str, file: Path, device: Device, shape: Sequence[int], kind: str) -> CudaEngine:
    """Run a file in ONNX Runtime."""
    library = form != "dense"
    make = session(device, str(file), shape, library=library, tf32=kind == "float32")
    # TF32 has the mantissa of float16.
    precision = "float16" if kind == "float32" else kind
    return CudaEngine(form, file.stem, device, "stream", make, dtype=kind, precision=precision)


if __name__ == "__main__":
    main()
