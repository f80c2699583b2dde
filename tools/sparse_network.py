#!/usr/bin/env python3
"""Export a torchvision network with random constant fan-in masks, and its dense baseline.

    python tools/sparse_network.py resnet50 uniform 0.9 -o build/networks/resnet50-uniform90.onnx
    fanin bench model build/networks/resnet50-uniform90.onnx --batch 1 --out results

Every filter of a layer keeps the same number of weights, at uniformly random positions. With
``uniform``, the first and the last layer are dense (unless ``--ends`` is given) and all others have
the given sparsity; with ``erk``, densities are those of the trainer. Depthwise convolutions are
dense. Weights and norms are random too: times do not depend on them, but norms with unequal
channels show that they were folded correctly.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torchvision import models

from fanin._base.distributions import DISTRIBUTIONS, layer_densities
from fanin.deploy.bench.suites.random_layer import random_sparse_layer
from fanin.export import export


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("network", help="a torchvision network, such as resnet50")
    parser.add_argument("distribution", choices=sorted(DISTRIBUTIONS))
    parser.add_argument("sparsity", type=float)
    parser.add_argument("-o", "--out", type=Path, required=True, help="the ONNX file")
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--size", type=int, default=224, help="height and width of images")
    parser.add_argument("--opset", type=int, default=18, help="DeepSparse supports up to 18")
    parser.add_argument("--ends", action="store_true", help="first and last layer are sparse too")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = getattr(models, options.network)().eval()
    vary_norms_(model)
    masks = sparsify_(model, options.distribution, options.sparsity, ends=options.ends)
    report = export(
        model,
        torch.randn(2, 3, options.size, options.size),
        options.out,
        masks=masks,
        policy=options.policy,
        opset=options.opset,
        dense_baseline=True,
    )
    Console().print(report.to_rich_table())


def vary_norms_(model: nn.Module) -> None:
    """Give the channels of norms different parameters, as training does."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, 0, 0.1)


def sparsify_(
    model: nn.Module, distribution: str, sparsity: float, *, ends: bool = False
) -> dict[str, Tensor]:
    """Give the weights random constant fan-in masks; returns the masks by parameter."""
    layers = {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    }
    dense = {name for name, one in layers.items() if getattr(one, "groups", 1) > 1}
    if distribution == "uniform" and not ends:
        dense |= {next(iter(layers)), list(layers)[-1]}
    shapes = {name: tuple(module.weight.shape) for name, module in layers.items()}
    densities = layer_densities(
        shapes, sparsity, distribution, dense=tuple(dense), dense_in_budget=False
    )
    masks = {}
    for number, (name, module) in enumerate(layers.items()):
        if densities[name] < 1:
            rows, columns = len(module.weight), module.weight[0].numel()
            fan_in = max(1, round(densities[name] * columns))
            rng = np.random.default_rng(number)
            layer = random_sparse_layer("random", rng, columns, rows, rows, fan_in)
            weight = torch.from_numpy(layer.to_dense()).reshape(module.weight.shape)
            module.weight.data.copy_(weight)
            masks[name] = weight != 0
    return masks


if __name__ == "__main__":
    main()
