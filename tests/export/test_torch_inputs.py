"""Inputs of torch models: in order, by name, and their dynamic dimensions."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from fanin.export import ExportError, export
from fanin.export.torch_inputs import call_of


class Tagger(nn.Module):
    """Tokens to one number each; ``scale`` is optional, of features."""

    def __init__(self, length: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(11, 6)
        self.line = nn.Linear(6 if length is None else 6 * length, 3)
        self.length = length

    def forward(self, ids: Tensor, mask: Tensor | None = None, scale: Tensor | None = None):
        hidden = self.table(ids)
        if mask is not None:
            hidden = hidden * mask[..., None]
        if scale is not None:
            hidden = hidden * scale[:, None]
        return self.line(hidden if self.length is None else hidden.flatten(1))


IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
SCALE = torch.tensor([[1.0, 2, 3, 4, 5, 6], [1, 1, 1, 1, 1, 2]])


def shapes_of(model, example, dynamic_shapes=None):
    return call_of(model, example, dynamic_shapes, widen=False).dynamic_shapes


def test_token_ids_have_a_dynamic_sequence_and_features_do_not():
    both, batch = {0: "batch", 1: "sequence"}, {0: "batch"}
    assert shapes_of(Tagger(), (IDS, IDS, SCALE)) == (both, both, batch)
    assert shapes_of(Tagger(), {"ids": IDS, "scale": SCALE}) == (both, batch)
    assert shapes_of(nn.Linear(6, 2), SCALE) == (batch,)
    # Two lengths may be two things.
    assert shapes_of(nn.Bilinear(4, 2, 1), (IDS.float(), IDS[:, :2].float())) == (batch, batch)


def test_the_user_names_dynamic_dimensions_by_input():
    asked = {"scale": {1: "features"}}
    assert shapes_of(Tagger(), {"ids": IDS, "scale": SCALE}, asked) == (
        {0: "batch"},
        {0: "batch", 1: "features"},
    )
    assert shapes_of(Tagger(), IDS, [{1: "tokens"}]) == ({1: "tokens"},)
    with pytest.raises(ValueError, match="names tokens, the inputs are ids"):
        shapes_of(Tagger(), IDS, {"tokens": {1: "n"}})
    with pytest.raises(ValueError, match=r"axes where names .* for each input .ids., as "):
        shapes_of(Tagger(), IDS, {1: "tokens"})
    with pytest.raises(ValueError, match="names 2 inputs, there are 1"):
        shapes_of(Tagger(), IDS, [{}, {}])


def test_an_input_that_the_forward_does_not_have_is_named():
    with pytest.raises(ExportError, match="Tagger has no token_ids; it takes ids, mask, scale"):
        call_of(Tagger(), {"token_ids": IDS}, None, widen=False)


def test_inputs_by_name_and_a_dynamic_sequence_reach_the_file(tmp_path):
    model, path = Tagger().eval(), tmp_path / "model.onnx"
    report = export(model, {"scale": SCALE[:1], "ids": IDS[:1]}, path)
    assert len(report.parity[0].batches) == 3
    assert not any("sequence" in note for note in report.notes)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    ids, scale = np.arange(9)[None], np.ones((1, 6), np.float32)
    (found,) = session.run(None, {"ids": ids, "scale": scale})
    with torch.no_grad():
        expected = model(torch.from_numpy(ids), scale=torch.from_numpy(scale))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_sequence_that_the_model_fixes_stays_static_and_the_report_says_so(tmp_path):
    path = tmp_path / "model.onnx"
    report = export(Tagger(length=4).eval(), IDS, path)
    (note,) = [note for note in report.notes if "sequences of 4 alone" in note]
    assert "shapes" in note
    (port,) = onnx.load(path).graph.input
    assert [dim.dim_param or dim.dim_value for dim in port.type.tensor_type.shape.dim] == [
        "batch",
        4,
    ]
