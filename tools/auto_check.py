#!/usr/bin/env python3
"""Check that no export under --policy auto is slower than its dense export, over a zoo of models.

    python tools/auto_check.py build                     all files, some minutes
    python tools/auto_check.py measure 1                 run 1, on a machine without other work
    python tools/auto_check.py measure 1 --seconds 100   a part of it; call again for the rest
    python tools/auto_check.py report                    the table of all runs

Each model is timed in fresh processes, one thread, both files in turn in every round. A model
passes a run when the median of the rounds' ratios (dense over auto) is at least 0.95 and the
bootstrap interval of that median reaches 1. It passes when it does so in most runs. Processes are
resampled as well as rounds: two copies of one file differ by up to 2 % within a process, by where
their weights lie.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results" / "auto"
SCHEMA_VERSION = 1

LEAST_RATIO, REACHES = 0.95, 1.0
RESAMPLES = 10_000
PROCESSES = 3


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "zoo", help="of the models")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="export the models")
    building.add_argument("names", nargs="*", metavar="model")
    measuring = commands.add_parser("measure", help="time what a run still lacks")
    measuring.add_argument("run", type=int)
    measuring.add_argument("names", nargs="*", metavar="model")
    measuring.add_argument(
        "--seconds", type=float, default=3600, help="after which no model begins"
    )
    timing = commands.add_parser("time", help="time one model and print JSON; for measure")
    timing.add_argument("name")
    commands.add_parser("report", help="write the table of all runs")
    options = parser.parse_args()
    match options.command:
        case "build":
            return build(options.folder, options.names)
        case "measure":
            return run(options.folder, options.run, options.names, options.seconds)
        case "time":
            return time_model(options.folder, options.name)
    return report()


def build(folder: Path, names: Sequence[str]) -> int:
    """Export the models, and note what became of their layers."""
    from _auto_models import ZOO

    folder.mkdir(parents=True, exist_ok=True)
    for entry in ZOO:
        if names and entry.name not in names:
            continue
        start = time.perf_counter()
        made = entry.build(folder)
        facts = {
            "about": entry.about,
            "batch": entry.batch,
            "forms": Counter(layer.decision for layer in made.layers),
            "size_ratio": made.size_ratio,
            "cost_model": made.cost_model,
        }
        (folder / f"{entry.name}.json").write_text(json.dumps(facts))
        seconds = time.perf_counter() - start
        print(f"{entry.name}: {seconds:.0f} s, {dict(facts['forms'])}", flush=True)
    return 0


def run(folder: Path, number: int, names: Sequence[str], seconds: float) -> int:
    """Time every model that the run lacks, each in a fresh process, and save after each."""
    from fanin.deploy.bench.measure.machine import describe_machine

    path = RESULTS / f"run{number}.json"
    results = json.loads(path.read_text()) if path.is_file() else {}
    results = results or {
        "schema_version": SCHEMA_VERSION,
        "command": f"python tools/auto_check.py measure {number}",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "models": {},
    }
    begin = time.perf_counter()
    for facts in sorted(folder.glob("*.json")):
        name = facts.stem
        if name in results["models"] or (names and name not in names):
            continue
        if time.perf_counter() - begin > seconds:
            print(f"{name} and what follows is left for the next call")
            return 1
        command = [sys.executable, __file__, "--folder", str(folder), "time", name]
        parts = []
        for _ in range(PROCESSES):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{name} could not be timed:\n{done.stderr}")
            parts.append(json.loads(done.stdout))
        timed = pooled(parts)
        results["models"][name] = json.loads(facts.read_text()) | timed
        save(path, results)
        print(f"{name}: {summary(timed)}", flush=True)
    return 0


def time_model(folder: Path, name: str) -> int:
    """Time the two files of a model in turn, outputs checked before and after."""
    from fanin.deploy.bench.engines.ort import OrtEngine
    from fanin.deploy.bench.measure.loop import measure
    from fanin.deploy.bench.measure.problem import Problem
    from fanin.deploy.bench.measure.timing import Timing

    facts = json.loads((folder / f"{name}.json").read_text())
    dense, auto = folder / f"{name}.dense.onnx", folder / f"{name}.onnx"
    timing = Timing(rounds=21, min_repeats=1, max_warmup=1.0)
    samples = [sample(dense, facts["batch"], seed) for seed in (0, 1)]
    engines = [
        OrtEngine("dense", dense.name, dense, 1, library=False),
        OrtEngine("auto", auto.name, auto, 1, library=True),
    ]
    measured, _ = measure(engines, Problem(*samples, tolerance=1e-4), timing)
    failed = [f"{m.name}: {m.excluded}" for m in measured if m.excluded]
    if failed:
        raise SystemExit("; ".join(failed))
    slow, fast = (m.rounds_seconds for m in measured)
    result = {
        "dense_seconds": median(slow),
        "auto_seconds": median(fast),
        "ratios": [round(a / b, 4) for a, b in zip(slow, fast, strict=True)],
        "timing": asdict(timing),
    }
    print(json.dumps(result))
    return 0


def pooled(parts: Sequence[dict]) -> dict:
    """Put what the processes measured of one model together."""
    ratios = [part["ratios"] for part in parts]
    ratio = float(np.median(ratios))
    low, high = bootstrap_interval(ratios)
    return {
        "dense_seconds": median(part["dense_seconds"] for part in parts),
        "auto_seconds": median(part["auto_seconds"] for part in parts),
        "processes": len(parts),
        "ratio": ratio,
        "interval": [low, high],
        "ratios": ratios,
        "timing": parts[0]["timing"],
        "passed": ratio >= LEAST_RATIO and high >= REACHES,
    }


def sample(dense: Path, batch: int, seed: int):
    """Make inputs, and compute the dense model on them."""
    import onnxruntime

    from fanin.deploy.bench.measure.problem import Sample

    session = onnxruntime.InferenceSession(dense, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(seed)
    inputs = {}
    for port in session.get_inputs():
        sizes = {"batch": batch, "tokens": 32}
        shape = [sizes.get(size, size) for size in port.shape]
        if port.type == "tensor(int64)":
            inputs[port.name] = rng.integers(0, 1000, shape)
        else:
            inputs[port.name] = rng.standard_normal(shape, np.float32)
    return Sample(inputs, [output.astype(np.float64) for output in session.run(None, inputs)])


def bootstrap_interval(ratios: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Give the 95 % percentile interval of the median; ratios are [processes][rounds]."""
    rng = np.random.default_rng(0)
    table = np.asarray(ratios)
    processes, rounds = table.shape
    chosen = rng.integers(processes, size=(RESAMPLES, processes, 1))
    drawn = table[chosen, rng.integers(rounds, size=(RESAMPLES, processes, rounds))]
    low, high = np.quantile(np.median(drawn, axis=(1, 2)), (0.025, 0.975))
    return float(low), float(high)


