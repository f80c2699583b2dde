"""The kernel bench on tiny layers, and its report."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fanin.deploy.bench import (
    BenchKernelsSpec,
    bench_kernels,
    print_report,
    report_of,
    save_result,
)
from fanin.deploy.bench.engines import reference
from fanin.deploy.bench.report.markdown import to_markdown
from fanin.deploy.bench.suites import kernels as kernels_module
from fanin.deploy.bench.suites.kernels import admitted_kernels
from fanin.deploy.bench.suites.random_layer import random_sparse_layer
from fanin.ort_ops import kernel_table

TINY = {
    "shapes": ((64, 40),),
    "sparsities": (0.9,),
    "batches": (1, 2, 3, 4, 5),
    "rounds": 2,
    "turn": 1e-3,
}


@pytest.fixture(scope="module")
def result():
    return bench_kernels(BenchKernelsSpec(**TINY, masks=("random", "clustered")))


def test_every_kernel_that_the_table_admits_is_measured_and_right(result):
    supported = {
        row.name
        for row in kernel_table()
        if row.supported and row.max_batch != 0 and row.weights == "float32"
    }
    assert {case.kernel for case in result.cases} == supported
    for mask in ("random", "clustered"):
        for batch in TINY["batches"]:
            cases = [one for one in result.cases if (one.mask, one.batch) == (mask, batch)]
            assert sum(case.dispatched for case in cases) == 1
            assert len({case.kernel for case in cases}) == len(cases)
    for case in result.cases:
        assert case.excluded is None
        assert case.error_after <= 1e-5
        assert case.macs == 40 * 6 * case.batch
        assert case.footprint_bytes == case.packed_bytes + 4 * case.batch * 104
        assert len(case.rounds_seconds) == len(case.read_rounds_seconds) == 2


def test_the_figures_follow_from_the_times(result):
    for case in result.cases:
        cycles = case.run.median * case.hertz
        assert case.macs_per_cycle == pytest.approx(case.macs / cycles)
        assert case.bytes_per_cycle == pytest.approx(case.footprint_bytes / cycles)
        work = case.macs / case.peak_macs_per_second
        assert case.limit == ("read" if case.read.median >= work else "multiply-add")
        assert case.share.min <= case.share.median <= case.share.max


def test_weights_of_16_bits_are_measured_with_their_own_kernels_and_read_less():
    spec = BenchKernelsSpec(
        **{**TINY, "shapes": ((256, 128),), "batches": (1,)},
        values=("float32", "float16", "bfloat16"),
    )
    weights = {row.name: row.weights for row in kernel_table()}
    result = bench_kernels(spec)
    for values in spec.values:
        cases = [case for case in result.cases if case.values == values]
        assert {weights[case.kernel] for case in cases[1:]} <= {values}
        assert [case.excluded for case in cases] == [None] * len(cases)
        assert [case.dispatched for case in cases] == [True] + [False] * (len(cases) - 1)
    assert ", 89.8 % bfloat16 |" in to_markdown(report_of(result))


def test_only_kernels_whose_row_admits_the_case_are_forced():
    weight = random_sparse_layer("random", np.random.default_rng(0), 64, 40, 40, 6)
    rows = {row.name: row for row in kernel_table()}
    for batch in (1, 5, 300):
        for name in admitted_kernels(weight, batch):
            row = rows[name]
            assert row.supported
            assert row.min_batch <= batch <= (row.max_batch or batch)
    assert "f32-gemm-rows-scalar" in admitted_kernels(weight, 300)


def test_a_wrong_kernel_is_excluded_and_said(monkeypatch):
    problem = kernels_module.layer_problem

    def other_bias(weight, batch, seed):
        return problem(replace(weight, bias=weight.bias + 1), batch, seed)

    monkeypatch.setattr(kernels_module, "layer_problem", other_bias)
    result = bench_kernels(BenchKernelsSpec(**{**TINY, "batches": (1,)}, dispatched=True))
    (case,) = result.cases
    assert case.run is case.share is None
    assert "output 0 is wrong" in case.excluded
    assert any("is excluded" in note for note in report_of(result).notes)
    assert "excluded" in to_markdown(report_of(result))


def test_the_reference_of_large_layers_needs_no_dense_weight(monkeypatch):
    spec = BenchKernelsSpec(**TINY)
    ((_, weight),) = spec.layers()
    x = np.random.default_rng(0).standard_normal((5, 64), np.float32)
    dense = reference.exact_outputs(weight, x)
    monkeypatch.setattr(reference, "_DENSE_REFERENCE", 0)
    sparse = reference.exact_outputs(weight, x)
    np.testing.assert_allclose(sparse, dense, rtol=1e-12, atol=1e-12)


def test_the_scaling_suite_has_the_layers_of_extreme_classification():
    spec = BenchKernelsSpec.scaling()
    assert spec.shapes[0] == (1024, 1_000)
    assert spec.shapes[-1] == (1024, 1_000_000)
    first = next(spec.layers())[1]
    assert (first.fan_in, first.in_features, first.out_features) == (32, 1024, 1000)


def test_the_files_are_written_with_their_schema_version(result, tmp_path):
    paths = save_result(result, tmp_path)
    assert [path.name for path in paths] == [
        "results.json",
        "results.md",
        "results.svg",
        "results-narrow.svg",
    ]
    data = json.loads(paths[0].read_text())
    assert (data["schema_version"], data["kind"]) == (2, "kernels")
    assert len(data["cases"]) == len(result.cases)
    text = paths[1].read_text()
    for case in result.cases:
        assert case.kernel in text
    assert "64 → 40, 90.6 % clustered" in text
    console = Console(width=80, file=io.StringIO())
    print_report(report_of(result), console)
    assert "…" not in console.file.getvalue()
    assert "64 → 40, 90.6 %, batch 5" in console.file.getvalue()
    assert paths[2].read_text().startswith("<svg ")


def test_sizes_alone_are_drawn_as_scaling(tmp_path):
    sizes = tuple((64, out) for out in (10, 20, 40))
    spec = BenchKernelsSpec(**{**TINY, "shapes": sizes, "batches": (1,)}, dispatched=True)
    assert save_result(bench_kernels(spec), tmp_path)[2].stat().st_size > 1000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batches": ()}, "batches are"),
        ({"masks": ("magic",)}, "masks are"),
        ({"masks": ()}, "masks are"),
        ({"values": ("int8",)}, "values are"),
        ({"shapes": ((0, 4),)}, "shapes: inputs is 0"),
        ({"sparsities": (1.0,)}, r"sparsity 1\.0 leaves no weights of 64"),
        ({"rounds": 0}, "rounds is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        BenchKernelsSpec(**{**TINY, **changes})
