"""What a sparsifier costs: a training step with and without it, and one update of ResNet-50.

    python tools/measure_sparsifier.py [--threads 2] [--batch 32] [--rounds 15]

Steps with and without are timed in turns, on the CIFAR ResNet-18 of the paper, outside updates.
Prints the median of the ratios, and their quartiles as a measure of the machine's noise.
"""

import argparse
import statistics
import time

import torch
from torch.nn.functional import cross_entropy

from fanin.trainer import Dense, Sparsifier, SRigL
from fanin.trainer.models import MODELS


def training_step(model: torch.nn.Module, method: object, inputs: torch.Tensor) -> object:
    """Make a closure that runs one step of SGD with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    sparsifier = Sparsifier(model, optimizer, method=method, total_steps=100_000)
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
    """Time of a sparse step by that of a dense one, of neighbouring steps."""
    inputs = torch.randn(batch, 3, 32, 32)
    dense, sparse = (
        training_step(MODELS["resnet18"]().build((3, 32, 32), 10), method, inputs)
        for method in (Dense(), SRigL(0.9))
    )
    dense(), sparse()
    return [sparse() / dense() for _ in range(rounds)]


def update_seconds(rounds: int) -> list[float]:
    """Seconds of an update of all 25.5 million weights of ResNet-50, from given gradients."""
    model = MODELS["resnet50"]().build((3, 224, 224), 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sparsifier = Sparsifier(model, optimizer, method=SRigL(0.9), total_steps=1000, update_every=1)
    found = []
    for _ in range(rounds):
        loss = sum((weight * torch.randn_like(weight)).sum() for weight in model.parameters())
        loss.backward()
        optimizer.step()
        started = time.perf_counter()
        sparsifier.step()
        found.append(time.perf_counter() - started)
        optimizer.zero_grad()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ratios = step_ratios(options.batch, options.rounds)
    low, median, high = statistics.quantiles(ratios, n=4)
    print(
        f"ResNet-18 step, batch {options.batch}, {options.threads} threads: sparse/dense "
        f"{median:.3f} (quartiles {low:.3f}-{high:.3f}, {len(ratios)} pairs)"
    )
    seconds = update_seconds(4)
    print(f"ResNet-50 update: {', '.join(f'{s:.2f}' for s in seconds)} s")


if __name__ == "__main__":
    main()
