"""The benchmark of layers on a GPU, through the emulation; what is emulated is what is measured."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy.bench import load_result, report_of, save_result
from fanin.deploy.bench.engines import cuda as cuda_module
from fanin.deploy.bench.engines.cuda_binding import EmulatedGemm, open_binding
from fanin.deploy.bench.engines.protocol import EngineUnavailableError
from fanin.deploy.bench.suites import cuda as suite_module
from fanin.deploy.bench.suites.cuda import BenchCudaSpec, bench_cuda

pytest.importorskip("torch")
pytest.importorskip("fanin.ort_ops._cuda_emulation", reason="built without the emulation")

SMALL = {
    "emulated": True,
    "shapes": ((64, 40),),
    "sparsities": (0.9,),
    "batches": (1, 20),
    "launches": ("stream",),
    "convolutions": False,
    "conditions": (),
    "rounds": 2,
}


@pytest.fixture(scope="module")
def result():
    spec = BenchCudaSpec(**SMALL, ablated=(0.25,), activations=("float32", "bfloat16"))
    return bench_cuda(spec)


def test_every_engine_computes_the_layer(result):
    assert [case.batch for case in result.cases] == [1, 20, 1, 20]
    float32, bfloat16 = (case.engines for case in (result.cases[0], result.cases[2]))
    assert {one.name for one in float32} == {
        "dense",
        "condensed",
        "kernel-delta",
        "kernel-stream",
        "kernel-panel",
        "dense-tf32",
        "dense-bfloat16",
        "csr",
        "structured",
        "session-condensed",
        "session-dense",
    }
    assert {one.precision for one in bfloat16} == {"bfloat16"}
    for case in result.cases:
        assert [one.excluded for one in case.engines if one.name != "csr"] == [None] * (
            len(case.engines) - 1
        )
        assert case.comparison("condensed").run_ratio.count == 2


def test_the_layer_is_what_was_asked_for(result):
    case = result.cases[1]
    assert case.sparsity == pytest.approx(1 - 30 * case.facts["fan_in"] / (64 * 40))
    assert case.facts["kernel"] == "f32-gemm-panel32-cuda"
    assert result.cases[0].facts["kernel"] == "f32-gemm-stream-cuda"
    assert case.title == "64 → 40, 90 %, batch 20, float32, stream, 25% ablated"


def test_a_result_is_read_as_it_was_written_and_reported(result, tmp_path):
    save_result(result, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text())["kind"] == "cuda"
    assert load_result(tmp_path).to_dict() == result.to_dict()
    text = (tmp_path / "results.md").read_text()
    assert "the host, emulated: times mean nothing" in text
    assert "kernel-panel" in text


def test_an_output_that_the_kernel_does_not_write_excludes_it(monkeypatch):
    def writes_nothing(self, **_):
        """Leave y as it is."""

    monkeypatch.setattr(EmulatedGemm, "run", writes_nothing)
    (case,) = bench_cuda(
        BenchCudaSpec(**{**SMALL, "batches": (3,)}, activations=("float32",))
    ).cases
    excluded = {one.name for one in case.engines if one.excluded}
    assert excluded == {"condensed", "kernel-delta", "kernel-stream", "kernel-panel"}
    assert "wrong by" in case.engine("condensed").excluded


def test_convolutions_run_in_sessions(monkeypatch):
    monkeypatch.setattr(suite_module, "_CONV_BATCHES", (1,))
    case = bench_cuda(BenchCudaSpec(**{**SMALL, "convolutions": True, "batches": (1,)})).cases[-1]
    assert case.title == "convolution 1×1, 256 → 512, stride 2, batch 1"
    assert [(one.name, one.excluded) for one in case.engines] == [
        ("dense", None),
        ("condensed", None),
    ]


def test_no_case_begins_when_the_time_is_over():
    result = bench_cuda(BenchCudaSpec(**SMALL, budget=0.0))
    assert result.cases == ()
    assert len(result.facts["left_out"]) == 4
    assert report_of(result).notes[0] == "4 cases are left out, no time was left"


def test_times_are_of_one_call_and_its_last_input_is_the_first_number():
    device = cuda_module.Device(emulated=True)
    seen = []

    def make(x):
        def call():
            seen.append(float(x[0, 0]))
            return x

        return call

    engine = cuda_module.CudaEngine("own", "", device, "stream", make)
    engine.prepare({"x": np.zeros((1, 4), np.float32)})
    times = engine.time_runs(0.0, 3, (1.0, 2.0))
    assert seen == [1.0, 2.0, 1.0]
    assert len(times) == 3
    assert min(times) >= 1
    assert engine.output()[0][0, 0] == 1.0


def test_without_a_device_the_command_says_so(monkeypatch, tmp_path):
    def no_device(**_):
        raise EngineUnavailableError("there is no CUDA device")

    monkeypatch.setattr(cuda_module, "open_binding", no_device)
    done = CliRunner().invoke(app, ["bench", "cuda", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "there is no CUDA device" in done.output


def test_a_build_without_the_kernels_names_what_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fanin.ort_ops._cuda", None)
    with pytest.raises(EngineUnavailableError, match=r"without CUDA kernels; see docs/cuda\.md"):
        open_binding(emulated=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activations": ("float64",)}, "there are float32, float16, bfloat16"),
        ({"launches": ("eager",)}, "there are graph, stream, call"),
        ({"sparsities": (1.0,)}, r"sparsities are \(1.0,\)"),
        ({"ablated": (1.0,)}, r"ablated shares are \(1.0,\)"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        BenchCudaSpec(**changes)


def test_a_ring_calls_copies_of_the_weights_in_turn(monkeypatch):
    packed = []
    before = EmulatedGemm.__init__

    def noted(self, **arguments):
        packed.append(arguments["bias"].tobytes())
        before(self, **arguments)

    monkeypatch.setattr(EmulatedGemm, "__init__", noted)
    spec = {**SMALL, "launches": ("ring",), "batches": (8,)}
    (case,) = bench_cuda(BenchCudaSpec(**spec)).cases[:1]
    excluded = [(one.name, one.excluded) for one in case.engines]
    assert excluded == [("dense", None), ("condensed", None)]
    assert len(set(packed)) == 2
