"""Models as users have them: wrapped, compiled, pruned, parametrized, half precision, sparse."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune, weight_norm

from fanin.export import ExportError, convert, export
from fanin.export.onnx_inspect import condensed_weights
from fanin.export.torch_copy import eval_copy
from fanin.export.torch_layers import list_weights

from ._torch_models import Masked, state_dict_hash


def sparse_(linear: nn.Linear, density: float = 0.15) -> nn.Linear:
    generator = torch.Generator().manual_seed(linear.in_features)
    kept = torch.rand(linear.weight.shape, generator=generator) < density
    kept[:, 0] = True
    with torch.no_grad():
        linear.weight.mul_(kept)
    return linear


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(sparse_(nn.Linear(20, 24)), nn.Tanh(), nn.Linear(24, 5))


def pruned() -> nn.Module:
    model = mlp()
    prune.l1_unstructured(model[2], "weight", 0.8)
    prune.random_unstructured(model[2], "bias", 0.4)
    model(torch.randn(2, 20))
    return model


def parametrized() -> nn.Module:
    model = mlp()
    mask = torch.rand(model[2].weight.shape) < 0.2
    parametrize.register_parametrization(model[2], "weight", Masked(mask))
    return model


def normed() -> nn.Module:
    model = mlp()
    with pytest.warns(FutureWarning):
        model[0] = weight_norm(model[0])
    model(torch.randn(2, 20))
    return model


def with_layout(layout: str) -> nn.Module:
    model = mlp()
    dense = model[0].weight.detach()
    sparse = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
    model[0].weight = nn.Parameter(sparse, requires_grad=False)
    return model


def inner_compiled() -> nn.Module:
    model = mlp()
    model[0] = torch.compile(model[0])
    return model


SPARSE_LAYERS = {
    "compiled": (lambda: torch.compile(mlp()), ["0.weight"]),
    "a compiled part": (inner_compiled, ["0.weight"]),
    "data parallel": (lambda: nn.DataParallel(mlp()), ["0.weight"]),
    "pruned": (pruned, ["0.weight", "2.weight"]),
    "parametrized": (parametrized, ["0.weight", "2.weight"]),
    "weight norm": (normed, ["0.weight"]),
    "COO weight": (lambda: with_layout("coo"), ["0.weight"]),
    "CSR weight": (lambda: with_layout("csr"), ["0.weight"]),
    "half": (lambda: mlp().half(), ["0.weight"]),
    "bfloat16": (lambda: mlp().bfloat16(), ["0.weight"]),
}


@pytest.mark.parametrize("kind", SPARSE_LAYERS)
def test_copy_computes_what_the_model_does_and_the_model_stays(kind: str):
    make, expected = SPARSE_LAYERS[kind]
    model = make().train()
    before = state_dict_hash(model)
    copied = eval_copy(model)
    found = [layer.name for layer in list_weights(copied.model, None) if layer.sparsity > 0.5]
    assert found == expected
    assert {p.dtype for p in copied.model.parameters()} == {torch.float32}
    x = torch.randn(4, 20)
    reparametrized = kind in ("pruned", "parametrized", "weight norm")
    reference = model.eval() if reparametrized else mlp()
    if kind in ("half", "bfloat16"):
        reference = make().float()
    with torch.no_grad():
        torch.testing.assert_close(copied.model(x), reference(x))
    assert state_dict_hash(model) == before
    assert model.train().training


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_model_is_widened_and_that_is_said(dtype: str):
    copied = eval_copy(mlp().to(getattr(torch, dtype)))
    assert copied.widened
    assert copied.notes == (
        f"{dtype} parameters were widened to float32; values_dtype or precision {dtype} stores "
        "them in that type, without loss",
    )


def test_model_under_distributed_data_parallel_is_unwrapped(tmp_path: Path):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(mlp())
        masks = {"module.0.weight": wrapped.module[0].weight != 0}
        copied = eval_copy(wrapped, masks)
        assert isinstance(copied.model, nn.Sequential)
        assert set(copied.masks) == {"0.weight"}
    finally:
        torch.distributed.destroy_process_group()


def test_masks_keep_the_names_of_reparametrized_weights():
    model = pruned()
    masks = {"2.weight_orig": model[2].weight_mask.bool()}
    assert set(eval_copy(model, masks).masks) == {"2.weight"}
    model = parametrized()
    masks = {"2.parametrizations.weight.original": model[2].weight != 0}
    assert set(eval_copy(model, masks).masks) == {"2.weight"}


def test_masks_may_be_arrays():
    mask = mlp()[0].weight.detach().numpy() != 0
    (copied,) = eval_copy(mlp(), {"0.weight": mask}).masks.values()
    assert torch.equal(copied, torch.from_numpy(mask))


def test_forward_that_casts_to_half_is_explained(tmp_path: Path):
    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(20, 5).half()

        def forward(self, x):
            return self.linear(x.half()).float()

    with pytest.raises(ExportError, match=r"were widened to float32.*remove the casts"):
        export(Casts(), torch.randn(2, 20), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_tensor_that_cannot_be_exported_is_named():
    model = mlp()
    model[2].weight = nn.Parameter(model[2].weight.double())
    with pytest.raises(ExportError, match=r"2.weight is float64; .* call model.float\(\)"):
        eval_copy(model)


class Attends(nn.Module):
    """Self-attention, then cross-attention to a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(16, 2, batch_first=True)
        self.cross = nn.MultiheadAttention(16, 2, batch_first=True)
        for attention in (self.own, self.cross):
            sparse_(attention.out_proj)
            with torch.no_grad():
                attention.in_proj_weight.mul_(torch.rand(48, 16) < 0.2)

    def forward(self, x, memory):
        x = x + self.own(x, x, x, need_weights=False)[0]
        return self.cross(x, memory, memory, need_weights=False)[0]


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory):
    torch.manual_seed(1)
    model = Attends()
    path = tmp_path_factory.mktemp("attention") / "m.onnx"
    inputs = (torch.randn(2, 5, 16), torch.randn(2, 7, 16))
    return model, export(model, inputs, path, policy="condensed")


