"""Analyses of one finished run: neurons, fan-ins, thresholds, exploration, operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._base.distributions import weight_budget
from ..data import describe
from ..methods import Dense, SRigL, TopKAST
from ..metrics import Record, checked_content
from ..run_folder import METRICS, Run, layer_choice
from ..update import LayerRule, salience_threshold
from .flops import inference_flops, layer_costs, training_flops
from .result import Analysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_QUARTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


def analyze_run(run: Run) -> list[Analysis]:
    """Return all analyses that the run has data for."""
    found = [operations(run)]
    if run.masks:
        found += [active_neurons(run.masks), fan_ins(run.masks)]
    if isinstance(run.config.method, SRigL):
        found.append(thresholds(run))
    with checked_content(run.path / METRICS):
        if any(record["event"] == "update" for record in run.metrics):
            found.append(exploration(run.metrics))
    return found


def active_neurons(masks: dict[str, Tensor]) -> Analysis:
    """Tabulate the neurons that hold weights, by layer."""
    rows, shares = [], []
    for name, mask in masks.items():
        counts = mask.flatten(1).sum(1)
        active = int((counts > 0).sum())
        shares.append(active / len(counts))
        rows.append({"layer": name, "width": len(counts), "active": active, "share": shares[-1]})

    def draw(axes: Axes) -> None:
        axes.bar(_layer_axis(axes, masks), shares)
        axes.set_ylabel("fraction of active neurons")
        axes.set_ylim(0, 1.05)

    return Analysis("active-neurons", "Active neurons per layer", rows, draw=draw)


def fan_ins(masks: dict[str, Tensor]) -> Analysis:
    """Tabulate the quartiles of weights per active neuron, by layer."""
    rows, held = [], []
    for name, mask in masks.items():
        counts = mask.flatten(1).sum(1)
        counts = counts[counts > 0].double()
        spread = torch.quantile(counts, torch.tensor(_QUARTILES, dtype=torch.float64)).tolist()
        labels = ("min", "25 %", "median", "75 %", "max")
        rows.append(
            {"layer": name, "dense": mask[0].numel()} | dict(zip(labels, spread, strict=True))
        )
        held.append(counts.tolist())

    def draw(axes: Axes) -> None:
        # Single neurons of very many inputs are what unstructured methods have to show.
        axes.boxplot(held, positions=_layer_axis(axes, masks), manage_ticks=False)
        axes.set_ylabel("fan-in of active neurons")

    return Analysis("fan-in", "Fan-in per layer", rows, draw=draw)


def _layer_axis(axes: Axes, layers: Iterable[str]) -> list[int]:
    """Label the x axis with layers; return their positions."""
    names = list(layers)
    positions = list(range(len(names)))
    axes.set_xticks(positions, names, rotation=90, fontsize=7)
    return positions


def thresholds(run: Run) -> Analysis:
    """Tabulate the salient weights that a neuron needs, max(1, int(γ·k)) for fan-in k, by layer.

    Raises:
        ValueError: the run was not trained by SRigL.

    """
    if not isinstance(run.config.method, SRigL):
        raise ValueError(f"{run.path} was not trained by SRigL, the only method with thresholds")
    gamma = run.config.method.gamma_sal
    choice = layer_choice(run.config, run.model)
    before: list[int] = []
    needed: list[int] = []
    for name, mask in run.masks.items():
        shape = tuple(mask.shape)
        budget = weight_budget(shape, choice.densities[name])
        protected = name in choice.protected or gamma == 0
        rule = LayerRule(budget, 0.0, gamma)
        before.append(budget // shape[0])
        needed.append(0 if protected else salience_threshold(shape[0], rule))
    rows = [
        {"layer": name, "fan-in before ablation": fan_in, "threshold": threshold}
        for name, fan_in, threshold in zip(run.masks, before, needed, strict=True)
    ]

    def draw(axes: Axes) -> None:
        positions = _layer_axis(axes, run.masks)
        axes.bar(positions, before, label="fan-in")
        axes.bar(positions, needed, label="threshold")
        axes.set_yscale("log")
        axes.legend()

    note = "Threshold 0: neurons of the layer are never ablated."
    return Analysis("salience-threshold", f"Thresholds at γ = {gamma:g}", rows, note, draw)


def exploration(metrics: list[Record]) -> Analysis:
    """Tabulate the ITOP rate (arXiv 2102.02887) after each update."""
    updates = [record for record in metrics if record["event"] == "update"]
    steps = [record["step"] for record in updates]
    rates = [record["itop_rate"] for record in updates]
    rows = [{"step": step, "ITOP rate": rate} for step, rate in zip(steps, rates, strict=True)]

    def draw(axes: Axes) -> None:
        axes.plot(steps, rates)
        axes.set_xlabel("step")
        axes.set_ylabel("fraction of weights ever active")

    return Analysis("itop", "Exploration of weights", rows, draw=draw)


def operations(run: Run) -> Analysis:
    """Tabulate operations of inference and training, sparse and dense, by the paper's rules."""
    config = run.config
    work = layer_costs(run.model, describe(config.data)[0])
    densities = {}
    if not isinstance(config.method, Dense):
        densities = layer_choice(config, run.model).densities
    with checked_content(run.path / METRICS):
        steps = max(int(record["step"]) for record in run.metrics if record["event"] == "epoch")
    samples = steps * config.training.batch_size
    dense, sparse = inference_flops(work, {}), inference_flops(work, densities)
    trained = None
    if isinstance(config.method, TopKAST):
        backward = {name: config.method.trained_density(d) for name, d in densities.items()}
        trained = inference_flops(work, backward)
    forwards = {"dense": dense, config.method.name: sparse}
    rows = [
        {
            "method": method,
            "inference per sample": forward,
            "training": training_flops(
                method,
                forward,
                dense,
                samples,
                update_every=config.sparsifier.schedule.update_every,
                trained=trained,
                end_fraction=config.sparsifier.schedule.end_fraction,
            ),
        }
        for method, forward in forwards.items()
    ]

    def draw(axes: Axes) -> None:
        axes.bar(list(forwards), list(forwards.values()))
        axes.set_ylabel("operations per sample")

    note = f"{samples} training samples; target densities, without ablation."
    return Analysis("operations", "Floating-point operations", rows, note, draw)
