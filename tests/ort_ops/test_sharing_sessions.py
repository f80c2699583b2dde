"""Sessions that share packed weights, by their logs and their memory."""

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from fanin import ort_ops
from fanin.ort_ops import _native

from ._models import Layer, Spec, run, spec_of
from ._own_weights import of_its_own

INFO, WARNING = 1, 2


@pytest.fixture
def layer() -> Layer:
    return of_its_own(Layer.random(1024, 700, 100, active=650))


def opened(model: bytes | Path, level: int = INFO) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = level
    ort_ops.register(options)
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def save(spec: Spec, folder: Path, *, external: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    onnx.save(spec.build(), path, save_as_external_data=external, location="model.data")
    return path


def layouts(capfd: pytest.CaptureFixture[str]) -> list[tuple[str, bool]]:
    """Layouts logged since the last call, and whether each was shared."""
    log = capfd.readouterr().err
    found = re.findall(r"'the_layer': (\S+): \d+ bytes, (packed|shared with another layer)", log)
    return [(kernel, how != "packed") for kernel, how in found]


def test_sessions_share_the_packed_weights_of_the_first_until_the_last_is_closed(layer, capfd):
    model = spec_of(layer).build().SerializeToString()
    first = opened(model)
    names = [name for name, _ in layouts(capfd)]
    x = layer.x(1), layer.x(20)
    alone = [run(first, X=one) for one in x]
    assert len(names) == len(
        _native.PackedGemm(**layer.weights, in_features=1024, out_features=700).info()
    )

    second = opened(model)
    assert layouts(capfd) == [(name, True) for name in names]
    del first
    third = opened(model)
    assert layouts(capfd) == [(name, True) for name in names]
    for session in (second, third):
        for one, expected in zip(x, alone, strict=True):
            np.testing.assert_array_equal(
                run(session, X=one).view(np.uint32), expected.view(np.uint32)
            )
    del session, second, third
    opened(model)
    assert layouts(capfd) == [(name, False) for name in names]


def test_nothing_is_logged_at_the_default_level(layer, capfd):
    for _ in range(2):
        session = opened(spec_of(layer).build().SerializeToString(), WARNING)
    run(session, X=layer.x(1))
    assert capfd.readouterr().err == ""


def test_the_same_weights_in_other_files_are_shared_and_outlive_them(layer, tmp_path, capfd):
    one = save(spec_of(layer), tmp_path / "one")
    first = opened(one)
    x = layer.x(3)
    expected = run(first, X=x)
    made = layouts(capfd)
    assert not any(shared for _, shared in made)
    second = opened(save(spec_of(layer), tmp_path / "two"))
    third = opened(save(spec_of(layer), tmp_path / "three", external=False))
    assert layouts(capfd) == [(name, True) for name, _ in made] * 2
    del first
    shutil.rmtree(tmp_path / "one")
    fourth = opened(tmp_path / "two" / "model.onnx")
    assert all(shared for _, shared in layouts(capfd))
    for session in (second, third, fourth):
        np.testing.assert_array_equal(run(session, X=x), expected)


def test_layers_of_equal_sizes_with_other_weights_are_not_shared(layer, capfd):
    values = layer.values.copy()
    values[-1, -1] += 1
    other = replace(layer, values=values)
    x = layer.x(2)
    sessions = [opened(spec_of(one).build().SerializeToString()) for one in (layer, other)]
    assert not any(shared for _, shared in layouts(capfd))
    y, other_y = (run(session, X=x) for session in sessions)
    changed = np.zeros(layer.out_features, bool)
    changed[layer.rows[-1]] = True
    assert np.all((y != other_y).any(axis=0) == changed)


def test_a_static_batch_shares_its_layout_with_a_symbolic_one(layer, capfd):
    symbolic = opened(spec_of(layer).build().SerializeToString())
    names = [name for name, _ in layouts(capfd)]
    for batch in (1, 64):
        spec = replace(spec_of(layer), x_shape=(batch, layer.in_features))
        static = opened(spec.build().SerializeToString())
        ((name, shared),) = layouts(capfd)
        assert shared
        assert name in names
        x = layer.x(batch)
        np.testing.assert_array_equal(run(static, X=x), run(symbolic, X=x))


def test_sessions_of_other_instruction_sets_are_not_shared(layer, capfd, monkeypatch):
    sessions = []
    seen: set[str] = set()
    for isa in _native.supported_isas():
        monkeypatch.setenv("FANIN_ISA", isa)
        sessions.append(opened(spec_of(layer).build().SerializeToString()))
        for name, shared in layouts(capfd):
            assert shared == (name in seen)
            seen.add(name)


def test_sessions_created_at_the_same_time_pack_once(layer, tmp_path, capfd):
    path = save(spec_of(layer), tmp_path)
    x = layer.x(2)
    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            sessions = list(pool.map(opened, [path] * 8))
        made = layouts(capfd)
        names = {name for name, _ in made}
        assert len(made) == 8 * len(names)
        assert sorted(name for name, shared in made if not shared) == sorted(names)
        results = [run(session, X=x) for session in sessions]
        assert all(np.array_equal(result, results[0]) for result in results)
        del sessions


def layer_of(megabytes: float) -> Layer:
    """A layer with the given megabytes of condensed weights, at 95 % sparsity."""
    fan_in, rng = 300, np.random.default_rng(0)
    rows = round(megabytes * 1e6 / 6 / fan_in)
    indices = np.cumsum(rng.integers(1, 20, (rows, fan_in), dtype=np.uint16), axis=1) - 1
    return Layer(
        in_features=20 * fan_in,
        out_features=rows,
        values=rng.standard_normal((rows, fan_in), dtype=np.float32),
        indices=indices.astype(np.uint16),
        bias=np.zeros(rows, np.float32),
        rows=np.arange(rows, dtype=np.int32),
    )


def probe(folder: Path, layer: Layer, *, external: bool, sessions: int, cycles: int = 0) -> dict:
    """Measure a model in a separate process; adds the bytes of its packed layouts."""
    warm = save(spec_of(layer_of(1)), folder / "warm", external=external)
    path = save(spec_of(layer), folder / "model", external=external)
    script = Path(__file__).with_name("_memory_probe.py")
    arguments = [str(warm), str(path), str(sessions), str(cycles)]
    # The heap may keep freed memory; with a fixed threshold it keeps little.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run(
        [sys.executable, script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    packed = _native.PackedGemm(
        **layer.weights, in_features=layer.in_features, out_features=layer.out_features
    )
    measured = json.loads(done.stdout)
    measured["packed"] = sum(info.bytes for info in packed.info())
    measured["condensed"] = layer.values.nbytes + layer.indices.nbytes
    assert measured.pop("digests") == 1
    print({name: f"{n / 1e6:.2f} MB" for name, n in measured.items()})
    return measured


@pytest.mark.parametrize(
    "megabytes", [25, pytest.param(100, marks=pytest.mark.slow)], ids="{} MB".format
)
def test_memory_of_eight_sessions_is_one_packed_copy(tmp_path, megabytes):
    measured = probe(tmp_path, layer_of(megabytes), external=True, sessions=8)
    packed, condensed = measured["packed"], measured["condensed"]
    assert packed <= measured["anonymous"] <= 1.05 * packed
    # While packing, a session needs the memory that it keeps, and the file pages that it reads.
    assert measured["peak"] <= 1.05 * (packed + condensed)
    assert measured["closed"] <= 0.1 * packed  # what the heap keeps, a megabyte or so


def test_memory_of_inline_weights_grows_by_the_runtimes_copies_alone(tmp_path):
    measured = probe(tmp_path, layer_of(10), external=False, sessions=8)
    packed, condensed = measured["packed"], measured["condensed"]
    assert measured["anonymous"] <= 1.05 * (packed + 8 * condensed)
    assert measured["closed"] <= 0.2 * packed


@pytest.mark.parametrize("cycles", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_memory_stays_flat_over_sessions_that_are_opened_and_closed(tmp_path, cycles):
    measured = probe(tmp_path, layer_of(2), external=True, sessions=1, cycles=cycles)
    assert measured["cycled"] <= measured["packed"] / 2
