from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fanin.export import CondensedWeight

TEXT = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")


def test_code_in_the_document_runs():
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(block, "docs/formats.md", "exec"), names)


def test_sizes_in_the_comparison_of_formats_are_true():
    rows, columns, fan_in = 768, 3072, 307
    weight = np.zeros((rows, columns), np.float32)
    weight[:, :fan_in] = 1
    entries = rows * fan_in
    bias = 4 * rows
    sizes = {
        "condensed, uint16": CondensedWeight.from_dense(weight).nbytes,
        "CSR, int32 columns": 8 * entries + 4 * (rows + 1) + bias,
        "bitmap and packed values": 4 * entries + rows * columns // 8 + bias,
        "differences of columns as uint8": 5 * entries + bias,
        "ONNX `SparseTensorProto`": 12 * entries + bias,
    }
    for form, size in sizes.items():
        stated = re.search(rf"\| {re.escape(form)} \| ([\d.]+) MB", TEXT)
        assert stated, form
        assert float(stated[1]) == round(size / 1e6, 2), form
    assert f"dense: {round((weight.nbytes + bias) / 1e6, 2)} MB" in TEXT