def report() -> int:
    """Write the table of all runs; returns 1 when a model fails in half of them or more."""
    runs = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("run*.json"))]
    if not runs:
        raise SystemExit("there is no run; measure some first")
    machine = runs[0]["machine"]
    lines = [
        "# Exports under --policy auto against their dense exports",
        "",
        f"{machine['cpu']}, {machine['kernels']['isa_in_force']}, one thread, "
        f"onnxruntime {machine['onnxruntime']['onnxruntime']}; "
        f"{len(runs)} runs, each model in fresh processes, as many in a run as the table says. "
        "Cells: median of the ratios (dense time over auto time) of 21 rounds in each process, its "
        "95 % bootstrap interval. Made by:",
        "",
        "    python tools/auto_check.py build",
        *[f"    {run['command']}" for run in runs],
        "    python tools/auto_check.py report",
        "",
        "| model | batch | forms of its layers | dense ms | processes | "
        + " | ".join(f"run {number}" for number in range(1, len(runs) + 1))
        + " | passes |",
        "|---|---|---|---|---|" + "---|" * (len(runs) + 1),
    ]
    failures = 0
    for name in sorted(set.union(*(set(run["models"]) for run in runs))):
        timed = [run["models"][name] for run in runs if name in run["models"]]
        passed = sum(model["passed"] for model in timed)
        failures += 2 * passed <= len(runs)
        forms = ", ".join(f"{count} {form}" for form, count in timed[0]["forms"].items())
        cells = [summary(run["models"][name]) if name in run["models"] else "–" for run in runs]
        lines.append(
            f"| {name}: {timed[0]['about']} | {timed[0]['batch']} | {forms} | "
            f"{1e3 * median(model['dense_seconds'] for model in timed):.3g} | "
            f"{timed[0].get('processes', 1)} | "
            f"{' | '.join(cells)} | {passed} of {len(runs)} |"
        )
    text = "\n".join(lines) + "\n"
    (RESULTS / "auto.md").write_text(text)
    print(text)
    return 1 if failures else 0


def summary(timed: dict) -> str:
    """Lay out the ratio of a model."""
    low, high = timed["interval"]
    return f"{timed['ratio']:.2f} ({low:.2f}–{high:.2f})"


def save(path: Path, results: dict) -> None:
    """Write a run; rounds stay on one line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(results, indent=None, separators=(",", ":")) + "\n")
    scratch.replace(path)


if __name__ == "__main__":
    raise SystemExit(main())
