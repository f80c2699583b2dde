"""The limits of the dispatch table, as derived from measured times."""

import importlib.util
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from fanin.ort_ops import _native

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "ort_ops" / "csrc" / "kernels" / "dispatch_limits.inc"


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


limits = load("_dispatch_limits")
Limits = limits.Limits

ISAS = ["scalar", "avx2", "avx512f", "avx512bw"]
NARROW, WIDE, FLAT, PANEL = "n-avx512bw", "w-avx512bw", "f-avx512f", "p-avx512f"
PRESENT = [
    Limits("v-avx512vbmi", (1, 4), (1, 4), 0.004),
    Limits(NARROW, (2, 4), (1, 4), 0.004),
    Limits(WIDE, (1, 4), (1, 4), 0.004),
    Limits(FLAT, (1, 4), (1, 4), 0.004),
    Limits(PANEL, (1, None), (1, None), 5e-5),
]


def times_of(narrow, wide, flat, *, rows_at=0.01, panel_at=1e-4, sparse=1.0):
    """Times of windows by batch, where a panel takes 8 for every batch.

    At low densities windows and rows are equal at `rows_at`, rows and panels at `panel_at`.
    """
    times = {}
    cases = itertools.product(("float32", "float16", "bfloat16"), (0.8, 0.99), range(1, 9))
    for values, sparsity, batch in cases:
        case = f"100x100 {sparsity} {values}"
        slower = sparse if sparsity == 0.99 else 1.0
        for layout, time in ((NARROW, narrow), (WIDE, wide), (FLAT, flat)):
            times[layout, case, batch] = time(batch) * slower
        times[PANEL, case, batch] = 8.0
    for density, batch in itertools.product((0.001, 0.01, 0.1), (1, 2)):
        for layout in (NARROW, WIDE, FLAT):
            times[layout, f"window {density}", batch] = batch * (density * rows_at) ** 0.5
        times[limits.ROWS, f"window {density}", batch] = batch * density
        times[PANEL, f"window {density}", batch] = 100.0
    for density in (1e-5, 1e-4, 1e-3):
        times[PANEL, f"panel {density}", 8] = panel_at
        times[limits.ROWS, f"panel {density}", 8] = density
    return times


def decide(times):
    table, reasons = limits.decide(PRESENT, times, ISAS)
    return {row.layout: row for row in table}, reasons


def test_windows_end_where_panels_are_faster_and_begin_where_they_beat_the_wider_one():
    table, _ = decide(times_of(lambda b: 1.2 + b, lambda b: 1.9 * b, lambda b: 3 * b))
    # The wide one is faster for one sample.
    assert table[NARROW].batches == (2, 4)
    assert table[WIDE].batches == (1, 4)
    assert table[FLAT].batches == (1, 2)
    assert table[PANEL].batches == (3, None)


def test_windows_end_no_later_than_those_of_a_higher_isa():
    # That would be a third layout for layers of symbolic batch, on a CPU that has both.
    table, _ = decide(times_of(*[lambda _batch: 1.0] * 3))
    assert {row.batches[1] for row in table.values()} == {4, None}


def test_a_layout_that_a_wider_one_always_beats_serves_no_batch():
    table, _ = decide(times_of(lambda b: 3 * b, lambda b: 2.2 * b, lambda b: 2.2 * b))
    assert table[NARROW].batches == (1, 0)
    assert table[WIDE].batches == (1, 3)


def test_near_ties_leave_limits_unchanged():
    # For 4 samples, windows take 4 % more; for 5, 4 % less.
    times = times_of(*[lambda b: {4: 8.32, 5: 7.68}.get(b, 1.0 * b)] * 3)
    assert decide(times)[0][WIDE].batches == (1, 4)


def test_a_large_loss_at_one_sparsity_outweighs_the_mean():
    table, _ = decide(times_of(*[lambda b: float(b)] * 3, sparse=3.0))
    # At 99 %, 4 samples take 12, the panel 8; by the mean, 0.87, the window would serve them.
    assert table[WIDE].batches == (1, 3)


