"""The models of ``fanin bench zoo``: networks with random weights of constant fan-in.

Times do not depend on the values of weights. Uniform sparsity. Of KNOWN those layers are sparse
that SRigL's authors make so: all of ResNet-50 and of the perceptron, all of MobileNet-V3 but its
depthwise convolutions, all of ViT-B/16 but its in-projections (SRigL, arXiv 2305.02299, appendix),
the linear layers of MiniLM's encoder. The others are of many kinds, also such that sparsity hardly
helps: on them ``--policy auto`` has to show that it makes no network slower.
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
    """A network: how it is built, the shape of a sample, and which weights it lacks by default.

    ``sparsity``, ``ablated`` and ``batch`` are what it is measured at unless told otherwise. With
    ``dense_head`` the last weight stays dense. ``unstructured`` zeros are anywhere in a weight
    instead of the same number in each row. With ``from_onnx`` the network is exported as another
    tool would write it, a dense ONNX file, which ``fanin export`` then converts.
    """

    about: str
    sample: tuple[int, ...]
    build: Callable[[], nn.Module]
    stays_dense: Callable[[str, nn.Parameter], bool] = lambda name, weight: False  # noqa: ARG005
    sparsity: float = 0.9
    ablated: float = 0.0
    batch: int = 1
    dense_head: bool = False
    unstructured: bool = False
    from_onnx: bool = False


def zoo_file(name: str, folder: Path, sparsity: float, ablated: float) -> Path:
    """Return the file of a network in a folder."""
    return folder / f"{name}-{100 * sparsity:g}-{100 * ablated:g}.onnx"


def export_zoo_model(name: str, folder: Path, sparsity: float, ablated: float, batch: int) -> Path:
    """Write the model and its dense baseline, and its structured form where neurons are ablated.

    The condensed file has the form that ``--policy auto`` takes for each layer at ``batch``.
    """
    torch = require("torch", "the models of the zoo are made with it")
    from ....export import convert, export

    entry = ZOO[name]
    torch.manual_seed(0)
    model = entry.build()
    sparsify(model, entry, sparsity, ablated)
    inputs = torch.randn(2, *entry.sample)
    _set_norm_statistics(model, inputs)
    path = zoo_file(name, folder, sparsity, ablated)
    if entry.from_onnx:
        dense = path.with_name(f"{path.stem}.dense.onnx")
        export(model.eval(), inputs, dense, portable=True, policy="dense", opset=_OPSET)
        convert(dense, path, batch=batch)
        return path
    export(model.eval(), inputs, path, dense_baseline=True, batch=batch, opset=_OPSET)
    if ablated:
        structured = path.with_name(f"{path.stem}.structured.onnx")
        export(model, inputs, structured, policy="structured", batch=batch, opset=_OPSET)
    return path


def sparsify(model: nn.Module, entry: ZooModel, sparsity: float, ablated: float) -> None:
    """Zero the pruned entries of every sparse weight; ablate no neuron of the last layer."""
    import torch

    weights = [
        (f"{path}.{name}".lstrip("."), weight, type(module).__name__ == "Conv1D")
        for path, module in model.named_modules()
        for name, weight in module.named_parameters(recurse=False)
        if weight.ndim > 1
    ]
    last = len(weights) - 1
    for number, (name, weight, transposed) in enumerate(weights):
        if entry.stays_dense(name, weight) or (entry.dense_head and number == last):
            continue
        with torch.no_grad():
            if entry.unstructured:
                weight.mul_(torch.rand_like(weight) >= sparsity)
                continue
            # [out, in]; transformers' Conv1D stores [in, out].
            rows, columns = len(weight), weight[0].numel()
            rows, columns = (columns, rows) if transposed else (rows, columns)
            gone = ablated if number < last else 0.0
            active = max(1, rows - round(gone * rows))
            fan_in = min(columns, max(1, round((1 - sparsity) * columns * rows / active)))
            rng = np.random.default_rng(number)
            layer = random_sparse_layer("random", rng, columns, rows, active, fan_in)
            dense = torch.from_numpy(layer.to_dense())
            weight.copy_(dense.T if transposed else dense.reshape(weight.shape))


def _set_norm_statistics(model: nn.Module, inputs: Tensor) -> None:
    """Compute batch norm statistics from the inputs, so that activations keep their size."""
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


def _mlp(*sizes: int, activation: str = "ReLU") -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torch import nn

        layers: list[nn.Module] = []
        for in_features, out_features in pairwise(sizes):
            layers += [nn.Linear(in_features, out_features), getattr(nn, activation)()]
        return nn.Sequential(*layers[:-1])

    return build


def _resnet18_of_32x32() -> nn.Module:
    from torch import nn

    model = _torchvision("resnet18")
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return model


def _vit_small() -> nn.Module:
    models = require("torchvision.models", "the models of the zoo are its")
    model: nn.Module = models.VisionTransformer(224, 16, 12, 6, 384, 1536)
    return model


def _mixer() -> nn.Module:
    """MLP-Mixer (arXiv 2105.01601) after its patch embedding: [batch, 64, 256] to the same."""
    from torch import nn

    class Block(nn.Module):
        """Mixes tokens, then features, each by two linear layers with a residual."""

        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(256) for _ in range(2))
            self.mix = nn.ModuleList(
                nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))
                for size in (64, 256)
            )

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.mix[0](self.norms[0](x).transpose(1, 2)).transpose(1, 2)
            mixed: Tensor = x + self.mix[1](self.norms[1](x))
            return mixed

    return nn.Sequential(*(Block() for _ in range(6)))


def _of_tokens(model: nn.Module, output: str) -> nn.Module:
    """Let a language model take numbers for tokens: the benchmark makes float32 inputs only."""
    from torch import nn

    class OfTokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, numbers: Tensor) -> Tensor:
            tokens = (200 * numbers + 500).clamp(0, 999).long()
            found: Tensor = getattr(self.model(input_ids=tokens), output)
            return found

    return OfTokens()


def _bert() -> nn.Module:
    transformers = require("transformers", "BERT is its model")
    config = transformers.BertConfig(attn_implementation="eager")
    return _of_tokens(transformers.BertModel(config, add_pooling_layer=False), "last_hidden_state")


def _gpt2() -> nn.Module:
    transformers = require("transformers", "GPT-2 is its model")
    config = transformers.GPT2Config(attn_implementation="eager", use_cache=False)
    return _of_tokens(transformers.GPT2LMHeadModel(config), "logits")


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


def _dense_in_vit_small(name: str, weight: nn.Parameter) -> bool:
    return _dense_in_vit(name, weight) or "conv_proj" in name


def _embedding(name: str, weight: nn.Parameter) -> bool:  # noqa: ARG001
    return "embeddings" in name or ".wte." in name or ".wpe." in name or "lm_head" in name


def _image_or_head(name: str, weight: nn.Parameter) -> bool:
    return weight.shape[1] == 3 or name == "fc.weight"


_IMAGE = (3, 224, 224)

KNOWN = {
    "vit-b-16": ZooModel(
        "ViT-B/16, in-projections dense", _IMAGE, lambda: _torchvision("vit_b_16"), _dense_in_vit
    ),
    "resnet-50": ZooModel("ResNet-50", _IMAGE, lambda: _torchvision("resnet50")),
    "mobilenet-v3-large": ZooModel(
        "MobileNet-V3-Large, depthwise convolutions dense",
        _IMAGE,
        lambda: _torchvision("mobilenet_v3_large"),
        _depthwise,
    ),
    "mlp": ZooModel("784-3072-768-3072-768-10", (784,), _mlp(784, 3072, 768, 3072, 768, 10)),
    "minilm": ZooModel(
        f"MiniLM-L6 from its embeddings on, {TOKENS} tokens", (TOKENS, 384), _minilm
    ),
}
"""The networks that are measured by default."""


def _mlp_with_dense_head(*sizes: int, sparsity: float, batch: int = 1) -> ZooModel:
    about = "-".join(map(str, sizes))
    build = _mlp(*sizes)
    return ZooModel(about, sizes[:1], build, sparsity=sparsity, batch=batch, dense_head=True)


ZOO = {
    **KNOWN,
    "mlp-digits": _mlp_with_dense_head(784, 300, 100, 10, sparsity=0.9),
    "mlp-large": _mlp_with_dense_head(784, 3072, 3072, 10, sparsity=0.9),
    "mlp-tiny": _mlp_with_dense_head(16, 32, 32, 4, sparsity=0.5),
    "mlp-half": _mlp_with_dense_head(1024, 2048, 1024, 100, sparsity=0.5),
    "mlp-batch": _mlp_with_dense_head(512, 1024, 1024, 10, sparsity=0.8, batch=64),
    "mlp-half-batch": _mlp_with_dense_head(768, 1536, 768, 10, sparsity=0.5, batch=64),
    "mlp-half-small": _mlp_with_dense_head(512, 512, 512, 10, sparsity=0.6, batch=8),
    "mlp-ablated": ZooModel(
        "768-3072-768-3072-10 with GELU",
        (768,),
        _mlp(768, 3072, 768, 3072, 10, activation="GELU"),
        sparsity=0.85,
        ablated=0.4,
        batch=32,
        dense_head=True,
    ),
    "autoencoder": ZooModel(
        "2048-512-64-512-2048, zeros anywhere",
        (2048,),
        _mlp(2048, 512, 64, 512, 2048),
        sparsity=0.95,
        unstructured=True,
    ),
    "mlp-onnx": ZooModel(
        "ONNX file 768-1536-768-1536-256, zeros anywhere",
        (768,),
        _mlp(768, 1536, 768, 1536, 256),
        sparsity=0.7,
        batch=8,
        unstructured=True,
        from_onnx=True,
    ),
    "mixer": ZooModel("MLP-Mixer, 6 blocks, 64 tokens of 256", (64, 256), _mixer, sparsity=0.85),
    "bert-base": ZooModel(f"BERT base, {TOKENS} tokens", (TOKENS,), _bert, _embedding),
    "gpt2-small": ZooModel(
        f"GPT-2 small, {TOKENS} tokens", (TOKENS,), _gpt2, _embedding, sparsity=0.8
    ),
    "vit-small": ZooModel(
        "ViT-S/16, MLPs and outputs", _IMAGE, _vit_small, _dense_in_vit_small, ablated=0.3
    ),
    "resnet18-half": ZooModel(
        "ResNet-18 of 32 × 32 pixels", (3, 32, 32), _resnet18_of_32x32, _image_or_head, 0.5
    ),
}
