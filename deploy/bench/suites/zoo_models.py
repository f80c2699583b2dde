"""The models of ``fanin bench zoo``: known networks with random weights of constant fan-in.

Times do not depend on the values of weights. Uniform sparsity; of each network those layers are
sparse that SRigL's authors make so: all of ResNet-50 and of the perceptron, all of MobileNet-V3 but
its depthwise convolutions, all of ViT-B/16 but its in-projections (SRigL, arXiv 2305.02299,
appendix), the linear layers of MiniLM's encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..requirements import require
from .random_layer import random_sparse_layer

if TYPE_CHECKING:
    from torch import Tensor, nn

TOKENS = 32
_OPSET = 18
"""The newest that DeepSparse reads; torch's own, older ones are conversions."""


@dataclass(frozen=True)
class ZooModel:
    """A network: how it is built, and the shape of a sample."""

    about: str
    sample: tuple[int, ...]
    build: Callable[[], nn.Module]
    stays_dense: Callable[[str, nn.Parameter], bool] = lambda name, weight: False  # noqa: ARG005


def export_zoo_model(name: str, folder: Path, sparsity: float, ablated: float, batch: int) -> Path:
    """Write the model and its dense baseline, and its structured form where neurons are ablated.

    The condensed file has the form that ``--policy auto`` takes for each layer at ``batch``.
    """
    torch = require("torch", "the models of the zoo are made with it")
    from ....export import export

    entry = ZOO[name]
    torch.manual_seed(0)
    model = entry.build()
    sparsify(model, entry, sparsity, ablated)
    inputs = torch.randn(2, *entry.sample)
    _set_norm_statistics(model, inputs)
    path = folder / f"{name}-{100 * sparsity:g}-{100 * ablated:g}.onnx"
    export(model.eval(), inputs, path, dense_baseline=True, batch=batch, opset=_OPSET)
    if ablated:
        structured = path.with_name(f"{path.stem}.structured.onnx")
        export(model, inputs, structured, policy="structured", batch=batch, opset=_OPSET)
    return path


def sparsify(model: nn.Module, entry: ZooModel, sparsity: float, ablated: float) -> None:
    """Give every sparse weight constant fan-in; the last layer loses no neuron."""
    import torch

    sparse = [
        (name, weight)
        for name, weight in model.named_parameters()
        if weight.ndim > 1 and not entry.stays_dense(name, weight)
    ]
    for number, (_, weight) in enumerate(sparse):
        rows, columns = len(weight), weight[0].numel()
        gone = ablated if number < len(sparse) - 1 else 0.0
        active = max(1, rows - round(gone * rows))
        fan_in = min(columns, max(1, round((1 - sparsity) * columns * rows / active)))
        rng = np.random.default_rng(number)
        layer = random_sparse_layer("random", rng, columns, rows, active, fan_in)
        with torch.no_grad():
            weight.copy_(torch.from_numpy(layer.to_dense()).reshape(weight.shape))


def _set_norm_statistics(model: nn.Module, inputs: Tensor) -> None:
    """Take the statistics of batch norms from the inputs, so that activations keep their size."""
    import torch

    norms = [one for one in model.modules() if isinstance(one, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        norm.reset_running_stats()
    if norms:
        with torch.no_grad():
            model.train()(inputs)


def _torchvision(name: str) -> nn.Module:
    models = require("torchvision.models", "the models of the zoo are its")
    model: nn.Module = getattr(models, name)(weights=None)
    return model


def _mlp() -> nn.Module:
    from torch import nn

    sizes = (784, 3072, 768, 3072, 768, 10)
    layers: list[nn.Module] = []
    for in_features, out_features in pairwise(sizes):
        layers += [nn.Linear(in_features, out_features), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _minilm() -> nn.Module:
    from torch import nn

    transformers = require("transformers", "MiniLM is its model")
    config = transformers.BertConfig(
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        attn_implementation="eager",
    )
    model = transformers.BertModel(config, add_pooling_layer=False)

    class FromEmbeddings(nn.Module):
        """The encoder: [batch, tokens, 384] to the same."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = model.encoder

        def forward(self, embeddings: Tensor) -> Tensor:
            states: Tensor = self.encoder(embeddings).last_hidden_state
            return states

    return FromEmbeddings()


def _depthwise(name: str, weight: nn.Parameter) -> bool:  # noqa: ARG001
    return weight.ndim == 4 and weight.shape[1] == 1


def _dense_in_vit(name: str, weight: nn.Parameter) -> bool:  # noqa: ARG001
    return "in_proj" in name or "pos_embedding" in name or "class_token" in name


ZOO = {
    "vit-b-16": ZooModel(
        "ViT-B/16, in-projections dense",
        (3, 224, 224),
        lambda: _torchvision("vit_b_16"),
        _dense_in_vit,
    ),
    "resnet-50": ZooModel("ResNet-50", (3, 224, 224), lambda: _torchvision("resnet50")),
    "mobilenet-v3-large": ZooModel(
        "MobileNet-V3-Large, depthwise convolutions dense",
        (3, 224, 224),
        lambda: _torchvision("mobilenet_v3_large"),
        _depthwise,
    ),
    "mlp": ZooModel("784-3072-768-3072-768-10", (784,), _mlp),
    "minilm": ZooModel(
        f"MiniLM-L6 from its embeddings on, {TOKENS} tokens", (TOKENS, 384), _minilm
    ),
}
