"""Times on several threads: as the library's plans predict them, and as dense was measured."""

import numpy as np
import pytest

from fanin.export.cost_model import Calibration, CostModel
from fanin.export.errors import ExportError
from fanin.export.forms import Chooser
from fanin.export.thread_scaling import Work, condensed_seconds, dense_seconds
from fanin.ort_ops import _native
from fanin.ort_ops.dispatch_cost import (
    SLEEPING,
    SPINNING,
    DispatchCalibration,
    DispatchCost,
    describe_cpus,
)
from fanin.ort_ops.format.conv_geometry import ConvGeometry

FREE = DispatchCost(0.0, 0.0)


@pytest.fixture(autouse=True)
def calibration(tmp_path, monkeypatch):
    """Keep the predictions from the user's own measurements; returns where they would be."""
    monkeypatch.setenv("FANIN_CALIBRATION", str(tmp_path / "own.json"))
    return tmp_path / "own.threads.json"


def rows_of(rng, rows, fan_in, width):
    columns = rng.permuted(np.tile(np.arange(width), (rows, 1)), axis=1)[:, :fan_in]
    return {
        "values": rng.standard_normal((rows, fan_in), np.float32),
        "indices": np.sort(columns).astype(np.uint16),
        "rows": np.arange(rows, dtype=np.int32),
        "bias": np.zeros(rows, np.float32),
    }


# Of the plan's rates for panels of 32 samples; others have panels of another width.
wide = pytest.mark.skipif(
    "avx512f" not in _native.supported_isas(), reason="its panels are of 32 samples"
)


