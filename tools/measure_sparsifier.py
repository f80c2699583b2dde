"""Measure a sparsifier's cost: a training step with and without it, and an update of ResNet-50.

    python tools/measure_sparsifier.py [--threads 2] [--batch 32] [--rounds 15] [--out FILE.json]

Steps with and without sparsifier alternate, on the paper's CIFAR ResNet-18, between updates. Prints
the median of the ratios, and their quartiles as a measure of the machine's noise. Updates are
measured in wall and CPU seconds: if the wall time is much longer, threads waited for other jobs.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from fanin.deploy.bench.measure.machine import describe_machine
from fanin.deploy.bench.measure.statistics import Spread
from fanin.deploy.bench.results.files import write_json
from fanin.deploy.bench.results.plain import to_plain
from fanin.trainer import Dense, InitializationOptions, Sparsifier, SRigL
from fanin.trainer.models import MODELS

FROM_SCRATCH = InitializationOptions(keep_weights=False)


def training_step(
    model: torch.nn.Module, method: Dense | SRigL, inputs: torch.Tensor
) -> Callable[[], float]:
    """Make a closure that runs one step of SGD with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    sparsifier = Sparsifier(
        model, optimizer, method=method, total_steps=100_000, initialization=FROM_SCRATCH
    )
    labels = torch.arange(len(inputs)) % 10

    def step() -> float:
        started = time.perf_counter()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        sparsifier.step()
        optimizer.zero_grad()
        return time.perf_counter() - started

    return step


def step_ratios(batch: int, rounds: int) -> list[float]:
    """Return the time of each sparse step over that of the dense step after it."""
    inputs = torch.randn(batch, 3, 32, 32)
    dense, sparse = (
        training_step(MODELS["resnet18"]().build((3, 32, 32), 10), method, inputs)
        for method in (Dense(), SRigL(0.9))
    )
    dense(), sparse()
    return [sparse() / dense() for _ in range(rounds)]


def update_seconds(rounds: int) -> list[tuple[float, float]]:
    """Return wall and CPU seconds of updates of ResNet-50's 25.5 million weights."""
    model = MODELS["resnet50"]().build((3, 224, 224), 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sparsifier = Sparsifier(
        model,
        optimizer,
        method=SRigL(0.9),
        total_steps=1000,
        update_every=1,
        initialization=FROM_SCRATCH,
    )
    found = []
    for _ in range(rounds):
        loss = sum((weight * torch.randn_like(weight)).sum() for weight in model.parameters())
        loss.backward()
        optimizer.step()
        started = time.perf_counter(), time.process_time()
        sparsifier.step()
        found.append((time.perf_counter() - started[0], time.process_time() - started[1]))
        optimizer.zero_grad()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ratios = Spread.of(step_ratios(options.batch, options.rounds))
    print(
        f"ResNet-18 step, batch {options.batch}, {options.threads} threads: sparse/dense "
        f"{ratios.median:.3f} (quartiles {ratios.q1:.3f}-{ratios.q3:.3f}, {ratios.count} pairs)"
    )
    updates = update_seconds(options.updates)
    shown = ", ".join(f"{wall:.2f} ({cpu:.2f} CPU)" for wall, cpu in updates)
    print(f"ResNet-50 update, {options.threads} threads: {shown} s")
    if options.out is not None:
        step = {"model": "resnet18", "batch": options.batch, "sparse by dense": to_plain(ratios)}
        update = {"model": "resnet50", "wall and cpu seconds": updates}
        table = {"schema_version": 2, "threads": options.threads, "step": step, "update": update}
        versions = {"torch": str(torch.__version__), "machine": describe_machine()}
        write_json(options.out, table | versions)


if __name__ == "__main__":
    main()
