"""The whole pipeline on real data: train dense and sparse, export, verify, benchmark.

Uses Fashion-MNIST if its files are installed, otherwise the digits of scikit-learn. Writes both run
folders, the ONNX files and the report to ``out/demo``.
"""

import argparse
import shutil
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fanin.deploy.bench import (
    BenchModelSpec,
    Result,
    bench_model,
    print_report,
    report_of,
    save_result,
)
from fanin.export import ExportReport, export
from fanin.trainer import TrainResult, train
from fanin.trainer.data import fashion_mnist_folder


def summary(
    data: str, dense: TrainResult, sparse: TrainResult, report: ExportReport, result: Result
) -> Table:
    table = Table(title=f"fanin demo on {data}", show_header=False)
    table.add_row("test accuracy, dense", f"{dense.test_accuracy:.2%}")
    difference = (sparse.test_accuracy - dense.test_accuracy) * 100
    table.add_row(
        "test accuracy, SRigL 90 %",
        f"{sparse.test_accuracy:.2%} ({difference:+.2f} points, same number of epochs)",
    )
    for layer in sparse.summary:
        if layer.sparse:
            table.add_row(
                f"{layer.name}",
                f"{1 - layer.density:.2%} sparse, {layer.active} of {layer.shape[0]} active, "
                f"fan-in {layer.fan_in} of {layer.shape[1]}",
            )
    table.add_row("parity with torch", f"{report.parity_error:.1e} relative to the largest output")
    table.add_row("file size, condensed / dense", f"{report.size_ratio:.3f}")
    for case in result.cases:
        for comparison in case.comparisons:
            ratio = comparison.run_ratio
            table.add_row(
                f"latency at batch {case.batch}, dense / condensed",
                f"{ratio.median:.2f}× (rounds: {ratio.min:.2f}–{ratio.max:.2f}), "
                f"{result.timing.threads} thread",
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    parser.add_argument("--data", choices=["fashion-mnist", "digits"])
    options = parser.parse_args()
    console = Console()
    started = time.monotonic()

    data = options.data or ("fashion-mnist" if fashion_mnist_folder() else "digits")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("dense", "srigl90"):  # delete only run folders of an earlier demo
        if (options.out / name / "config.toml").is_file():
            shutil.rmtree(options.out / name)

    console.rule(f"Training on {data}: dense, then SRigL at 90 %")
    dense = train(f"mlp-{data}-dense", options.out / "dense")
    sparse = train(f"mlp-{data}-srigl90", options.out / "srigl90")

    console.rule("Export to ONNX with CondensedGemm")
    model = options.out / "model.onnx"
    report = export(sparse.out, None, model, dense_baseline=True)
    console.print(report.to_rich_table())

    console.rule("Latency in ONNX Runtime, condensed against dense in the same rounds")
    result = bench_model(BenchModelSpec(model=model, batches=(1, 64)))
    save_result(result, options.out / "bench")
    print_report(report_of(result), console)

    console.print(summary(data, dense, sparse, report, result))
    console.print(f"Report: {options.out / 'bench' / 'results.md'}, figure: results.svg beside it")
    console.print(f"Took {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
