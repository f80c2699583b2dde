"""export() as a whole: kinds of models, and failures that must leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from fanin.export import ExportError
from fanin.export.onnx_inspect import inspect
from fanin.export.passes import fuse_activation

from .conftest import export_condensed


def sparsify(module: nn.Linear, keep: float = 0.1) -> nn.Linear:
    generator = torch.Generator().manual_seed(module.in_features)
    with torch.no_grad():
        module.weight.mul_(torch.rand(module.weight.shape, generator=generator) < keep)
    return module


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(sparsify(nn.Linear(12, 160)), nn.ReLU(), nn.Linear(160, 3))


def run(path: Path, **feeds: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(
        None, feeds
    )


def node_types(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]


class Mixed(nn.Module):
    """A model in which much comes together.

    A convolution with a mask, a layer that is called twice, one without a bias, one whose neurons
    are all ablated, equal zero biases that the exporter merges, two inputs and two outputs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.inner = sparsify(nn.Linear(24, 24))
        self.no_bias = sparsify(nn.Linear(24, 24, bias=False))
        self.gone = nn.Linear(24, 24)
        self.norm = nn.LayerNorm(24)
        self.head = sparsify(nn.Linear(24, 50), keep=0.4)
        with torch.no_grad():
            self.conv.weight[:, 0] = 0
            self.conv.bias.zero_()
            self.inner.bias.zero_()
            self.norm.bias.zero_()
            self.gone.weight.zero_()

    def forward(self, image, vector):
        x = self.conv(image).relu().flatten(1) + vector
        x = self.inner(self.inner(x).clamp(min=-1)).relu()
        x = self.norm(self.no_bias(x)) + torch.tanh(self.gone(x))
        return {"scores": self.head(x), "features": x}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory):
    torch.manual_seed(1)
    model = Mixed().eval()
    path = tmp_path_factory.mktemp("mixed") / "mixed.onnx"
    inputs = (torch.randn(2, 2, 4, 5), torch.randn(2, 24))
    return model, export_condensed(model, inputs, path, external_data_threshold=0)


def test_mixed_model_runs_for_any_batch(mixed):
    model, report = mixed
    for batch in (1, 3, 64):
        generator = torch.Generator().manual_seed(batch)
        image = torch.randn(batch, 2, 4, 5, generator=generator)
        vector = torch.randn(batch, 24, generator=generator)
        with torch.no_grad():
            expected = model(image, vector)
        got = run(report.path, image=image.numpy(), vector=vector.numpy())
        for actual, key in zip(got, ("scores", "features"), strict=True):
            wanted = expected[key].numpy()
            np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_mixed_model_reports_every_weight_and_keeps_eval_mode(mixed):
    model, report = mixed
    assert not model.training
    layers = {layer.name: layer for layer in report.layers}
    assert layers["conv.weight"].nodes == ("conv",)
    assert layers["conv.weight"].sparsity == 0.5
    assert layers["inner.weight"].nodes == ("inner", "inner_1")
    assert layers["gone.weight"].active == 0
    assert layers["gone.weight"].nodes == ("gone",)
    # After the convolution's the first call's clamp and the second call's ReLU.
    assert report.fused == ("Relu into conv", "Max into inner", "Relu into inner_1")


def test_mixed_model_stores_what_its_layers_hold(mixed):
    model, report = mixed
    layers = {layer.name: layer for layer in inspect(report.path).layers}
    assert set(layers) == {"conv", "inner", "inner_1", "no_bias", "gone", "head"}
    assert (layers["gone"].active, layers["gone"].fan_in) == (0, 0)
    # Merging equal tensors must not have touched one that another node reads.
    tensors = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load(report.path).graph.initializer
    }
    norm = next(n for n in onnx.load(report.path).graph.node if n.op_type == "LayerNormalization")
    np.testing.assert_array_equal(tensors[norm.input[2]], np.zeros(24))
    np.testing.assert_array_equal(tensors["gone.bias"], model.gone.bias.detach())