def test_least_densities_are_where_the_times_cross():
    table, _ = decide(times_of(*[lambda b: float(b)] * 3, rows_at=0.02, panel_at=3e-4))
    assert table[WIDE].min_density == pytest.approx(0.02, rel=0.15)
    assert table[PANEL].min_density == pytest.approx(3e-4, rel=0.15)
    table, _ = decide(times_of(*[lambda b: float(b)] * 3, rows_at=0.0042, panel_at=5.1e-5))
    assert table[WIDE].min_density == 0.004
    assert table[PANEL].min_density == 5e-5


def test_layouts_that_were_not_measured_are_carried_over_and_reported():
    table, reasons = decide(times_of(*[lambda b: float(b)] * 3))
    assert table["v-avx512vbmi"] == PRESENT[0]
    assert "v-avx512vbmi: carried over, this CPU does not use it" in reasons


def test_of_two_panels_windows_are_compared_with_the_one_that_was_measured():
    loads = Limits("q-avx512f", (1, None), (1, None), 5e-5)
    times = times_of(*[lambda b: 1.9 * b] * 3)
    faster = {
        (loads.layout, case, batch): 5.0 if case.startswith("100x100 ") else seconds
        for (layout, case, batch), seconds in times.items()
        if layout == PANEL
    }
    present = [*PRESENT[:-1], loads, PRESENT[-1]]
    for known, last in ((times, 4), (times | faster, 2)):
        table, _ = limits.decide(present, known, ISAS)
        assert {row.layout: row for row in table}[WIDE].batches == (1, last)


def test_panels_are_compared_with_the_one_in_use():
    times = {("p", f"panels {i}", b): 2.0 * b for i in (1, 2) for b in limits.LARGE}
    times |= {("q", f"panels {i}", b): (2.0 - 0.02 * b) * b for i in (1, 2) for b in (8, 16)}
    times |= {("q", f"panels {i}", b): 1.0 * b for i in (1, 2) for b in (32, 64)}
    ratios = "8: 1.09  16: 1.19  32: 2.00  64: 2.00"
    assert limits.compare_panels(times, ["w", "p", "q"]) == [f"p (used on this CPU) / q: {ratios}"]
    assert limits.compare_panels(times, ["w", "q", "p"]) == [
        "q (used on this CPU) / p: 8: 0.92  16: 0.84  32: 0.50  64: 0.50"
    ]


def test_a_written_table_is_read_back_unchanged(tmp_path):
    path = tmp_path / "limits.inc"
    path.write_text("// a comment\n" + ",\n".join(row.initializer() for row in PRESENT) + "\n")
    assert limits.read_limits(path) == PRESENT


def test_the_library_was_built_from_the_committed_table():
    read = {row.layout: row for row in limits.read_limits(TABLE)}
    for row in _native.kernel_table():
        layout = row.name.partition("gemm-")[2]
        if "emulated" in layout or layout == limits.ROWS:
            continue
        want = read[layout]
        batches = want.batches if row.weights == "float32" else want.batches_16_bit
        assert (row.min_batch, row.max_batch) == batches
        assert row.min_density == want.min_density


@pytest.mark.parametrize("isa", _native.supported_isas()[1:])
def test_below_the_density_of_windows_few_samples_use_rows_and_many_use_panels(isa):
    # 2 of 20,000 inputs: too few for a window.
    rng = np.random.default_rng(0)
    columns = np.sort(rng.permutation(20_000)[:200].reshape(100, 2), axis=1).astype(np.int32)
    layer = {
        "values": rng.standard_normal((100, 2)).astype(np.float32),
        "indices": columns,
        "rows": np.arange(100, dtype=np.int32),
        "bias": np.zeros(100, np.float32),
        "in_features": 20_000,
        "out_features": 100,
    }
    few, many = _native.PackedGemm(**layer, isa=isa).info()
    assert (few.kernel, few.min_batch) == ("f32-gemm-rows-scalar", 1)
    assert "-panel" in many.kernel
    assert (many.min_batch, many.max_batch) == (few.max_batch + 1, None)
    for batch, kernel in ((few.max_batch, few.kernel), (many.min_batch, many.kernel)):
        (info,) = _native.PackedGemm(**layer, isa=isa, min_batch=batch, max_batch=batch).info()
        assert info.kernel == kernel
