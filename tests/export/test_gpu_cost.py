"""The choice of forms for a GPU."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from fanin.export import ExportError, convert, plan_conversion
from fanin.export.forms import Chooser
from fanin.export.gpu_cost import (
    Gpu,
    GpuCostModel,
    condensed_seconds,
    dense_seconds,
    device_of,
    find_gpu,
    known_gpus,
    load_gpu,
    save_gpu,
)
from fanin.ort_ops.format.condensed import CondensedWeight
from fanin.ort_ops.format.conv_geometry import ConvGeometry

from .onnx_models import node, node_types, sparse, write_model

H200 = known_gpus()["h200"]

# Measured on an H200 in bfloat16, weights beyond the L2: speed of the condensed layer as a multiple
# of cuBLAS's at 1, 2, 4, 8, 16, 32, 64 and 256 rows.
COLD = {
    (4096, 14336, 0.8): (1.54, 1.19, 0.76, 0.46, 0.26, 0.21, 0.20, 0.07),
    (4096, 14336, 0.9): (2.37, 1.80, 1.12, 0.70, 0.37, 0.33, 0.29, 0.10),
    (4096, 14336, 0.95): (2.96, 2.19, 1.33, 0.81, 0.47, 0.45, 0.38, 0.14),
    (14336, 4096, 0.9): (3.00, 1.86, 0.65, 0.35, 0.17, 0.19, 0.17, 0.10),
    (14336, 4096, 0.95): (4.28, 2.38, 0.82, 0.43, 0.23, 0.26, 0.23, 0.14),
    (4096, 4096, 0.9): (2.36, 1.78, 1.17, 0.76, 0.42, 0.31, 0.27, 0.13),
}
ROWS = (1, 2, 4, 8, 16, 32, 64, 256)

# Dense is predicted too fast for these: cuBLAS has a slow TF32 kernel for 3072 → 768, and two cells
# are too close. (in, out, sparsity in %, rows, type)
FOREGONE = {
    *((3072, 768, s, rows, "float32") for s in (80, 90, 95, 99) for rows in (8, 64)),
    (768, 3072, 80, 8, "float32"),
    (4096, 4096, 90, 4, "bfloat16"),
}


def measured():
    for (columns, outputs, sparsity), ratios in COLD.items():
        for rows, ratio in zip(ROWS, ratios, strict=True):
            yield columns, outputs, round(100 * sparsity), rows, "bfloat16", ratio
    path = Path(__file__).parents[2] / "docs/results/gpu-h200.json"
    for case in json.loads(path.read_text())["parts"]["bench"]["cases"]:
        if case["ablated"]:
            continue
        rival = "dense TF32" if case["kind"] == "float32" else "dense bfloat16"
        columns, outputs = case["shape"]
        ratio = case["graph"][rival]["ratio"]
        yield columns, outputs, case["sparsity"], case["batch"], case["kind"], ratio


def chosen(columns, outputs, sparsity, rows, dtype, gpu=H200):
    costs = GpuCostModel(gpu, dtype, "measured")
    stored = round(columns * outputs * (1 - sparsity / 100))
    chooser = Chooser("auto", rows, False, costs)
    seconds = {"condensed": costs.condensed(rows, outputs, columns, stored)}
    return chooser._decide(costs.dense(rows, outputs, columns), seconds, "").form


def test_every_measured_layer_gets_the_form_that_was_faster():
    cells = list(measured())
    assert len(cells) == 136
    for *cell, ratio in cells:
        if ratio < 1:
            assert chosen(*cell) == "dense", (cell, ratio)
        elif tuple(cell) not in FOREGONE:
            assert chosen(*cell) == "condensed", (cell, ratio)


def test_what_is_foregone_is_said_in_full():
    foregone = {
        tuple(cell) for *cell, ratio in measured() if ratio >= 1 and chosen(*cell) == "dense"
    }
    assert foregone == FOREGONE


def test_predicted_times_are_near_the_measured_ones():
    errors = []
    for columns, outputs, sparsity, rows, dtype, ratio in measured():
        if rows <= 16 and (columns, outputs, sparsity / 100) in COLD:
            stored = round(columns * outputs * (1 - sparsity / 100))
            condensed = condensed_seconds(H200, rows, outputs, columns, stored, dtype)
            predicted = dense_seconds(H200, rows, outputs, columns, dtype) / condensed
            errors.append(math.log(predicted / ratio))
    assert np.std(errors) < 0.15
    assert max(map(abs, errors)) < 0.35


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_from_17_rows_on_dense_layers_stay_dense(dtype):
    for size in (64, 1024, 16384):
        for sparsity in (50, 90, 99):
            assert chosen(size, size, sparsity, 17, dtype) == "dense"


def test_layers_that_are_mostly_launch_stay_dense():
    assert chosen(256, 256, 95, 1, "float32") == "dense"
    assert chosen(784, 10, 95, 1, "bfloat16") == "dense"


def test_times_scale_with_what_bounds_them():
    layer = (4, 14336, 4096, 5_872_026, "bfloat16")
    half = replace(H200, multiprocessors=66)
    slow = replace(H200, bytes_per_second=H200.bytes_per_second / 2)
    base = condensed_seconds(H200, *layer)
    one_row = condensed_seconds(H200, 1, *layer[1:])
    assert condensed_seconds(half, *layer) - base == pytest.approx(base - one_row)
    bound = 14336 * 4096 * 2 / H200.bytes_per_second
    dense = dense_seconds(H200, 1, 14336, 4096, "bfloat16")
    assert dense_seconds(slow, 1, 14336, 4096, "bfloat16") - dense == pytest.approx(bound)
    # A clock of half the speed costs what half the multiprocessors cost.
    assert condensed_seconds(replace(H200, hertz=H200.hertz / 2), *layer) == pytest.approx(
        condensed_seconds(half, *layer)
    )


def test_estimates_need_more_gain_and_are_named():
    gpu, source = find_gpu("h100", ())
    assert source == (
        "estimated for NVIDIA H100 SXM from those measured on NVIDIA H200, by multiprocessors, "
        "bandwidth and clock"
    )
    assert (
        GpuCostModel(gpu, "float32", source).min_gain > GpuCostModel(H200, "float32", "").min_gain
    )


@pytest.fixture
def no_calibration(monkeypatch, tmp_path):
    monkeypatch.setenv("FANIN_CALIBRATION", str(tmp_path / "none.json"))
    return tmp_path / "none.cuda.json"


@pytest.mark.usefixtures("no_calibration")
@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200 (9.0)", "NVIDIA H200"),
        ("NVIDIA H100 80GB HBM3 (9.0)", "NVIDIA H100 SXM"),
        ("NVIDIA A100-SXM4-80GB (8.0)", "NVIDIA A100 80GB SXM"),
        ("NVIDIA L40S (8.9)", "NVIDIA L40S"),
        ("NVIDIA L4 (8.9)", "NVIDIA L4"),
        ("NVIDIA GeForce RTX 4090 (8.9)", "NVIDIA GeForce RTX 4090"),
    ],
)
def test_the_gpu_of_the_machine_is_known_by_its_name(device, name):
    assert find_gpu("", (device,))[0].name == name


@pytest.mark.usefixtures("no_calibration")
def test_without_a_known_gpu_the_measured_one_is_taken_and_that_is_said():
    gpu, source = find_gpu("", ())
    assert gpu == H200
    assert source.startswith(
        "measured on NVIDIA H200; this machine has no GPU; another one is named"
    )
    gpu, source = find_gpu("", ("Some Card (6.1)",))
    assert gpu == H200
    assert "Some Card (6.1) is not known: run fanin calibrate --device cuda on it" in source


def test_a_calibration_goes_before_what_is_known(no_calibration):
    own = replace(H200, name="My card", dense_factor=0.5, condensed_factor=2.0)
    save_gpu(own, no_calibration)
    assert load_gpu(no_calibration) == own
    gpu, source = find_gpu("", ("NVIDIA H100 (9.0)",))
    assert (gpu, source) == (own, "measured on My card by fanin calibrate")
    assert chosen(4096, 14336, 90, 1, "bfloat16", gpu) == "dense"
    assert chosen(4096, 14336, 90, 1, "bfloat16") == "condensed"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format_version": 1, "name": "x"}'])
def test_a_damaged_calibration_is_refused_with_the_remedy(text, no_calibration):
    no_calibration.write_text(text)
    with pytest.raises(ExportError, match=r"none.cuda.json is no calibration .* --device cuda"):
        find_gpu("", ())


def test_a_gpu_of_impossible_numbers_is_refused():
    with pytest.raises(ValueError, match="hertz is 0, it must be a positive number"):
        replace(H200, hertz=0)
    with pytest.raises(TypeError):
        Gpu(name="x")  # type: ignore[call-arg]


def test_devices_have_few_names():
    assert device_of("cpu") == ("cpu", "")
    assert device_of("cuda") == ("cuda", "")
    assert device_of("cuda:h100") == ("cuda", "h100")
    for wrong in ("gpu", "cuda:", "cpu:0", ""):
        with pytest.raises(ValueError, match="it must be cpu, cuda or cuda:NAME of a GPU"):
            device_of(wrong)


def network(path: Path) -> Path:
    nodes = [node("MatMul", ["x", "w"], "h"), node("Relu", ["h"], "r"), node("MatMul", ["r", "v"])]
    arrays = {"w": sparse((512, 2048)), "v": sparse((2048, 512))}
    return write_model(path, nodes, arrays, x=("batch", 512), y=("batch", 512))


def mark(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def test_a_file_names_the_device_that_its_layers_were_chosen_for(tmp_path):
    source, out = network(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    report = convert(source, out, device="cuda:h200", batch=256)
    assert node_types(out) == ["MatMul", "Relu", "MatMul"]
    assert mark(out) == {"fanin.device": "cuda"}
    assert report.device == "cuda"
    assert "chosen for cuda by times in TF32 measured on NVIDIA H200" in (
        str(report.to_rich_table().caption).replace("\n", " ")
    )
    convert(source, out, policy="condensed", device="cuda:h200")
    assert mark(out) == {}
    convert(source, out, batch=1)
    assert mark(out) == {"fanin.device": "cpu"}


def test_a_source_in_half_precision_is_chosen_for_in_it(tmp_path):
    half = tmp_path / "half.onnx"
    convert(network(tmp_path / "in.onnx"), half, policy="dense", precision="float16", verify=False)
    plan = plan_conversion(half, device="cuda:h200", batch=8)
    wanted = GpuCostModel(H200, "float16", "")
    weight = CondensedWeight.from_dense(np.ascontiguousarray(sparse((512, 2048)).T))
    ratio = wanted.dense(8, 2048, 512) / wanted.condensed(8, 2048, 512, weight.values.size)
    assert plan[0].reason == f"condensed predicted {ratio:.2f}× as fast at 8 rows"


def test_convolutions_and_8_bit_layers_stay_dense_on_a_gpu():
    chooser = Chooser("auto", 1, False, GpuCostModel(H200, "float32", ""))
    geometry = ConvGeometry(64, 64, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1)
    weight = CondensedWeight.from_dense(sparse((64, 576), 0.95))
    for batch in (1, 8, 32):
        assert chooser.choose_conv(weight, geometry, (batch, 64, 28, 28)).form == "dense"
    choice = chooser.choose_quantized(weight, (1, 576), None, "static")
    assert (choice.form, choice.reason) == ("dense", "the ops in 8 bits run on CPUs only")


def test_contradictions_are_refused(tmp_path):
    source, out = network(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    with pytest.raises(ValueError, match="threads is 4, but layers are chosen for a GPU"):
        convert(source, out, device="cuda", threads=4)
    with pytest.raises(ValueError, match=r"no GPU 'h20' is known; there are h200, .* you mean"):
        convert(source, out, device="cuda:h20")
    with pytest.raises(ValueError, match="device is 'gpu', it must be cpu"):
        convert(source, out, device="gpu")
