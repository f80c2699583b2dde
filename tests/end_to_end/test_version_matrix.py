"""One build of the library and the same files with every supported onnxruntime.

Each release gets a virtual environment of NumPy and onnxruntime, kept in .cache/ort-matrix.
"""

import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from fanin import ort_ops
from fanin.export.onnx_op import condensed_layer_model
from fanin.export.onnx_quantized_function import (
    condensed_gemm_integer_to_float_function,
    dynamic_quantize_condensed_gemm_function,
    qlinear_condensed_conv_function,
    qlinear_condensed_gemm_function,
)
from fanin.ort_ops.format.condensed import CondensedWeight

from ..ort_ops._models import Layer, assert_close, open_session, spec_of
from ..ort_ops._quantized import DYNAMIC, QLINEAR_CONV, QLINEAR_GEMM, TO_FLOAT, random_node

pytestmark = pytest.mark.matrix

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "ort-matrix"
PROGRAM = Path(__file__).with_name("_run_models.py")
NEWEST = "newest"
# The lowest declared release, the last of every minor version since, and the newest.
WITH_NUMPY_2 = (
    *("1.19.2", "1.20.1", "1.21.1", "1.22.1", "1.23.2", "1.24.4", "1.25.1", "1.26.0"),
    *("1.27.0", "1.28.0", "1.29.0", "1.30.0", "1.31.1"),
)
# onnxruntime before 1.19 was built against NumPy 1 and requires it.
REQUIREMENTS = {
    **{release: [f"onnxruntime=={release}", "numpy<2"] for release in ("1.17.0", "1.18.1")},
    **{release: [f"onnxruntime=={release}"] for release in WITH_NUMPY_2},
    NEWEST: ["--upgrade", "onnxruntime"],
}
TOO_OLD = {"1.16.3": ["onnxruntime==1.16.3", "numpy<2"]}
GPU_WHEEL = "gpu-1.31.1"  # 250 MB; its CUDA provider needs CUDA 13
GPU = {GPU_WHEEL: ["onnxruntime-gpu==1.31.1"]}
needs_old_python = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="onnxruntime before 1.20 has no wheel for this Python"
)
RELEASES = [
    pytest.param(release, marks=needs_old_python if release < "1.20" else ())
    for release in REQUIREMENTS
]

QUANTIZED = {
    QLINEAR_GEMM: qlinear_condensed_gemm_function,
    QLINEAR_CONV: qlinear_condensed_conv_function,
    TO_FLOAT: condensed_gemm_integer_to_float_function,
    DYNAMIC: dynamic_quantize_condensed_gemm_function,
}

LAYER = Layer.random(400, 300, 40, active=250, padded=True)


def python_of(release: str) -> Path:
    """The interpreter of the release's environment, which is created if missing."""
    folder = CACHE / f"{release}-py{sys.version_info.major}.{sys.version_info.minor}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
    if release == NEWEST or not complete.exists():
        requirements = {**REQUIREMENTS, **TOO_OLD, **GPU}[release]
        install = [python, "-m", "pip", "install", "--quiet", *requirements]
        subprocess.run(install, check=True)
        complete.touch()
    return python


def weight_of(layer: Layer) -> CondensedWeight:
    return CondensedWeight(
        values=layer.values,
        indices=layer.indices,
        rows=layer.rows,
        bias=layer.bias,
        in_features=layer.in_features,
        out_features=layer.out_features,
    )


