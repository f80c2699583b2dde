#!/usr/bin/env python3
"""Time all layouts and write the limits of the dispatch table, kernels/dispatch_limits.inc.

    python tools/tune_dispatch.py measure            all parts, a few minutes
    python tools/tune_dispatch.py measure density    one part only
    python tools/tune_dispatch.py write              limits from the latest times of all parts
    pip install -e .                                 builds the table

Windows are compared with panels for 1 to 8 samples over shapes and sparsities, on one thread, by
the loop of ``fanin bench kernels``: all kernels of a case interleaved, their outputs checked.
tools/_dispatch_limits.py derives limits from the times. Layouts that this CPU does not use keep
their limits. Panels that differ only in their loops are compared as well: broadcasts_from_memory()
of core/cpu_features.cc chooses between them. Measure on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
from _dispatch_limits import (
    BATCHES,
    FEW,
    LARGE,
    MANY,
    ROWS,
    Limits,
    Times,
    compare_panels,
    decide,
    read_limits,
    worst_small_batches,
)

from fanin.deploy.bench.engines.kernels import KernelEngine, pack
from fanin.deploy.bench.measure.layer_problem import layer_problem
from fanin.deploy.bench.measure.loop import measure
from fanin.deploy.bench.measure.machine import describe_machine
from fanin.deploy.bench.measure.timing import Timing
from fanin.deploy.bench.suites.random_layer import random_sparse_layer
from fanin.ort_ops import _native
from fanin.ort_ops.format.condensed import VALUE_TYPES, CondensedWeight

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "ort_ops" / "csrc" / "kernels" / "dispatch_limits.inc"
PARTS = (*VALUE_TYPES, "density", "panels")

SHAPES = ((3072, 768), (768, 3072), (1024, 1024))
SPARSE_SHAPES = ((8192, 1024), (3072, 768), (1024, 4096))
SPARSITIES = (0.8, 0.9, 0.95, 0.99)
WINDOW_DENSITIES = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
PANEL_DENSITIES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)

# Layers of a network run in turn, so each finds its weights where the others left them in the
# caches. A single layer run repeatedly would flatter layouts that fill more than L2.
LAYERS_IN_TURN = 3
TIMING = Timing(rounds=15, turn=2e-4, lead_in=1e-4, max_warmup=0.02)


class LayersInTurn(KernelEngine):
    """Layers of one shape in turn; the output is that of the first, which runs last."""

    def __init__(self, weights: Sequence[CondensedWeight], batch: int, layout: str, kernel: str):
        super().__init__(weights[0], batch, kernel)
        self.name = layout
        self._others = [pack(weight, batch, kernel) for weight in weights[1:]]
        self._spare = np.empty((batch, weights[0].out_features), np.float32)

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> None:
        """See Engine."""
        super().prepare(inputs)
        self._inputs = inputs["x"]

    def run(self) -> None:
        """See Engine."""
        for other in self._others:
            other.run(self._inputs, out=self._spare)
        super().run()


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "tune", help="for the times"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="time kernels and save the times")
    measuring.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    writing = commands.add_parser("write", help="write the limits derived from the times")
    writing.add_argument("--dry-run", action="store_true", help="print them only")
    options = parser.parse_args()
    if options.command == "write":
        return write(options.folder, dry_run=options.dry_run)
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for part in options.parts or PARTS:
        started = time.monotonic()
        measuring = {"density": measure_density, "panels": measure_panels}.get(part)
        times = measuring() if measuring else measure_batches(part)
        content = {"cpu": describe_machine()["cpu"], "times": sorted(times.items())}
        (options.folder / f"{part}.json").write_text(json.dumps(content, indent=0))
        print(f"{part}: {len(times)} times in {time.monotonic() - started:.0f} s", flush=True)
    return 0


def kernels_of(values: str) -> dict[str, str]:
    """Return kernels for a type of weights by layout: the type's own, else the widening one."""
    known = {limits.layout for limits in read_limits(TARGET)} | {ROWS}
    rows = [row for row in _native.kernel_table() if row.supported and row.suits_cpu]
    rows.sort(key=lambda row: row.weights == values)  # the type's own last, so that it wins
    names = {
        row.name.partition("gemm-")[2]: row.name
        for row in rows
        if row.weights in ("float32", values) and row.compute == "float32"
    }
    return {layout: name for layout, name in names.items() if layout in known}


def measure_batches(values: str) -> Times:
    """Time every layout for 1 to 8 samples."""
    names = kernels_of(values)
    times: Times = {}
    for (features, outputs), sparsity in itertools.product(SHAPES, SPARSITIES):
        fan_in = round((1 - sparsity) * features)
        weights = [
            layer(features, outputs, fan_in, seed).astype(values) for seed in range(LAYERS_IN_TURN)
        ]
        times |= times_of(weights, f"{features}x{outputs} {sparsity} {values}", names, BATCHES)
    return times


