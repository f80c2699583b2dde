"""The whole line on real data: train dense and sparse, export, verify, measure.

Fashion-MNIST where it is at hand, else the digits that scikit-learn ships. Everything lands in
``out/demo``: both run folders, the ONNX files and the report.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fanin.deploy.bench import BenchModelSpec, bench_model
from fanin.export import export
from fanin.trainer import available_datasets, load_recipe, train

BATCHES = (1, 64)
THREADS = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    parser.add_argument("--data", choices=["fashion-mnist", "digits"], default=None)
    options = parser.parse_args()
    console = Console()
    started = time.monotonic()

    data = options.data or ("fashion-mnist" if "fashion-mnist" in available_datasets() else "digits")
    console.rule(f"1. Training on {data}: dense, then SRigL at 90 %")
    shutil.rmtree(options.out, ignore_errors=True)
    runs = {
        kind: train(load_recipe(f"mlp-{data}-{kind}"), options.out / kind)
        for kind in ("dense", "srigl90")
    }

    console.rule("2. Export to ONNX with CondensedGemm")
    model = options.out / "model.onnx"
    report = export(runs["srigl90"].folder, model, dense_baseline=True)
    console.print(report.to_rich_table())

    console.rule("3. Latency in ONNX Runtime, condensed against dense in the same run")
    result = bench_model(BenchModelSpec(model=model, batches=BATCHES, threads=THREADS))
    result.save(options.out / "bench")
    console.print(result.to_rich_table())

    console.rule("Summary")
    console.print(summary(data, runs, report, result))
    console.print(f"Report: {options.out / 'bench' / 'results.md'} (figure: results.png)")
    console.print(f"Took {time.monotonic() - started:.0f} s.")
