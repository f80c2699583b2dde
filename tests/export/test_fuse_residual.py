"""Residual adds behind linear layers: into the node, unless ONNX Runtime does better with them."""

from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn

from fanin.deploy import open_session
from fanin.export import export


class PreNorm(nn.Module):
    """What ViT and GPT-2 have: a sum is read by the next norm and by the next sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(32), nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        x = x + self.down(self.up(self.norm(x)).relu())
        return x + self.last(x)


class PostNorm(PreNorm):
    """What BERT has: the sum goes into a norm and nowhere else."""

    def forward(self, x):
        return self.norm(x + self.down(self.up(x).relu()))


class Summed(PreNorm):
    """The sum is the model's output."""

    def forward(self, x):
        return self.down(self.up(x).relu()) + x


class ReadTwice(PreNorm):
    """What would become the node with the sum in it is read without the sum as well."""

    def forward(self, x):
        y = self.down(self.up(x).relu())
        return x + y, self.norm(y)


def exported(model: nn.Module, path: Path):
    torch.manual_seed(0)
    with torch.no_grad():
        for linear in (model.up, model.down):
            linear.weight.mul_(torch.rand_like(linear.weight) < 0.1)
    return export(model.eval(), torch.randn(3, 5, 32), path, policy="condensed")


def operators(path: Path) -> list[str]:
    """Operators of the graph that ONNX Runtime makes of a file."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    open_session(path, options=options)
    graph = onnx.load(options.optimized_model_filepath, load_external_data=False).graph
    return sorted(node.op_type for node in graph.node)


@pytest.mark.parametrize("model", [PreNorm, Summed])
def test_a_sum_goes_into_the_node_before_it(model, tmp_path):
    report = exported(model(), tmp_path / "net.onnx")
    assert "Add into down" in report.fused
    assert len(report.parity) == 2


def test_a_sum_that_only_a_norm_reads_is_left_to_onnx_runtime(tmp_path):
    report = exported(PostNorm(), tmp_path / "net.onnx")
    assert report.fused == ("Relu into up",)
    found = operators(tmp_path / "net.onnx")
    assert found == ["CondensedGemm", "CondensedGemm", "SkipLayerNormalization"]


def test_a_node_that_is_read_without_the_sum_keeps_it_out(tmp_path):
    report = exported(ReadTwice(), tmp_path / "net.onnx")
    assert report.fused == ("Relu into up",)
    assert "Add" in operators(tmp_path / "net.onnx")
