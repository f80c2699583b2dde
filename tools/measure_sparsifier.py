"""Measure a sparsifier's cost: training steps with and without it, and updates of a whole model.

    python tools/measure_sparsifier.py [--threads 2] [--batch 32] [--rounds 15] [--out FILE.json]
    python tools/measure_sparsifier.py --device cuda --as-recipes --batch 512 --steps 20 --rounds 60

The steps are those of ``fanin train``, on the paper's CIFAR ResNet-18 and random images. Rounds
with and without sparsifier alternate, between updates; prints images per second, and the median of
the ratios with their quartiles as a measure of the machine's noise. ``--as-recipes`` takes the
switches of the ImageNet recipes: bfloat16, channels last, torch.compile and, on CUDA, TF32 and
cuDNN's search. Updates are measured in wall and CPU seconds: if the wall time is much longer,
threads waited for other jobs.

After ``--limit`` seconds no round begins; what was measured until then is written. ``--dry-run``
takes the same path on a CPU with a small model.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fanin.deploy.bench.measure.machine import describe_machine
from fanin.deploy.bench.measure.statistics import Spread
from fanin.deploy.bench.results.files import write_json
from fanin.deploy.bench.results.plain import to_plain
from fanin.trainer import Dense, InitializationOptions, Sparsifier, SRigL
from fanin.trainer.backends import backend_switches, with_channels_last
from fanin.trainer.data import Augmentation
from fanin.trainer.models import MODELS
from fanin.trainer.optimization import SGD, ConstantLR
from fanin.trainer.processes import Processes
from fanin.trainer.recipe import TrainingConfig
from fanin.trainer.training_step import TrainingStep

FROM_SCRATCH = InitializationOptions(keep_weights=False)
SHAPE, CLASSES, STEPS = (3, 32, 32), 10, 100_000


def recipe_settings(device: torch.device) -> TrainingConfig:
    """Return the switches of the ImageNet recipes, as far as the device has them."""
    cuda = device.type == "cuda"
    return TrainingConfig(
        epochs=1,
        precision="bfloat16",
        channels_last=True,
        compile=True,
        tf32=cuda,
        cudnn_benchmark=cuda,
    )


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def training_round(
    options: argparse.Namespace, config: TrainingConfig, method: Dense | SRigL
) -> Callable[[], float]:
    """Make a closure that runs ``--steps`` training steps and returns the seconds of one."""
    device, batch = torch.device(options.device), options.batch
    model = MODELS["resnet18"](width=options.width).build(SHAPE, CLASSES).to(device)
    if config.channels_last:
        model = with_channels_last(model, SHAPE)
    optimizer = SGD(lr=0.01, weight_decay=5e-4).build(model.parameters())
    scheduler = ConstantLR().build(optimizer, STEPS, STEPS)
    step = TrainingStep(
        model, optimizer, scheduler, config, Augmentation(), CLASSES, Processes(None, 1)
    )
    step.sparsifier = Sparsifier(
        model,
        optimizer,
        method=method,
        total_steps=STEPS,
        update_every=STEPS // 2,
        initialization=FROM_SCRATCH,
    )
    inputs = torch.randn(batch, *SHAPE, device=device)
    labels = torch.arange(batch, device=device) % CLASSES

    def run() -> float:
        synchronize(device)
        started = time.perf_counter()
        for _ in range(options.steps):
            step([(inputs, labels)], batch, 0)
        synchronize(device)
        return (time.perf_counter() - started) / options.steps

    return run


def step_seconds(options: argparse.Namespace, config: TrainingConfig) -> list[tuple[float, float]]:
    """Return the seconds of a dense and of a sparse step in each round, in alternating order."""
    dense, sparse = (training_round(options, config, method) for method in (Dense(), SRigL(0.9)))
    dense(), sparse()  # compiles, and lets cuDNN search
    found: list[tuple[float, float]] = []
    deadline = time.monotonic() + options.limit
    while len(found) < options.rounds and (not found or time.monotonic() < deadline):
        first, second = (dense, sparse) if len(found) % 2 else (sparse, dense)
        pair = first(), second()
        found.append(pair if first is dense else (pair[1], pair[0]))
    return found


def update_seconds(options: argparse.Namespace) -> list[tuple[float, float]]:
    """Return wall and CPU seconds of updates of the model named by ``--update-model``."""
    name, device = options.update_model, torch.device(options.device)
    model = (
        MODELS["resnet50"]().build((3, 224, 224), 1000)
        if name == "resnet50"
        else MODELS["resnet18"](width=options.width).build(SHAPE, CLASSES)
    ).to(device)
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
    for _ in range(options.updates):
        loss = sum((weight * torch.randn_like(weight)).sum() for weight in model.parameters())
        loss.backward()
        optimizer.step()
        synchronize(device)
        started = time.perf_counter(), time.process_time()
        sparsifier.step()
        synchronize(device)
        found.append((time.perf_counter() - started[0], time.process_time() - started[1]))
        optimizer.zero_grad()
    return found


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--as-recipes", action="store_true", help="with the settings of the ImageNet recipes"
    )
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--steps", type=int, default=1, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--update-model", choices=("resnet18", "resnet50"), default="resnet50")
    parser.add_argument("--limit", type=float, default=360, help="seconds of all rounds")
    parser.add_argument("--dry-run", action="store_true", help="the same code in small, on a CPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        options.width, options.batch, options.rounds, options.updates = 8, 8, 3, 2
        options.steps, options.update_model, options.device = 2, "resnet18", "cpu"
    return options


def main() -> None:
    """Measure and print."""
    options = arguments()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    config = recipe_settings(device) if options.as_recipes else TrainingConfig(epochs=1)
    with backend_switches(config, device):
        seconds = step_seconds(options, config)
        updates = update_seconds(options)
    where = f"{options.threads} threads" if device.type == "cpu" else torch.cuda.get_device_name()
    dense, sparse = (Spread.of([options.batch / pair[i] for pair in seconds]) for i in (0, 1))
    ratios = Spread.of([pair[1] / pair[0] for pair in seconds])
    print(
        f"ResNet-18 of width {options.width}, batch {options.batch}, {where}: "
        f"{dense.median:.1f} images/s dense, {sparse.median:.1f} with SRigL at 90 %; step "
        f"{ratios.median:.3f} of dense (quartiles {ratios.q1:.3f}-{ratios.q3:.3f}, "
        f"{ratios.count} pairs)"
    )
    shown = ", ".join(f"{wall:.3f} ({cpu:.3f} CPU)" for wall, cpu in updates)
    print(f"update of {options.update_model}, {where}: {shown} s")
    if options.out is not None:
        step = {
            "model": "resnet18",
            "width": options.width,
            "batch": options.batch,
            "steps of a round": options.steps,
            "settings": "ImageNet recipes" if options.as_recipes else "defaults",
            "dense images/s": to_plain(dense),
            "sparse images/s": to_plain(sparse),
            "sparse by dense": to_plain(ratios),
        }
        update = {"model": options.update_model, "wall and cpu seconds": updates}
        table = {"schema_version": 3, "threads": options.threads, "step": step, "update": update}
        versions = {"torch": str(torch.__version__), "machine": describe_machine()}
        name = {"device": where}
        write_json(options.out, table | versions | name)


if __name__ == "__main__":
    main()
