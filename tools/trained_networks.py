#!/usr/bin/env python3
"""Train, export and measure the networks of README's table; writes docs/results/trained.

    python tools/trained_networks.py train                 # dense and sparse; an hour of one core
    python tools/trained_networks.py measure --threads 1   # on a machine without other work
    python tools/trained_networks.py measure --threads 16  # all CPUs of a machine

Both commands accept names of networks and then process only these. ``train`` writes
``NETWORK/accuracy.json`` and keeps run folders and ONNX files in ``out/trained``; existing runs are
not trained again. ``measure`` times batch 1 and writes ``NETWORK/threads-N``.
``tools/readme_numbers.py`` reads both.

MiniLM is trained by ``examples/minilm_distill.py``, which lists its requirements.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "trained"
RECIPES = {"mlp": "mlp-fashion-mnist", "resnet18": "resnet18-fashion-mnist"}
ARMS = {"minilm-50": "0.5-srigl", "minilm-90": "0.9-srigl"}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "trained")
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train, export and write the accuracies")
    training.add_argument("--data-dir", help="folder of Fashion-MNIST")
    measuring = commands.add_parser("measure", help="time the ONNX files")
    measuring.add_argument("--threads", type=int, required=True)
    names = [*RECIPES, *ARMS]
    for command in (training, measuring):
        command.add_argument("names", nargs="*", metavar="network", help=", ".join(names))
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"unknown network {', '.join(sorted(unknown))}; choose from {names}")
    for name in options.names or names:
        if options.command == "measure":
            measure(name, options.folder / name, options.threads)
            continue
        if name in RECIPES:
            accuracy = train(RECIPES[name], options.folder / name, options.data_dir)
        else:
            accuracy = distill(ARMS[name], options.folder / name)
        target = RESULTS / name / "accuracy.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(accuracy, indent=2) + "\n")
    return 0


def train(recipe: str, folder: Path, data_dir: str | None) -> dict[str, Any]:
    """Train both recipes and export the sparse run; returns the test accuracies."""
    from fanin.trainer import load_run

    accuracies = {}
    for kind, suffix in (("dense", "dense"), ("sparse", "srigl90")):
        run = folder / kind
        if not (run / "weights.safetensors").is_file():
            resume = ["--resume"] if run.is_dir() else [f"{recipe}-{suffix}"]
            data = ["--data-dir", data_dir] if data_dir else []
            fanin("train", *resume, "--out", str(run), *data)
        epochs = [line for line in load_run(run).metrics if line["event"] == "epoch"]
        accuracies[kind] = epochs[-1]["test_accuracy"]
    fanin("export", str(folder / "sparse"), "-o", str(folder / "model.onnx"), "--dense-baseline")
    return {"measure": "test accuracy", "recipe": f"{recipe}-srigl90", **accuracies}


def distill(arm: str, folder: Path) -> dict[str, Any]:
    """Distill one arm of the MiniLM example and export it; returns the cosines."""
    example = str(ROOT / "examples" / "minilm_distill.py")
    run(sys.executable, example, "--out", str(folder), "--arms", arm, "--export")
    figures = json.loads((folder / "arms" / f"{arm}.json").read_text())
    measure = "cosine of held-out sentence embeddings to the dense model's"
    return {"measure": measure, "dense": 1.0, "sparse": figures["held-out"]}


def measure(name: str, folder: Path, threads: int) -> None:
    """Time a network's sparse and dense files at batch 1."""
    out = RESULTS / name / f"threads-{threads}"
    options = ["--batch", "1", "--threads", str(threads), "--conditions", "none", "--no-breakdown"]
    model = folder / f"{ARMS.get(name, 'model')}.onnx"
    fanin("bench", "model", str(model), *options, "--out", str(out))


def fanin(*arguments: str) -> None:
    """Run a command of fanin; exit if it fails."""
    run(sys.executable, "-m", "fanin", *arguments)


def run(*command: str) -> None:
    """Print a command and run it; exit if it fails."""
    print("+", *command, flush=True)
    if status := subprocess.run(command, check=False).returncode:
        sys.exit(status)


if __name__ == "__main__":
    sys.exit(main())
