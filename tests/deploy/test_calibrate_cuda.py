"""Measuring a GPU for the exporter, on engines that are made up."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fanin.cli import app
from fanin.deploy import SessionError
from fanin.deploy.bench.engines.protocol import EngineUnavailableError
from fanin.deploy.bench.requirements import RequirementError
from fanin.deploy.bench.suites import calibrate_cuda as module
from fanin.deploy.bench.suites.calibrate_cuda import CudaCalibrationSpec, calibrate_cuda
from fanin.export.gpu_cost import condensed_seconds, dense_seconds, find_gpu, load_gpu

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


def fake_bench(dense, condensed):
    """A card whose layers take that many times the predicted seconds."""

    def bench(spec, *, progress):
        progress("layer", 0.5)
        gpu = module._gpu(CARD)
        ((columns, outputs),) = spec.shapes
        cases = []
        for kind in spec.activations:
            for batch in spec.batches:
                stored = round(columns * outputs * (1 - spec.sparsities[0]))
                size = (batch, outputs, columns)
                seconds = {
                    "dense-tf32" if kind == "float32" else "dense": dense
                    * dense_seconds(gpu, *size, kind),
                    "condensed": condensed * condensed_seconds(gpu, *size, stored, kind),
                }
                engine = lambda name, seconds=seconds: SimpleNamespace(  # noqa: E731
                    run_seconds=seconds[name]
                )
                case = {"batch": batch, "sparsity": 0.9, "facts": {"type": kind}, "engine": engine}
                cases.append(SimpleNamespace(**case))
        return SimpleNamespace(facts={"gpu": CARD}, cases=cases)

    return bench


def test_factors_are_those_of_the_card(monkeypatch):
    monkeypatch.setattr(module, "bench_cuda", fake_bench(1.5, 0.75))
    seen = []
    gpu = calibrate_cuda(SMALL, lambda title, done: seen.append((title, done)))
    assert (gpu.name, gpu.multiprocessors, gpu.shared_bytes) == ("Some Card", 50, 101_376)
    assert (gpu.tf32_macs, gpu.half_macs) == (2.5e13, 5e13)
    assert gpu.dense_factor == pytest.approx(1.5)
    assert gpu.condensed_factor == pytest.approx(0.75)
    assert gpu.measured
    assert seen == [("layer", 0.25), ("layer", 0.75)]


def test_where_layers_differ_the_factors_are_careful(monkeypatch):
    def bench(spec, *, progress):
        fast = spec.shapes == ((512, 768),)
        return fake_bench(1.0 if fast else 2.0, 3.0 if fast else 1.0)(spec, progress=progress)

    monkeypatch.setattr(module, "bench_cuda", bench)
    gpu = calibrate_cuda(SMALL)
    assert gpu.dense_factor == pytest.approx(1.0)
    assert gpu.condensed_factor == pytest.approx(3.0)


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
    monkeypatch.setattr(module, "bench_cuda", fake_bench(1.5, 0.75))
    out = tmp_path / "own.json"
    done = CliRunner().invoke(app, ["calibrate", "--device", "cuda", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert load_gpu(tmp_path / "own.cuda.json").dense_factor == pytest.approx(1.5)
    monkeypatch.setenv("FANIN_CALIBRATION", str(out))
    gpu, source = find_gpu("", ())
    assert (gpu.name, source) == ("Some Card", "measured on Some Card by fanin calibrate")


@pytest.mark.parametrize("options", [["--threads", "2"], ["--of", "layers"]])
def test_options_of_the_cpu_are_refused_beside_a_gpu(options):
    done = CliRunner().invoke(app, ["calibrate", "--device", "cuda", *options])
    assert done.exit_code == 2
    assert "a GPU is measured by itself" in done.stderr.replace("\n", " ")
