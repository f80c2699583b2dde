"""Measuring a GPU for the exporter, on engines that are made up."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy import SessionError
from fanin.deploy.bench.engines.cuda import Device
from fanin.deploy.bench.engines.protocol import EngineUnavailableError
from fanin.deploy.bench.requirements import RequirementError
from fanin.deploy.bench.suites import calibrate_cuda as module
from fanin.deploy.bench.suites.calibrate_cuda import CudaCalibrationSpec, calibrate_cuda
from fanin.export.gpu_cost import GpuCostModel
from fanin.export.gpu_kernels import KERNELS, Layer, dense_seconds, family_of
from fanin.export.gpus import find_gpu, load_gpu, save_gpu

CARD = {
    "device": "Some Card",
    "compute_capability": "8.9",
    "multiprocessors": 50,
    "hertz": 2e9,
    "l2_bytes": 32 << 20,
    "bytes_per_second": 4e11,
    "bfloat16_macs_per_second": 5e13,
}
SMALL = CudaCalibrationSpec(shapes=((512, 768), (768, 512)), sparsities=(0.9,), batches=(1, 8))
KERNELS_OF = {
    "float32": ("f32-gemm-stream-cuda",),
    "float16": ("f16-gemm-stream-cuda", "f16-gemm-expand-cuda"),
    "bfloat16": ("bf16-gemm-stream-cuda", "bf16-gemm-expand-cuda", "bf16-conv-unheard-of-cuda"),
}


def fake_bench(dense, stream, expand, card=CARD):
    """A card whose layers take that many times the predicted seconds."""
    factors = {"gemm-stream": stream, "gemm-expand": expand, "conv-unheard-of": 1.0}

    def bench(spec, *, progress):
        progress("layer", 0.5)
        assert spec.launches == ("ring",)
        gpu = module._gpu(card)
        ((columns, outputs),), (kind,) = spec.shapes, spec.activations
        assert spec.values == kind
        cases = []
        for batch in spec.batches:
            stored = round(columns * outputs * (1 - spec.sparsities[0]))
            layer = Layer(batch, outputs, columns, stored, kind)
            rival = "dense-tf32" if kind == "float32" and gpu.has_bfloat16 else "dense"
            times = [(rival, "linear", dense * dense_seconds(gpu, layer))]
            for name in KERNELS_OF[kind]:
                family = family_of(name)
                cost = KERNELS.get(family)
                seconds = factors[family] * (cost.seconds(gpu, layer) if cost else 1.0)
                times.append((f"kernel-{family}", f"{name}, ring", seconds))
            engines = [
                SimpleNamespace(name=name, form=form, run=object(), run_seconds=seconds)
                for name, form, seconds in times
            ]
            engines.append(SimpleNamespace(name="kernel-panel", form="f-gemm-panel-cuda", run=None))
            cases.append(
                SimpleNamespace(batch=batch, sparsity=0.9, facts={"type": kind}, engines=engines)
            )
        return SimpleNamespace(facts={"gpu": card}, cases=cases)

    return bench


def test_factors_are_those_of_the_card(monkeypatch):
    monkeypatch.setattr(module, "bench_cuda", fake_bench(1.5, 0.75, 2.0))
    seen = []
    gpu = calibrate_cuda(SMALL, lambda title, done: seen.append((title, done)))
    assert (gpu.name, gpu.multiprocessors, gpu.shared_bytes) == ("Some Card", 50, 101_376)
    assert (gpu.capability, gpu.float32_macs, gpu.half_macs) == (89, 2.5e13, 5e13)
    # Nothing of the kernel that failed, nor of the one that no cost is known of.
    assert gpu.factors == pytest.approx({"dense": 1.5, "gemm-stream": 0.75, "gemm-expand": 2.0})
    assert seen == [("layer", 0.125), ("layer", 0.375), ("layer", 0.625), ("layer", 0.875)]


def test_a_card_without_bfloat16_is_measured_in_float16(monkeypatch):
    facts = {key: value for key, value in CARD.items() if not key.startswith("bfloat16")}
    card = facts | {
        "compute_capability": "7.5",
        "float16_macs_per_second": 2e13,
        "float32_macs_per_second": 4e12,
    }
    monkeypatch.setattr(module, "bench_cuda", fake_bench(1.0, 1.0, 1.0, card))
    gpu = calibrate_cuda(SMALL)
    assert (gpu.capability, gpu.float32_macs, gpu.half_macs) == (75, 4e12, 2e13)
    assert set(gpu.factors) == {"dense", "gemm-stream", "gemm-expand"}


def test_where_layers_differ_the_factors_are_careful(monkeypatch):
    def bench(spec, *, progress):
        fast = spec.shapes == ((512, 768),)
        of_shape = fake_bench(1.0, 3.0, 3.0) if fast else fake_bench(2.0, 1.0, 1.0)
        return of_shape(spec, progress=progress)

    monkeypatch.setattr(module, "bench_cuda", bench)
    gpu = calibrate_cuda(SMALL)
    assert gpu.factors["dense"] == pytest.approx(1.0)
    assert gpu.factors["gemm-stream"] == pytest.approx(3.0)


def test_the_kernels_run_in_the_emulation_and_the_exporter_reads_what_came_out(
    monkeypatch, tmp_path
):
    """All but the card is what runs on a GPU; times are those of the host, and mean nothing."""
    pytest.importorskip("torch")
    pytest.importorskip("fanin.ort_ops._cuda_emulation", reason="built without the emulation")
    monkeypatch.setattr(Device, "facts", lambda _: CARD | {"float32_macs_per_second": 1e12})
    spec = CudaCalibrationSpec(
        shapes=((192, 32),),
        sparsities=(0.9,),
        batches=(1, 6),
        activations=("bfloat16",),
        rounds=1,
        emulated=True,
    )
    gpu = calibrate_cuda(spec)
    assert set(gpu.factors) == {"dense", "gemm-delta", "gemm-stream", "gemm-expand"}
    monkeypatch.setenv("FANIN_CALIBRATION", str(tmp_path / "own.json"))
    save_gpu(gpu, tmp_path / "own.cuda.json")
    found, _ = find_gpu("", ())
    costs = GpuCostModel(found, "bfloat16", unproven=True)
    counted = costs.kernel(8, 4096, 4096, 1_677_722)
    assert counted.name == "bf16-gemm-expand-cuda"
    assert (counted.measured, counted.origin) == (True, "measured on Some Card")


@pytest.mark.parametrize("error", [EngineUnavailableError("no card"), RequirementError("no card")])
def test_without_a_gpu_nothing_is_written_and_one_sentence_says_why(monkeypatch, tmp_path, error):
    def bench(spec, *, progress):  # noqa: ARG001
        raise error

    monkeypatch.setattr(module, "bench_cuda", bench)
    with pytest.raises(SessionError, match="no GPU can be measured here: no card"):
        calibrate_cuda()
    out = tmp_path / "own.json"
    done = CliRunner().invoke(app, ["calibrate", "--device", "cuda", "--out", str(out)])
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "no card. Export with --device cuda:NAME of a known GPU." in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_command_writes_what_exports_read(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "bench_cuda", fake_bench(1.5, 0.75, 2.0))
    out = tmp_path / "own.json"
    done = CliRunner().invoke(app, ["calibrate", "--device", "cuda", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert load_gpu(tmp_path / "own.cuda.json").factors["dense"] == pytest.approx(1.5)
    monkeypatch.setenv("FANIN_CALIBRATION", str(out))
    assert find_gpu("", ()) == (load_gpu(tmp_path / "own.cuda.json"), "")


@pytest.mark.parametrize("options", [["--threads", "2"], ["--of", "layers"]])
def test_options_of_the_cpu_are_refused_beside_a_gpu(options):
    done = CliRunner().invoke(app, ["calibrate", "--device", "cuda", *options])
    assert done.exit_code == 2
    assert "a GPU is measured by itself" in done.stderr.replace("\n", " ")
