"""Analyses of one finished run: neurons, fan-ins, thresholds, exploration, operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._base.distributions import weight_budget
from ..._base.figure_style import BLUE, GRID
from ..data import describe
from ..layer_choice import choose_layers
from ..methods import AST, Dense, SRigL, TopKAST
from ..metrics import Record, checked_content
from ..run_folder import METRICS, Run, layer_choice
from ..update import LayerRule, salience_threshold
from .flops import inference_flops, layer_costs, training_flops
from .result import Analysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import nn

    from ..recipe import TrainConfig
    from .flops import LayerCost

_LONG_NAME = 24
"""Signs of a layer's name that a figure has room for."""
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
        axes.barh(_layer_axis(axes, masks), shares)
        axes.set_xlabel("fraction of active neurons")
        axes.set_xlim(0, 1.05)

    title = "Active neurons per layer"
    return Analysis("active-neurons", title, rows, draw=draw, places=len(rows))


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
        held.append(spread)

    def draw(axes: Axes) -> None:
        positions = _layer_axis(axes, masks)
        least, low, median, high, most = map(list, zip(*held, strict=True))
        axes.hlines(positions, least, most, BLUE, linewidth=1)
        axes.hlines(positions, low, high, BLUE, linewidth=7, alpha=0.35)
        axes.plot(median, positions, "o", color=BLUE, markersize=4)
        for place, (smallest, _, middle, _, largest) in zip(positions, held, strict=True):
            ends = f"{smallest:g}–{largest:g}, median " if smallest < largest else ""
            axes.annotate(
                f"{ends}{middle:g}",
                (largest, place),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
            )
        axes.margins(x=0.35)
        axes.set_xlim(left=0)
        axes.set_xlabel("fan-in of active neurons")

    note = "The figure shows medians, with bands of the quartiles and lines of the range."
    return Analysis("fan-in", "Fan-in per layer", rows, note, draw, len(rows))


def _layer_axis(axes: Axes, layers: Iterable[str]) -> list[int]:
    """Label the y axis with layers, the first one on top; return their positions."""
    names = [_shortened(name) for name in layers]
    positions = list(range(len(names)))
    axes.set_yticks(positions, names, fontsize="small")
    axes.set_ylim(len(names) - 0.5, -0.5)
    return positions


def _shortened(name: str) -> str:
    """Leave the end of a long name, which tells layers apart."""
    name = name.removesuffix(".weight")
    return name if len(name) <= _LONG_NAME else "…" + name[1 - _LONG_NAME :]


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
        axes.barh(positions, before, color=GRID)
        axes.barh(positions, needed, height=0.4, color=BLUE)
        axes.set_xscale("log")
        axes.set_xlabel("fan-in (wide), threshold (narrow)")

    note = "Threshold 0: neurons of the layer are never ablated."
    title = f"Thresholds at γ = {gamma:g}"
    return Analysis("salience-threshold", title, rows, note, draw, len(rows))


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
    if isinstance(config.method, AST):
        trained = _mean_of_sub_nets(config, config.method, run.model, work)
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


def _mean_of_sub_nets(
    config: TrainConfig, method: AST, model: nn.Module, work: Mapping[str, LayerCost]
) -> float:
    """Average the operations of a forward pass over the sub-nets."""
    found = []
    for sparsity in (*method.others, method.sparsity):
        options = config.sparsifier.layers
        choice = choose_layers(model, None, sparsity, method.mask_structure(), options)
        found.append(inference_flops(work, choice.densities))
    return sum(found) / len(found)
