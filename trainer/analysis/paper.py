"""Analyses of the paper that need no training: variance, operations, published tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..._base.distributions import layer_densities
from ..layers import prunable_weights
from ..models.vision import ResNet50
from . import published
from .flops import (
    RESNET50_IMAGENET_IMAGES,
    LayerCost,
    inference_flops,
    layer_costs,
    training_flops,
)
from .result import Analysis
from .variance import TOPOLOGIES, output_norm_variance, simulate_output_norm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPARSITIES = (0.0, 50.0, 75.0, 80.0, 90.0, 93.75, 95.0, 99.0)
_EPOCHS = 100  # The paper's table counts these, although its trainings have 102.3.
_N_M = {50.0: "2:4", 75.0: "1:4", 93.75: "1:16"}


def analyze_paper(draws: int = 20_000) -> list[Analysis]:
    """Return all analyses of the paper.

    Args:
        draws: draws per point of the variance simulation.

    """
    return [variance(draws=draws), resnet50_operations(), dynamic_sparse_training(), structured()]


def variance(n: int = 32, draws: int = 20_000) -> Analysis:
    """Tabulate the output-norm variance of an n×n layer by fan-in: formula and simulation."""
    rows = []
    for k in (k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k <= n):
        for topology in TOPOLOGIES:
            found = simulate_output_norm(n, k, topology, draws=draws, seed=k)
            rows.append(
                {
                    "fan-in": k,
                    "topology": topology,
                    "formula": output_norm_variance(n, k, topology),
                    "simulated": found.variance,
                    "standard error": found.variance_error,
                }
            )

    def draw(axes: Axes) -> None:
        for topology in TOPOLOGIES:
            points = [row for row in rows if row["topology"] == topology]
            fan_ins = [row["fan-in"] for row in points]
            (line,) = axes.plot(fan_ins, [row["formula"] for row in points], label=topology)
            axes.errorbar(
                fan_ins,
                [row["simulated"] for row in points],
                yerr=[3 * row["standard error"] for row in points],
                linestyle="none",
                marker=".",
                color=line.get_color(),
            )
        axes.set_xscale("log", base=2)
        axes.set_xlabel("fan-in k")
        axes.set_ylabel("variance of ‖z'‖²/‖z‖²")

    note = f"{draws} draws per point; error bars of three standard errors."
    return Analysis("variance", f"Output-norm variance, n = {n}", rows, note, draw)


def resnet50_operations() -> Analysis:
    """Tabulate operations of ResNet-50 on ImageNet: SRigL (ERK), SR-STE (uniform), dense."""
    work, shapes = _resnet50()
    dense = inference_flops(work, {})
    samples = _EPOCHS * RESNET50_IMAGENET_IMAGES
    trained = training_flops("dense", dense, dense, samples) / 1e18
    rows: list[dict[str, object]] = []
    srigl: dict[float, float] = {}  # training operations by sparsity
    sr_ste: dict[float, float] = {}
    for percent in _SPARSITIES:
        sparse = dense
        if percent:
            sparse = inference_flops(work, layer_densities(shapes, percent / 100, "erk"))
            srigl[percent] = training_flops("srigl", sparse, dense, samples) / 1e18
        row: dict[str, object] = {
            "sparsity %": percent,
            "inference 1e9": sparse / 1e9,
            "training 1e18": srigl.get(percent, trained),
        }
        if percent in _N_M:
            uniform = dict.fromkeys(shapes, 1 - percent / 100)
            uniform[next(iter(shapes))] = 1.0  # 4 does not divide its fan-in of 147
            n_m = inference_flops(work, uniform)
            sr_ste[percent] = training_flops("sr-ste", n_m, dense, samples) / 1e18
            row |= {
                "N:M": _N_M[percent],
                "SR-STE inference 1e9": n_m / 1e9,
                "SR-STE training 1e18": sr_ste[percent],
            }
        rows.append(row)

    def draw(axes: Axes) -> None:
        for label, curve in (("SRigL", srigl), ("SR-STE", sr_ste)):
            axes.plot(list(curve), list(curve.values()), marker="o", label=label)
        axes.axhline(trained, linestyle="--", color="gray", label="dense")
        axes.set_xlabel("sparsity, %")
        axes.set_ylabel("training operations, 1e18")
        axes.set_ylim(0)

    note = (
        "100 epochs of 1,281,167 images; ΔT 100; densities before rounding. SR-STE: uniform N:M, "
        "first layer dense; forward and activation gradients sparse, weight gradients dense."
    )
    return Analysis("resnet50-operations", "Operations of ResNet-50", rows, note, draw)


def dynamic_sparse_training() -> Analysis:
    """Tabulate published accuracies of ResNet-50 by method and sparsity."""
    sparsities = sorted({s for row in published.RESNET50.values() for s in row})
    rows = [
        {"method": method} | {f"{s:g} %": values.get(s) for s in sparsities}
        for method, values in published.RESNET50.items()
    ]
    note = f"Top-1 in %, as published; dense {published.RESNET50_DENSE}."
    return Analysis("resnet50-methods", "ResNet-50 on ImageNet: published accuracies", rows, note)


def structured() -> Analysis:
    """Tabulate published operations of structured methods, with our count where it applies."""
    work, shapes = _resnet50()
    counted = {
        percent: inference_flops(work, layer_densities(shapes, percent / 100, "erk")) / 1e9
        for percent in (90, 95)
    }
    rows = [
        {
            "method": method,
            "published 1e9": flops,
            "counted 1e9": next((v for p, v in counted.items() if f" {p} %" in method), None),
            "top-1 %": accuracy,
            "epochs": epochs,
        }
        for method, (flops, accuracy, epochs) in published.STRUCTURED.items()
    ]
    note = "The table's rows of SRigL and Chase (whose epochs are not at hand), without the others."
    return Analysis("resnet50-structured", "ResNet-50: SRigL and structured pruning", rows, note)


def _resnet50() -> tuple[dict[str, LayerCost], dict[str, tuple[int, ...]]]:
    with torch.device("meta"):
        model = ResNet50().build((3, 224, 224), 1000)
    shapes = {name: tuple(weight.shape) for name, weight in prunable_weights(model).items()}
    return layer_costs(model, (3, 224, 224)), shapes