def save(folder: Path, name: str, model: onnx.ModelProto, **feeds: np.ndarray) -> None:
    (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    np.savez(folder / f"{name}.npz", **feeds)


def save_exported_models(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """Models as the exporter writes them, function included; their inputs by name."""
    inputs = {}
    for batch in (None, 1, 64):
        for with_residual in (False, True):
            name = f"exported-{batch}-{with_residual}"
            x = LAYER.x(batch or 5)
            residual = np.ones((len(x), LAYER.out_features), np.float32) if with_residual else None
            feeds = {"x": x} if residual is None else {"x": x, "residual": residual}
            model = condensed_layer_model(
                weight_of(LAYER), batch, clip_min=-1.0, with_residual=with_residual
            )
            save(folder, name, model, **feeds)
            inputs[name] = x, residual
    return inputs


def save_quantized_models(folder: Path) -> dict[str, np.ndarray]:
    """Models of the ops on 8-bit integers, function included; what each computes."""
    results = {}
    for op, function in QUANTIZED.items():
        for seed in range(4):
            node = random_node(op, seed, largest=64)
            name = f"{op}-{seed}"
            save(folder, name, node.build([function(20)]), X=node.x)
            results[name] = node.expected()
    return results


def save_op_models(folder: Path) -> Mapping[str, str | None]:
    """Models that use all functions of the runtime's interface; the error each must raise."""
    spec, x = spec_of(LAYER), LAYER.x(70)
    fed = replace(spec, fed=dict.fromkeys((*LAYER.weights, "residual")))
    save(folder, "many", spec.build(), X=x)
    save(folder, "int32", spec.with_arrays(indices=LAYER.indices.astype(np.int32)).build(), X=x)
    save(folder, "vector", replace(spec, x_shape=(LAYER.in_features,)).build(), X=x[0])
    save(folder, "unnamed-dimension", replace(spec, x_shape=(None, 400)).build(), X=x)
    save(folder, "unknown-rank", replace(spec, x_shape=None).build(), X=x.reshape(7, 2, 5, 400))
    save(folder, "empty", spec.build(), X=x[:0])
    save(folder, "twice-registered", spec.build(), X=x)
    save(folder, "fed", fed.build(), X=x, **LAYER.weights, residual=np.zeros(1, np.float32))
    sound = dict.fromkeys(path.stem for path in folder.glob("*.onnx"))

    unnamed = replace(spec.with_attributes(out_features=7), node_name="")
    save(folder, "bad-unnamed-node", unnamed.build(), X=x)
    save(folder, "bad-attribute", spec.with_attributes(clip_min="0").build(), X=x)
    save(folder, "bad-index-type", spec.with_arrays(indices=LAYER.indices.astype("i8")).build())
    outside = {**LAYER.weights, "rows": LAYER.rows + 300}
    save(folder, "bad-fed", fed.build(), X=x, **outside, residual=np.zeros(1, np.float32))
    return sound | {
        "bad-unnamed-node": "output 'Y': bias has shape [300], out_features is 7",
        "bad-attribute": "'the_layer': attribute clip_min must be a FLOAT",
        "bad-index-type": "'the_layer': indices is int64, it must be uint16 or int32",
        "bad-fed": "'the_layer': rows[0] is",
    }


def run_in(release: str, folder: Path, *library: Path) -> str:
    """Run the folder's models with a release; returns the program's output."""
    command = [python_of(release), PROGRAM, folder, *library]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("release", RELEASES)
def test_the_same_library_gives_bitwise_equal_results(release, tmp_path):
    inputs = save_exported_models(tmp_path)
    expected = save_op_models(tmp_path) | dict.fromkeys(inputs)
    version = run_in(release, tmp_path, ort_ops.get_library_path())
    assert release in (version, NEWEST)
    for name, error in expected.items():
        if error is None:
            with np.load(tmp_path / f"{name}.npz") as feeds:
                here = open_session(str(tmp_path / f"{name}.onnx"), threads=2)
                y = here.run(None, dict(feeds))[0]
            np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), y, err_msg=name)
        else:
            assert error in (tmp_path / f"{name}.txt").read_text()
    for name, (x, residual) in inputs.items():
        y = np.load(tmp_path / f"{name}.npy")
        assert_close(y, LAYER, x, residual, clip_min=-1.0)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("library", [True, False], ids=["library", "function"])
def test_quantized_ops_and_their_functions_give_the_definition(release, library, tmp_path):
    wanted = save_quantized_models(tmp_path)
    run_in(release, tmp_path, *([ort_ops.get_library_path()] if library else []))
    for name, expected in wanted.items():
        y = np.load(tmp_path / f"{name}.npy")
        if library or expected.dtype != np.float32:
            np.testing.assert_array_equal(y, expected, err_msg=name)
        else:  # fused kernels may contract products and sums
            np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("release", RELEASES)
def test_the_same_file_runs_without_the_library(release, tmp_path):
    inputs = save_exported_models(tmp_path)
    run_in(release, tmp_path)
    for name, (x, residual) in inputs.items():
        y = np.load(tmp_path / f"{name}.npy")
        expected = LAYER.expected(x, residual, clip_min=-1.0)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@needs_old_python
def test_an_older_runtime_is_refused_with_the_versions(tmp_path):
    save(tmp_path, "layer", spec_of(LAYER).build(), X=LAYER.x(1))
    run_in("1.16.3", tmp_path, ort_ops.get_library_path())
    text = (tmp_path / "layer.txt").read_text()
    assert "need onnxruntime 1.17 or newer, this is onnxruntime 1.16.3" in text
    assert "pip install --upgrade onnxruntime" in text
