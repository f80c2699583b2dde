from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fanin.export import CondensedWeight, ExportError
from fanin.export.layer_plan import plan_layers
from fanin.export.modules import CondensedLinear, condensed_gemm
from fanin.export.torch_copy import eval_copy
from fanin.export.torch_model import replace_layers


def sparsify(module: nn.Module, keep: float = 0.1) -> nn.Module:
    """Zero most of a module's weight in place."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        module.weight.mul_(torch.rand(module.weight.shape, generator=generator) < keep)
    return module


def decisions(model: nn.Module, masks=None, min_sparsity=0.5) -> dict[str, str]:
    """Reason by parameter name, "condensed" for condensed ones."""
    reports = [plan.report for plan in plan_layers(model, masks, min_sparsity)]
    return {r.name: r.reason if r.decision == "dense" else r.decision for r in reports}


def test_zeros_decide_without_masks():
    model = nn.Sequential(sparsify(nn.Linear(20, 30)), nn.Linear(30, 4))
    assert decisions(model) == {"0.weight": "condensed", "1.weight": "sparsity 0.0%, under 50%"}


def test_minimum_sparsity_holds_for_masked_layers_too():
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    mask = torch.ones(10, 10, dtype=torch.bool)
    mask[:, :3] = False
    with torch.no_grad():
        model[0].weight.mul_(mask)
    masks = {"0.weight": mask}
    assert decisions(model, masks, 0.5)["0.weight"] == "sparsity 30.0%, under 50%"
    assert decisions(model, masks, 0.3)["0.weight"] == "condensed"
    assert decisions(model, masks, 0.0)["1.weight"] == "no mask"


def test_zero_under_the_mask_stays_a_stored_weight():
    model = nn.Sequential(nn.Linear(8, 4))
    mask = torch.zeros(4, 8, dtype=torch.bool)
    mask[:, 2] = True
    with torch.no_grad():
        model[0].weight.zero_()
    (plan,) = plan_layers(model, {"0.weight": mask}, 0.5)
    np.testing.assert_array_equal(plan.weight.indices, [[2]] * 4)
    assert plan.report.sparsity == 7 / 8
    assert plan.report.active == 4


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_layers_that_cannot_be_condensed_are_listed_with_the_reason():
    hooked = sparsify(nn.Linear(20, 20))
    hooked.register_forward_hook(lambda *_: None)
    patched = sparsify(nn.Linear(20, 20))
    patched.forward = lambda x: x
    model = nn.ModuleDict(
        {
            "conv": sparsify(nn.Conv2d(3, 8, 3)),
            "words": sparsify(nn.Embedding(9, 20)),
            "attention": nn.MultiheadAttention(20, 4),
            "doubled": sparsify(Doubled(20, 20)),
            "hooked": hooked,
            "patched": patched,
            "norm": nn.LayerNorm(20),
        }
    )
    sparsify(model["attention"].out_proj)
    found = decisions(model)
    attention = "MultiheadAttention is not supported"
    assert found == {
        "conv.weight": "Conv2d is not supported",
        "words.weight": "Embedding is not supported",
        "attention.in_proj_weight": attention,
        "attention.out_proj.weight": attention,
        "doubled.weight": "Doubled is not supported",
        "hooked.weight": ("has forward hooks, which would be lost"),
        "patched.weight": "its forward was replaced",
    }


def test_convolution_reports_its_filters_sparsity():
    conv = nn.Conv2d(3, 8, 3)
    mask = torch.zeros(8, 3, 3, 3, dtype=torch.bool)
    mask[1:, 0, 1, :2] = True
    with torch.no_grad():
        conv.weight.mul_(mask)
    (plan,) = plan_layers(nn.Sequential(conv), {"0.weight": mask}, 0.5)
    assert (plan.report.active, plan.report.fan_in) == (7, 2)
    assert plan.report.sparsity == pytest.approx(1 - 14 / 216)
    assert plan.weight is None


def test_mask_may_use_any_name_of_a_shared_parameter():
    first, second = nn.Linear(12, 12), nn.Linear(12, 12)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    sparsify(first)
    assert decisions(model, {"1.weight": first.weight != 0}) == {
        "0.weight": "condensed",
        "1.weight": "condensed",
    }


@pytest.mark.parametrize(
    ("masks", "sentence"),
    [
        ({"0.wieght": torch.ones(4, 8)}, "'0.wieght' names no parameter.*Did you mean '0.weight'"),
        ({"0.weight": torch.ones(8, 4)}, r"shape \[8, 4\], the parameter has \[4, 8\]"),
        ({"0.bias": torch.ones(4)}, "masks belong to weights of two or more dimensions"),
        ({"0.weight": torch.full((4, 8), 0.5)}, "holds other values than 0 and 1"),
        ({"0.weight": torch.zeros(4, 8)}, r"0.weight\[0, 0\] is .* although its mask leaves it"),
    ],
)
def test_mask_that_does_not_fit_is_refused(masks: dict, sentence: str):
    with pytest.raises(ExportError, match=sentence):
        plan_layers(nn.Sequential(nn.Linear(8, 4)), masks, 0.5)


def test_replaced_copy_computes_the_same_and_the_model_keeps_its_layers():
    shared = sparsify(nn.Linear(16, 16))
    with torch.no_grad():
        shared.weight[3] = 0
    model = nn.Sequential(shared, nn.ReLU(), nn.Sequential(shared), nn.Linear(16, 2)).train()
    copied = eval_copy(model).model
    replaced = replace_layers(copied, plan_layers(copied, None, 0.5))
    assert isinstance(replaced[0], CondensedLinear)
    assert replaced[2][0] is replaced[0]
    assert not replaced.training
    assert model.training
    assert type(model[0]) is nn.Linear
    x = torch.randn(5, 16)
    torch.testing.assert_close(replaced(x), model(x))


def test_model_that_is_itself_a_linear_layer_is_replaced():
    copied = eval_copy(sparsify(nn.Linear(16, 4))).model
    replaced = replace_layers(copied, plan_layers(copied, None, 0.5))
    assert isinstance(replaced, CondensedLinear)
    assert replaced.name == "layer"


def test_condensed_module_has_no_weight_that_others_could_read():
    module = CondensedLinear(CondensedWeight.from_dense(np.eye(3, dtype=np.float32)))
    assert not hasattr(module, "weight")
    assert not list(module.parameters())
    assert repr(module) == "CondensedLinear(3, 3, active=3, fan_in=1)"


@pytest.mark.parametrize("dtype", [torch.uint16, torch.int32])
@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12), (0, 12)])
def test_torch_operator_is_the_dense_product_and_passes_opcheck(dtype, shape):
    rng = np.random.default_rng(0)
    mask = rng.random((7, 12)) < 0.3
    mask[4] = False
    weight = CondensedWeight.from_dense(
        rng.standard_normal((7, 12)).astype(np.float32), np.arange(7, dtype=np.float32), mask
    )
    module = CondensedLinear(weight, name="fc")
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    arguments = (
        x, module.values, module.indices.to(dtype), module.bias, module.rows, 12, 7, "fc"
    )  # fmt: skip
    dense = torch.from_numpy(weight.to_dense())
    torch.testing.assert_close(
        condensed_gemm(*arguments), nn.functional.linear(x, dense, module.bias)
    )
    torch.library.opcheck(condensed_gemm, arguments, test_utils=("test_schema", "test_faketensor"))


def test_copy_shares_parameters_but_not_buffers():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    copied = eval_copy(model).model
    assert copied[0].weight is model[0].weight
    assert copied[1].running_mean is not model[1].running_mean


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: m.double(), "0.weight is float64; models of float32"),
        (lambda m: m.to("meta"), "0.weight lies on the meta device"),
        (lambda m: m.append(nn.LazyLinear(3)), "1.weight is not initialized"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*[Ll]azy.*:UserWarning")
def test_tensor_that_cannot_be_exported_is_named(change, sentence: str):
    model = nn.Sequential(nn.Linear(4, 4))
    change(model)
    with pytest.raises(ExportError, match=sentence):
        eval_copy(model)
