"""Pictures of the page about a model: heat maps of masks, and histograms of fan-ins."""

from __future__ import annotations

import base64
import re
import struct
import zlib

import numpy as np
import pytest

from fanin.export import CondensedWeight
from fanin.export.html_report.charts import fan_in_chart
from fanin.export.html_report.heat_map import ABLATED, STEPS, picture
from fanin.export.mask_summary import MOST_COLUMNS, MOST_ROWS, MaskSummary

from ._mask_summaries import constant_fan_in, summary
from ._page import parse
from .onnx_models import sparse


def pixels(image: str) -> tuple[np.ndarray, np.ndarray]:
    """The places and the palette of the PNG in an <img>."""
    data = base64.b64decode(re.search(r'base64,([^"]*)"', image)[1])
    chunks, at = {}, 8
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        content = data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(
            kind + content
        )
        chunks[kind], at = content, at + 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    return lines[:, 1:], np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)


def test_heat_map_has_a_step_for_the_density_of_each_block():
    kept = np.random.default_rng(0).random((300, 500)) < 0.2
    found = summary(kept)
    places, palette = pixels(picture(found))
    assert places.shape == (MOST_ROWS, MOST_COLUMNS)
    expected = np.ceil(found.density / found.density.max() * STEPS - 1e-6)
    np.testing.assert_array_equal(places, expected)
    darkness = -palette[: STEPS + 1].astype(int).sum(axis=1)
    assert (np.diff(darkness) > 0).all()


def test_ablated_neurons_have_a_margin_of_their_own_color():
    kept = np.ones((10, 64), bool)
    kept[3] = False
    places, palette = pixels(picture(summary(kept)))
    margin = palette[places[:, 0]]
    assert [tuple(color) == ABLATED for color in margin] == [row == 3 for row in range(10)]
    assert len(set(places[3, -64:])) == 1
    assert places[3, -1] != places[2, -1]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(5, 7), (200, 3), (97, 300)])
def test_density_of_blocks_is_that_of_the_mask(shape: tuple[int, int], order: str):
    kept = np.asarray(np.random.default_rng(2).random(shape) < 0.3, order=order)
    kept[1] = False
    found = summary(kept)
    rows, columns = min(shape[0], MOST_ROWS), min(shape[1], MOST_COLUMNS)
    down = np.linspace(0, shape[0], rows + 1).round().astype(int)
    across = np.linspace(0, shape[1], columns + 1).round().astype(int)
    for i in range(rows):
        band = kept[down[i] : down[i + 1]]
        assert found.ablated[i] == pytest.approx(1 - band.any(axis=1).mean())
        for j in range(columns):
            block = band[:, across[j] : across[j + 1]]
            assert found.density[i, j] == pytest.approx(block.mean())
    histogram = dict(zip(found.fan_ins.tolist(), found.neurons.tolist(), strict=True))
    counts = kept.sum(axis=1)
    assert histogram == {n: int((counts == n).sum()) for n in set(counts.tolist())}


def test_condensed_weight_has_the_summary_of_its_mask():
    weight = sparse((150, 140))
    weight[7] = 0
    found = MaskSummary.of_condensed(CondensedWeight.from_dense(weight))
    expected = summary(weight != 0)
    for name in ("density", "ablated", "fan_ins", "neurons"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert found.shape == expected.shape


def test_coarser_summary_keeps_the_mean():
    found = summary(np.random.default_rng(0).random((96, 128)) < 0.3)
    half = found.coarser(48, 64)
    assert half.density.shape == (48, 64)
    np.testing.assert_allclose(
        half.density, found.density.reshape(48, 2, 64, 2).mean(axis=(1, 3)), rtol=1e-6
    )


def test_constant_fan_in_is_said_in_words():
    kept = constant_fan_in((40, 64), 5, ablated=3) != 0
    chart = fan_in_chart(summary(kept))
    assert chart == "<p>Every active neuron has 5 weights. 3 of 40 neurons are ablated.</p>"


def test_fan_ins_that_differ_have_a_histogram():
    kept = np.tri(8, 12, 2, dtype=bool)  # 3, 4, ... 10 weights
    kept[0] = kept[1]
    tree = parse(fan_in_chart(summary(kept)))
    heights = [float(bar.attributes["height"]) for bar in tree.all("rect")]
    assert heights == [40.0] + [20.0] * 6
    assert "Neurons have 4 to 10 weights, the median is 6." in tree.text