def test_projections_of_attention_are_condensed(attention):
    _, report = attention
    assert {layer.name: layer.decision for layer in report.layers} == {
        f"{name}.{part}": "condensed"
        for name in ("own", "cross")
        for part in ("in_proj_weight", "out_proj.weight")
    }


def test_attention_computes_what_torch_does(attention):
    model, report = attention
    x, memory = torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    with torch.no_grad():
        expected = model.eval()(x, memory).numpy()
    session = onnxruntime.InferenceSession(report.path)
    names = [value.name for value in session.get_inputs()]
    (actual,) = session.run(None, dict(zip(names, (x.numpy(), memory.numpy()), strict=True)))
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_packed_projection_holds_torchs_weights(attention):
    model, report = attention
    nodes = next(x.nodes for x in report.layers if x.name == "own.in_proj_weight")
    weights = condensed_weights(report.path)
    stacked = np.concatenate([weights[node].to_dense() for node in nodes])
    np.testing.assert_array_equal(stacked, model.own.in_proj_weight.detach().numpy())


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(2, 4))])
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_scripted_modules_are_refused_with_the_remedies(make):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(ExportError, match=r"the model is a .*Module of torch.jit.*load_state_dict"):
        eval_copy(make(model))
    with pytest.raises(ExportError, match=r"its module 0 is a .*Module of torch.jit"):
        eval_copy(nn.Sequential(make(model)))
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    plain.load_state_dict(make(model).state_dict())
    assert torch.equal(eval_copy(plain).model(torch.ones(1, 4)), model(torch.ones(1, 4)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_file_that_torchs_older_exporter_writes_of_a_scripted_module_is_converted(tmp_path):
    scripted = torch.jit.script(nn.Sequential(sparse_(nn.Linear(64, 32)), nn.ReLU()))
    x = torch.randn(2, 64)
    torch.onnx.export(scripted, (x,), tmp_path / "in.onnx", dynamo=False)
    report = convert(tmp_path / "in.onnx", tmp_path / "out.onnx", policy="condensed")
    assert [layer.decision for layer in report.layers] == ["condensed"]
