"""fanin bench decoder: what it measures, what it compares with, and its report."""

import numpy as np
import pytest

from fanin.deploy.bench import load_result, report_of, save_result
from fanin.deploy.bench.report.markdown import to_markdown
from fanin.deploy.bench.suites.decoder import BenchDecoderSpec, bench_decoder
from fanin.deploy.bench.suites.decoder_models import ANSWER, DecoderConfig

TINY = DecoderConfig(hidden=32, intermediate=64, layers=1, heads=2, kv_heads=1, vocabulary=64)


def test_every_sparsity_has_its_condensed_engines_and_dense_runs_once():
    spec = BenchDecoderSpec(TINY, (0.8, 0.9), ("dense", "condensed", "dense-int8"))
    assert spec.cases == [
        ("dense", 0.9),
        ("dense-int8", 0.9),
        ("condensed", 0.8),
        ("condensed", 0.9),
    ]


def test_weights_are_counted_as_the_model_has_them():
    pytest.importorskip("transformers")
    model = TINY.torch_model(0.75)
    projections = {
        name: weight.detach().numpy()
        for name, weight in model.named_parameters()
        if weight.ndim == 2
    }
    assert sum(weight.size for weight in projections.values()) == TINY.weights
    sparse = {name: weight for name, weight in projections.items() if ".layers." in name}
    assert sum(weight.size for weight in sparse.values()) == TINY.sparse_weights
    for weight in sparse.values():
        assert set(np.count_nonzero(weight, axis=1)) == {weight.shape[1] // 4}
        assert np.abs(weight[weight != 0]).min() > np.abs(weight).mean()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engines": ("condensed",)}, "engines lack dense"),
        ({"engines": ("dense", "int3")}, "int3"),
        ({"sparsities": (1.0,)}, r"must be in \(0, 1\)"),
        ({"tokens": 0}, "tokens is 0"),
    ],
)
def test_a_spec_that_cannot_be_measured_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        BenchDecoderSpec(TINY, **change)
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        DecoderConfig(hidden=32, heads=4, kv_heads=3)


@pytest.mark.slow
def test_engines_are_compared_with_torch_and_reported(tmp_path):
    pytest.importorskip("transformers")
    spec = BenchDecoderSpec(TINY, (0.5, 0.75), past=4, tokens=2, rounds=2)
    result = bench_decoder(spec, tmp_path / "files")
    cases = {(one.engine, one.sparsity): one for one in result.cases}
    assert len(cases) == 7
    for (engine, _), case in cases.items():
        exact = engine in ("dense", "condensed")
        assert case.logits_error < (1e-5 if exact else 0.5)
        assert case.token.count == 2
        assert case.file_bytes > 10_000
        if exact:
            assert case.same_tokens == ANSWER
    # The same files again, without torch.
    again = bench_decoder(spec, tmp_path / "files")
    assert [one.logits_error for one in again.cases] == [one.logits_error for one in result.cases]
    save_result(result, tmp_path / "out")
    text = to_markdown(report_of(load_result(tmp_path / "out")))
    assert text == (tmp_path / "out" / "results.md").read_text()
    assert "condensed-int8" in text
