"""Made-up layers: fan-in, ablation, where columns lie, and that the seed decides."""

import numpy as np
import pytest

from fanin.deploy.bench.suites.random_layer import random_sparse_layer


def layer(mask="random", seed=0, in_features=64, out_features=40, active=30, fan_in=9):
    rng = np.random.default_rng(seed)
    return random_sparse_layer(mask, rng, in_features, out_features, active, fan_in)


@pytest.mark.parametrize("mask", ["random", "clustered", "blocks"])
@pytest.mark.parametrize("fan_in", [1, 9, 33, 64])
def test_every_active_neuron_has_the_fan_in_and_distinct_columns(mask, fan_in):
    weight = layer(mask, fan_in=fan_in)
    counts = np.count_nonzero(weight.to_dense(), axis=1)
    assert sorted(set(counts)) == [0, fan_in]
    assert np.count_nonzero(counts) == 30
    assert weight.is_entry().all()


def test_random_columns_are_all_equally_likely():
    # Both ways of drawing: few of many columns, and many of few.
    for fan_in, in_features in [(4, 64), (20, 32)]:
        weight = layer(in_features=in_features, out_features=4000, active=4000, fan_in=fan_in)
        counts = np.bincount(weight.indices.ravel(), minlength=in_features)
        mean = 4000 * fan_in / in_features
        assert abs(counts - mean).max() < 6 * np.sqrt(mean)


def test_clustered_columns_lie_in_windows_that_are_everywhere():
    weight = layer("clustered", in_features=1000, out_features=500, active=500, fan_in=10)
    first, last = weight.indices[:, 0].astype(int), weight.indices[:, -1].astype(int)
    assert (last - first).max() < 20
    assert first.min() < 50
    assert last.max() >= 950


def test_blocks_are_of_4_columns_and_only_the_last_one_is_filled_in_part():
    weight = layer("blocks", in_features=64, out_features=2000, active=2000, fan_in=10)
    blocks = weight.indices[:, :8].astype(int).reshape(2000, 2, 4)
    assert (blocks[:, :, 0] % 4 == 0).all()
    assert (blocks == blocks[:, :, :1] + np.arange(4)).all()
    last = weight.indices[:, 8:].astype(int)
    assert (last == last[:, :1] // 4 * 4 + [0, 1]).all()
    assert len(np.unique(blocks)) == 60  # the first two of three blocks: all but the last columns
    with pytest.raises(ValueError, match="in_features is 66; a mask of blocks needs a multiple of"):
        layer("blocks", in_features=66)


def test_the_seed_decides_the_layer():
    np.testing.assert_array_equal(layer(seed=3).to_dense(), layer(seed=3).to_dense())
    assert (layer(seed=3).to_dense() != layer(seed=4).to_dense()).any()


def test_an_unknown_mask_is_refused():
    with pytest.raises(
        ValueError, match="unknown mask 'magic'; there are random, clustered, blocks"
    ):
        layer("magic")
