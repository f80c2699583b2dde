"""Language models with a cache: of transformers, and files of optimum and onnxruntime-genai."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from fanin.deploy import open_session
from fanin.export import ExportError, convert, export, plan_conversion
from fanin.export.onnx_cases import cases_for
from fanin.export.onnx_op import register_schemas

from .decoder_models import (
    HEAD,
    HIDDEN,
    KV_HEADS,
    VOCABULARY,
    causal_model,
    decode_file,
    decode_torch,
    genai_model,
    optimum_model,
)

ANSWER = 32


def a_cache():
    return pytest.importorskip("transformers").DynamicCache()


def prompt() -> torch.Tensor:
    return torch.tensor([[5, 17, 3, 42, 8]])


def require_same_text(model, path) -> None:
    """Compare a prefill and 32 decoded tokens with torch in float64."""
    tokens, logits = decode_torch(model, prompt(), ANSWER)
    session = open_session(path, threads=1)
    found, found_logits = decode_file(session, prompt().numpy(), ANSWER)
    assert found == tokens
    assert len(set(tokens)) > 3  # a text that says something about the cache
    np.testing.assert_allclose(found_logits, logits, atol=2e-5 * np.abs(logits).max())


def shapes_in(path) -> dict[str, list[int | str]]:
    graph = onnx.load(path).graph
    return {
        port.name: [dim.dim_param or dim.dim_value for dim in port.type.tensor_type.shape.dim]
        for port in (*graph.input, *graph.output)
    }


def operators(path) -> Counter:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_a_model_of_transformers_gets_its_cache_as_inputs_and_outputs(tmp_path):
    example = {"input_ids": torch.tensor([[7]]), "past_key_values": a_cache()}
    model = causal_model("llama")
    kind = type(model)
    path = tmp_path / "model.onnx"
    report = export(model, example, path, policy="condensed")
    assert type(model) is kind
    batch, new, past = "batch", "sequence_length", "past_sequence_length"
    cache = [batch, KV_HEADS, past, HEAD]
    shapes = shapes_in(path)
    assert list(shapes) == [
        "input_ids",
        "attention_mask",
        "position_ids",
        "past_key_values.0.key",
        "past_key_values.0.value",
        "logits",
        "present.0.key",
        "present.0.value",
    ]
    assert shapes["input_ids"] == shapes["position_ids"] == [batch, new]
    assert shapes["attention_mask"] == [batch, "total_sequence_length"]
    assert shapes["past_key_values.0.key"] == shapes["past_key_values.0.value"] == cache
    assert shapes["logits"] == [batch, new, VOCABULARY]

    assert operators(path)["CondensedGemm"] == 7
    assert {check.batches for check in report.parity} == {(2, 1, 3)}
    embedding = VOCABULARY * HIDDEN
    large = [
        one.name for one in onnx.load(path).graph.initializer if np.prod(one.dims) == embedding
    ]
    assert large == ["model.embed_tokens.weight"]
    tied = "model.embed_tokens.weight is lm_head.weight as well: the file holds one tensor"
    assert tied in report.notes
    require_same_text(model, path)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["llama", "gpt2", "qwen2"])
def test_two_layers_decode_as_torch_does(style, tmp_path):
    model = causal_model(style, layers=2, tied=style == "gpt2")
    path = tmp_path / "model.onnx"
    cache = a_cache()
    ids = torch.tensor([[7, 9, 2], [1, 1, 4]])
    named = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "past_key_values": cache}
    in_order = (ids, cache) if style == "gpt2" else (ids, None, None, cache)
    report = export(model, named if style == "qwen2" else in_order, path, policy="condensed")
    assert cache.get_seq_length() == 0
    assert sum(layer.decision == "condensed" for layer in report.layers) == (
        8 if style == "gpt2" else 14
    )
    require_same_text(model, path)


def test_inputs_that_do_not_fit_a_cache_are_named(tmp_path):
    transformers = pytest.importorskip("transformers")
    model, path, ids = causal_model("llama"), tmp_path / "model.onnx", torch.tensor([[7, 9]])
    static = transformers.StaticCache(config=model.config, max_cache_len=16)
    with pytest.raises(ExportError, match=r"is a StaticCache; pass transformers.DynamicCache\(\)"):
        export(model, {"input_ids": ids, "past_key_values": static}, path)
    with pytest.raises(ExportError, match="labels cannot be an input beside a cache"):
        export(model, {"input_ids": ids, "past_key_values": a_cache(), "labels": ids}, path)
    with pytest.raises(ExportError, match=r"input_ids \[batch, tokens\]; LlamaForCausalLM was"):
        export(model, {"past_key_values": a_cache()}, path)
    example, shapes = {"input_ids": ids, "past_key_values": a_cache()}, {"input_ids": {1: "n"}}
    with pytest.raises(ValueError, match="does not go with a cache"):
        export(model, example, path, dynamic_shapes=shapes)
    with pytest.raises(ExportError, match="a cache goes with a causal language model"):
        export(torch.nn.Linear(4, 4), {"input": a_cache()}, path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [genai_model, optimum_model])
def test_projections_of_other_exporters_decoders_are_condensed(make, tmp_path):
    source, path = tmp_path / "source.onnx", tmp_path / "model.onnx"
    onnx.save(make(), source)
    before = operators(source)
    report = convert(source, path, policy="condensed")
    after = operators(path)
    sparse = 5 if make is genai_model else 2
    assert after["CondensedGemm"] == sparse
    assert after["MatMul"] == before["MatMul"] - sparse
    for op in ("GroupQueryAttention", "SkipSimplifiedLayerNormalization", "Softmax"):
        assert after[op] == before[op]
    assert [check.batches for check in report.parity] == [(1, 2)] * 2

    providers = ["CPUExecutionProvider"]
    original = onnxruntime.InferenceSession(source, providers=providers)
    tokens, logits = decode_file(original, prompt().numpy(), ANSWER)
    found, found_logits = decode_file(open_session(path, threads=1), prompt().numpy(), ANSWER)
    assert found == tokens
    np.testing.assert_allclose(found_logits, logits, atol=1e-5 * np.abs(logits).max())


@pytest.mark.parametrize("make", [genai_model, optimum_model])
def test_decoders_are_verified_on_a_prefill_and_on_single_tokens(make, tmp_path):
    source = tmp_path / "source.onnx"
    onnx.save(make(), source)
    cases, names = cases_for(source, None)
    calls = []
    for case in cases:
        given = dict(zip(names, case.inputs, strict=True))
        batch, new = given["input_ids"].shape
        past = given["past_key_values.0.key"].shape[2]
        assert given["attention_mask"].shape == (batch, past + new)
        if "position_ids" in given:
            assert given["position_ids"].tolist() == [list(range(past, past + new))] * batch
        calls.append((batch, past, new))
    assert calls == [(1, 0, 6), (1, 6, 1), (2, 4, 1), (1, 4, 3)]


def test_forms_are_chosen_for_one_token(tmp_path):
    source = tmp_path / "source.onnx"
    onnx.save(optimum_model(), source)
    reasons = [layer.reason for layer in plan_conversion(source) if layer.sparsity > 0.5]
    assert reasons
    assert all("at 1 row" in reason for reason in reasons)


def test_shapes_are_known_behind_a_simplified_layer_normalization():
    register_schemas()
    model = genai_model()
    found = onnx.shape_inference.infer_shapes(model, strict_mode=False)
    known = {value.name: value.type.tensor_type for value in found.graph.value_info}
    sizes = [dim.dim_param or dim.dim_value for dim in known["a"].shape.dim]
    assert sizes == ["batch_size", "sequence_length", HIDDEN]
    assert known["a"].elem_type == onnx.TensorProto.FLOAT