def measure_density() -> Times:
    """Time windows against panels and rows for few samples, and panels against rows for 8."""
    names = kernels_of("float32")
    times: Times = {}
    for density, (features, outputs) in itertools.product(WINDOW_DENSITIES, SPARSE_SHAPES):
        weight = layer(features, outputs, max(1, round(density * features)))
        times |= times_of([weight], f"window {density} {features}x{outputs}", names, FEW)
    names = {layout: name for layout, name in names.items() if "-window" not in name}
    for density in PANEL_DENSITIES:
        times |= times_of([layer(round(20 / density), 2000, 20)], f"panel {density}", names, MANY)
    return times


def measure_panels() -> Times:
    """Time the panels of this CPU's widest instruction set, with those that it does not use."""
    rows = [row for row in _native.kernel_table() if row.supported and "-panel" in row.name]
    names = {row.name.partition("gemm-")[2]: row.name for row in rows if row.isa == rows[0].isa}
    times: Times = {}
    for (features, outputs), sparsity in itertools.product(SHAPES, SPARSITIES):
        fan_in = round((1 - sparsity) * features)
        weights = [layer(features, outputs, fan_in, seed) for seed in range(LAYERS_IN_TURN)]
        times |= times_of(weights, f"panels {features}x{outputs} {sparsity}", names, LARGE)
    return times


def layer(features: int, outputs: int, fan_in: int, seed: int = 0) -> CondensedWeight:
    """Make a layer of random columns."""
    generator = np.random.default_rng([fan_in, seed])
    return random_sparse_layer("random", generator, features, outputs, outputs, fan_in)


def times_of(
    weights: Sequence[CondensedWeight], case: str, names: Mapping[str, str], batches: Sequence[int]
) -> Times:
    """Return seconds by layout and batch: the median over rounds of the median of a turn's runs.

    Kernels also run outside their limits in the table: each is correct for every batch.
    """
    times: Times = {}
    for batch in batches:
        engines = [LayersInTurn(weights, batch, *pair) for pair in names.items()]
        measured, _ = measure(engines, layer_problem(weights[0], batch, seed=0), TIMING)
        for one in measured:
            if one.excluded:
                raise SystemExit(f"{names[one.name]}, {case}, batch {batch}: {one.excluded}")
            times[one.name, case, batch] = median(one.rounds_seconds)
    return times


def load_times(folder: Path) -> tuple[str, Times]:
    """Read all parts; returns the CPU on which they were measured, and the times."""
    times: Times = {}
    cpus = set()
    for part in PARTS:
        try:
            content = json.loads((folder / f"{part}.json").read_text())
        except FileNotFoundError:
            raise SystemExit(
                f"{folder / part}.json is missing; run: tools/tune_dispatch.py measure {part}"
            ) from None
        cpus.add(content["cpu"])
        times |= {tuple(key): seconds for key, seconds in content["times"]}
    if len(cpus) > 1:
        raise SystemExit(f"parts were measured on different CPUs ({cpus}); measure them again")
    return cpus.pop(), times


def write(folder: Path, *, dry_run: bool) -> int:
    """Write the limits; prints them with their reasons and the times of 2 to 7 samples."""
    cpu, times = load_times(folder)
    panels = {key: seconds for key, seconds in times.items() if key[1].startswith("panels ")}
    times = {key: seconds for key, seconds in times.items() if key not in panels}
    present = read_limits(TARGET)
    isas = _native.supported_isas()
    decided, reasons = decide(present, times, isas)
    for reason in [*reasons, *compare_panels(panels, list(kernels_of("float32")))]:
        print(reason)
    for isa in isas[1:]:
        print(f"{isa}: time of b samples over the lesser of b x batch 1 and batch 8")
        for line in worst_small_batches(decided, times, isas[: isas.index(isa) + 1]):
            print(f"  {line}")
    measured = {layout for layout, _, _ in times}
    text = render(decided, measured, cpu)
    print(text)
    if not dry_run:
        TARGET.write_text(text)
        print(f"wrote {TARGET.relative_to(ROOT)}; build again to use it")
    return 0


def render(decided: list[Limits], measured: set[str], cpu: str) -> str:
    """Write the table as C++ initializers."""
    lines = [
        "// Written by tools/tune_dispatch.py (measure, then write): run that again",
        f"// instead of editing. Measured on {cpu}, {datetime.now(UTC):%Y-%m-%d}.",
        "// layout-ISA, batches with float32 weights, batches with 16-bit weights, least density",
    ]
    for limits in decided:
        source = "measured" if limits.layout in measured else "carried over"
        lines.append(f"{limits.initializer()},  // {source}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