@wide
@pytest.mark.parametrize("in_features", [768, 3072])
@pytest.mark.parametrize("out_features", [768, 3072])
def test_linear_layers_are_predicted_as_the_library_plans_them(in_features, out_features):
    rng = np.random.default_rng(0)
    arrays = rows_of(rng, out_features, in_features // 10, in_features)
    sizes = {"in_features": in_features, "out_features": out_features, "isa": "avx512f"}
    cost = (SPINNING.fixed, SPINNING.per_thread)
    alone = _native.PackedGemm(**arrays, **sizes)
    for threads in (2, 4, 8, 16, 32):
        packed = _native.PackedGemm(**arrays, **sizes, threads=threads)
        for batch in (1, 8, 16, 64, 256):
            plan = packed.plan(batch, threads, cost)
            one = alone.plan(batch, 1).microseconds
            work = Work.of_rows(batch, out_features, in_features)
            found = 1e6 * condensed_seconds(one / 1e6, work, threads, SPINNING)
            assert found == pytest.approx(plan.longest + plan.dispatch, rel=0.5), (threads, batch)


@wide
@pytest.mark.parametrize(
    ("channels", "taps", "size"), [(64, 1, 56), (256, 1, 14), (128, 3, 28), (512, 3, 7)]
)
def test_convolutions_are_predicted_as_the_library_plans_them(channels, taps, size):
    rng = np.random.default_rng(0)
    columns = channels * taps * taps
    layer = {
        **rows_of(rng, channels, columns // 10, columns),
        "in_channels": channels,
        "out_channels": channels,
        "kernel_shape": (taps, taps),
        "pads": (taps // 2,) * 4,
        "isa": "avx512f",
    }
    one = _native.PackedConv(**layer).plan((1, size, size), 1).microseconds
    for threads in (2, 4, 8, 16):
        packed = _native.PackedConv(**layer, threads=threads)
        plan = packed.plan((1, size, size), threads, (SPINNING.fixed, SPINNING.per_thread))
        work = Work.of_pixels(size * size, channels, columns)
        found = 1e6 * condensed_seconds(one / 1e6, work, threads, SPINNING)
        assert found == pytest.approx(plan.longest + plan.dispatch, rel=0.5), threads


def test_even_shares_cost_what_the_longest_takes():
    # 4 tiles: three threads need two turns, as do two; four share them out evenly.
    work = Work(tiles=4, blocks=1, fill=0.0)
    assert [condensed_seconds(8.0, work, n, FREE) for n in (1, 2, 3, 4, 64)] == [8, 4, 4, 2, 2]


def test_threads_that_share_a_tile_fill_its_panel_each():
    work = Work(tiles=1, blocks=8, fill=2.0)
    assert condensed_seconds(10.0, work, 4, FREE) == 2.0 + 8.0 / 4


def test_fewer_threads_are_taken_where_more_cost_more_than_they_save():
    work = Work(tiles=64, blocks=1, fill=0.0)
    cost = DispatchCost(0.0, 1.0)
    # 64 µs: 8 threads take 8 + 8.
    assert condensed_seconds(64e-6, work, 64, cost) == pytest.approx(16e-6)
    assert condensed_seconds(1e-6, work, 64, SLEEPING) == 1e-6


def test_dense_layers_scale_as_measured():
    size = 3072 * 768
    assert dense_seconds(427e-6, 1, size, 16, FREE) == pytest.approx(27e-6, rel=0.01)
    assert dense_seconds(8.69, 64, size, 16, FREE) == pytest.approx(1.0)
    assert dense_seconds(5.0, 64, size, 1, SPINNING) == 5.0
    between = dense_seconds(1.0, 64, size, 6, FREE)
    assert 1 / 5.24 < between < 1 / 3.51


def test_a_dense_layer_in_one_cache_gains_no_further_one():
    assert dense_seconds(8.0, 1, 512 * 512, 8, FREE) == pytest.approx(1.0)


def test_a_small_dense_layer_takes_fewer_threads():
    cost = DispatchCost(0.0, 1.0)
    # 16 µs: 4 threads take 16 / 4 + 4, 16 of them 1 + 16.
    assert dense_seconds(16e-6, 1, 64 * 64, 16, cost) == pytest.approx(8e-6)


def test_a_small_dense_layer_is_not_slowed_by_threads():
    assert dense_seconds(1e-6, 1, 64 * 64, 16, SLEEPING) == 1e-6


@pytest.mark.parametrize("batch", [1, 4, 16, 64])
def test_more_threads_never_take_longer(batch):
    for costs in (CostModel(Calibration.shipped(), n) for n in (1, 2, 3, 8, 16)):
        times = np.array(
            [
                [model.dense(batch, 768, 768), model.condensed(batch, 768, 768, 58982)]
                for model in (CostModel(Calibration.shipped()), costs)
            ]
        )
        assert (times[1] <= times[0] * (1 + 1e-12)).all()


def test_one_thread_is_predicted_as_measured():
    one = CostModel(Calibration.shipped())
    table = Calibration.shipped()
    side = round(table.weights[-1] ** 0.5)
    assert one.dense(table.batches[0], side, side) == pytest.approx(table.dense[0][-1])


def test_convolutions_scale_with_the_model_that_holds_them():
    geometry = ConvGeometry(64, 64, (3, 3), pads=(1,) * 4)
    one, many = (CostModel(Calibration.shipped(), n).convolutions for n in (1, 16))
    dense = one.dense(geometry, 1, [56, 56]), many.dense(geometry, 1, [56, 56])
    condensed = tuple(c.condensed(geometry, 1, [56, 56], 3700) for c in (one, many))
    assert 6 < dense[0] / dense[1] <= 8.7
    assert 8 < condensed[0] / condensed[1] <= 16
    assert one.reorder / many.reorder == pytest.approx(8.69)


def test_a_small_layer_may_become_dense_where_threads_are_many():
    """At 80 % and batch 1 sparsity pays on one thread; on 16, dense keeps its weights in caches."""
    size = (768, 768, 118_000)
    ratios = []
    for threads in (1, 16):
        costs = CostModel(Calibration.shipped(), threads)
        ratios.append(costs.dense(1, *size[:2]) / costs.condensed(1, *size))
    assert ratios[0] > ratios[1]


def test_measured_costs_of_a_dispatch_are_taken(calibration):
    slow = DispatchCost(1e5, 0.0)
    DispatchCalibration(describe_cpus(), (2,), slow, slow).save(calibration)
    one, many = (CostModel.of_this_machine(n) for n in (1, 16))
    assert one.condensed(64, 768, 768, 59_000) == many.condensed(64, 768, 768, 59_000)


def test_an_unusable_file_of_them_is_refused(calibration):
    calibration.write_text("{}")
    with pytest.raises(ExportError, match=r"own\.threads\.json is no calibration of threads"):
        Chooser.of("auto", 1, portable=False, threads=2)
    assert Chooser.of("auto", 1, portable=False).costs.threads == 1


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_a_number_of_threads_that_no_session_has_is_refused(threads):
    with pytest.raises(ValueError, match=f"threads is {threads}, it must be 1 to 1024"):
        Chooser.of("auto", 1, portable=False, threads=threads)