def test_weights_over_the_threshold_lie_in_a_data_file_beside_the_model(mixed):
    _, report = mixed
    data = Path(report.data_path)
    assert data.parent == Path(report.path).parent
    proto = onnx.load(report.path, load_external_data=False)
    locations = {
        entry.value
        for tensor in proto.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    assert locations == {data.name}
    assert report.file_bytes == Path(report.path).stat().st_size + data.stat().st_size
    assert {p.name for p in data.parent.iterdir()} == {Path(report.path).name, data.name}


def test_transformer_layer_exports_with_its_output_projection_condensed(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    for linear in (model.linear1, model.linear2, model.self_attn.out_proj):
        sparsify(linear)
    report = export_condensed(model, torch.randn(2, 5, 16), tmp_path / "layer.onnx")
    assert model.training
    assert torch.backends.mha.get_fastpath_enabled()
    assert [layer.name for layer in report.condensed_layers] == [
        "self_attn.out_proj.weight",
        "linear1.weight",
        "linear2.weight",
    ]
    x = torch.randn(3, 5, 16)
    with torch.no_grad():
        expected = model.eval()(x).numpy()
    np.testing.assert_allclose(run(report.path, src=x.numpy())[0], expected, atol=1e-5)


@pytest.mark.parametrize("opset", [17, 23])
def test_ends_of_the_opset_range_export(tmp_path: Path, opset: int):
    report = export_condensed(small(), torch.randn(1, 12), tmp_path / "small.onnx", opset=opset)
    model = onnx.load(report.path)
    assert (model.ir_version, model.opset_import[0].version) == (9, opset)
    assert node_types(report.path) == ["CondensedGemm", "Gemm"]
    newer = f"opset {opset} does not load in onnxruntime 1.20 and older"
    assert report.notes == ((newer,) if opset == 23 else ())


class Chunks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = sparsify(nn.Linear(64, 96))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.gate(x).chunk(3, -1)
        return first * second + third


def test_equal_parts_export_in_opset_17_whose_split_has_no_number_of_outputs(tmp_path: Path):
    model, x = Chunks(), torch.randn(2, 64)
    export_condensed(model, x, tmp_path / "m.onnx", opset=17)
    split = next(n for n in onnx.load(tmp_path / "m.onnx").graph.node if n.op_type == "Split")
    assert [attribute.name for attribute in split.attribute] == ["axis"]
    np.testing.assert_allclose(
        run(tmp_path / "m.onnx", x=x.numpy())[0], model(x).detach().numpy(), atol=1e-5
    )


def test_model_without_sparse_layers_exports_dense_and_says_so(tmp_path: Path):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    report = export_condensed(model, torch.randn(2, 4), tmp_path / "dense.onnx")
    assert report.notes == (
        "no sparse weights found; the sparsest is 0.weight at 0%",
        "no layer was condensed; the file is the dense model",
    )
    assert not onnx.load(report.path).functions
    assert report.size_ratio == 1


def test_new_export_replaces_model_and_data_of_the_older_one(tmp_path: Path):
    path = tmp_path / "model.onnx"
    unrelated = tmp_path / "model.onnx.data"
    unrelated.write_bytes(b"somebody else's")
    first = export_condensed(small(0), torch.randn(1, 12), path, external_data_threshold=0)
    baseline = tmp_path / "model.dense.onnx"
    baseline.touch()
    second = export_condensed(small(1), torch.randn(1, 12), path, external_data_threshold=0)
    assert second.notes == (f"{baseline} is from an earlier export, not from this one",)
    assert first.data_path != second.data_path
    assert {p.name for p in tmp_path.iterdir()} == {
        "model.onnx",
        "model.dense.onnx",
        "model.onnx.data",
        Path(second.data_path).name,
    }
    x = torch.randn(4, 12)
    with torch.no_grad():
        expected = small(1)(x).numpy()
    np.testing.assert_allclose(run(path, input=x.numpy())[0], expected, atol=1e-5)


def test_failed_parity_leaves_the_older_file_and_nothing_else(tmp_path, monkeypatch):
    def wrong(producer, low, high):  # noqa: ARG001
        producer.attributes.add(fuse_activation.ir.AttrFloat32("clip_min", low + 0.25))

    monkeypatch.setattr(fuse_activation, "_clip", wrong)
    path = tmp_path / "model.onnx"
    path.write_bytes(b"older")
    with pytest.raises(ExportError, match=r"output 0 at batch 2 in onnxruntime .* differs"):
        export_condensed(small(), torch.randn(1, 12), path, dense_baseline=True)
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


class ReadsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = sparsify(nn.Linear(12, 4))

    def forward(self, x):
        return nn.functional.linear(x, self.linear.weight)


def test_weight_that_another_module_reads_is_condensed(tmp_path: Path):
    report = export_condensed(ReadsWeight(), torch.randn(2, 12), tmp_path / "model.onnx")
    assert [layer.name for layer in report.condensed_layers] == ["linear.weight"]


class Product(nn.Module):
    """Multiplies by a weight that is no parameter."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        weight = sparsify(nn.Linear(12, 40)).weight.detach()
        if kind == "buffer":
            self.register_buffer("table", weight)
        else:
            self.table = weight

    def forward(self, x):
        return x @ self.table.T


@pytest.mark.parametrize("kind", ["buffer", "plain tensor"])
def test_weight_that_is_no_parameter_is_condensed_and_reported(tmp_path: Path, kind: str):
    report = export_condensed(Product(kind), torch.randn(2, 12), tmp_path / "m.onnx")
    (layer,) = report.layers
    assert (layer.name, layer.decision, layer.shape) == ("table", "condensed", (40, 12))
    assert node_types(report.path) == ["CondensedGemm"]
    assert report.notes == ()


class Stateful(nn.Module):
    """Gives something else at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = sparsify(nn.Linear(12, 4))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.calls


def test_model_that_gives_something_else_at_every_call_is_refused(tmp_path: Path):
    with pytest.raises(ExportError, match=r"differs from torch .* over the tolerance of 0\.0008"):
        export_condensed(Stateful(), torch.randn(2, 12), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


class Returns(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.linear, self.what = sparsify(nn.Linear(12, 4)), what

    def forward(self, *inputs):
        x = sum(inputs)
        y = self.linear(x)
        others = {"input and parameter": (x, self.linear.bias), "none": (None,), "number": (3,)}
        return y.bfloat16() if self.what == "bfloat16" else (y, *others[self.what])


def test_inputs_parameters_and_none_may_be_returned(tmp_path: Path):
    inputs = (torch.randn(2, 12), torch.randn(2, 12))
    for what, count in (("input and parameter", 3), ("none", 1)):
        report = export_condensed(Returns(what), inputs, tmp_path / "m.onnx")
        assert len(onnx.load(report.path).graph.output) == count


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("number", "returns int beside its tensors.*returns the tensors alone"),
        ("bfloat16", "output 0 of the model is bfloat16.*return float32"),
    ],
)
def test_output_that_no_file_can_give_is_refused(tmp_path: Path, what: str, sentence: str):
    with pytest.raises(ExportError, match=sentence):
        export_condensed(Returns(what), torch.randn(2, 12), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_context_of_the_caller_changes_nothing(tmp_path: Path):
    x = torch.randn(2, 12)
    expected = Path(export_condensed(small(), x, tmp_path / "a.onnx").path).read_bytes()
    contexts = [
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.inference_mode(),
        torch.device("meta"),
    ]
    model = small()
    for context in contexts:
        with context:
            report = export_condensed(model, x, tmp_path / "b.onnx")
        assert Path(report.path).read_bytes() == expected
    torch.set_default_dtype(torch.float64)
    try:
        report = export_condensed(model, x, tmp_path / "b.onnx")
    finally:
        torch.set_default_dtype(torch.float32)
    assert Path(report.path).read_bytes() == expected


class FixedBatch(nn.Module):
    def forward(self, x):
        return x.reshape(2, -1) * 2


def test_model_with_a_fixed_batch_is_refused(tmp_path: Path):
    with pytest.raises(ExportError, match=r"does not run on inputs of the shapes \[1, 3\]|batch"):
        export_condensed(FixedBatch(), torch.randn(2, 3), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


class Explodes(nn.Module):
    def forward(self, x):
        return x / 0


@pytest.mark.parametrize(
    ("model", "example", "options", "error", "sentence"),
    [
        (small(), None, {}, ExportError, "needs example_inputs"),
        (small(), [1.0], {}, ExportError, "example_inputs must be a tensor"),
        (small(), "net.onnx", {}, TypeError, r"order is export\(model, example_inputs, path\)"),
        (small(), torch.tensor(1.0), {}, ExportError, "same first dimension, the batch"),
        (small(), torch.zeros(0, 12), {}, ExportError, "at least one sample"),
        (small(), torch.zeros(2, 11), {}, ExportError, r"not run on inputs of the shapes \[2, 11"),
        (Explodes(), torch.ones(2, 3), {}, ExportError, "output 0 of the model is not finite"),
        (small(), torch.zeros(1, 12), {"opset": 16}, ValueError, "opset is 16, it must be 17 to"),
        (small(), torch.zeros(1, 12), {"opset": 24}, ValueError, "opset is 24, it must be 17 to"),
        (small(), torch.zeros(1, 12), {"min_sparsity": 1.5}, ValueError, "min_sparsity is 1.5"),
        (
            small(),
            torch.zeros(1, 12),
            {"external_data_threshold": 1 << 31},
            ValueError,
            "external_data_threshold is 2147483648",
        ),
        ("run", None, {"masks": {}}, ExportError, "a run folder brings its own masks"),
    ],
)
def test_bad_argument_is_refused_before_any_work(
    tmp_path, model, example, options, error, sentence
):
    with pytest.raises(error, match=sentence):
        export_condensed(model, example, tmp_path / "model.onnx", **options)
    assert not list(tmp_path.iterdir())


def test_output_folder_is_checked_before_the_model_is_looked_at(tmp_path: Path):
    (tmp_path / "file").touch()
    never = object()
    with pytest.raises(FileNotFoundError, match="missing does not exist; create it first"):
        export_condensed(never, None, tmp_path / "missing" / "model.onnx")
    with pytest.raises(NotADirectoryError, match="file is not a folder"):
        export_condensed(never, None, tmp_path / "file" / "model.onnx")
    with pytest.raises(IsADirectoryError, match="is a folder; name a file in it"):
        export_condensed(never, None, tmp_path)
    # No user may write there, not even root.
    with pytest.raises(OSError, match=r"/proc cannot be written .*choose another output path"):
        export_condensed(never, None, Path("/proc/model.onnx"))
