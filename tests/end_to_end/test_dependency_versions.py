"""Every extra with the lowest versions that pyproject.toml declares, and with the newest ones.

First the extra alone (its modules import, its commands start), then tests of its features, with the
tools that these need in addition. Environments are kept in .cache/versions until the next run.
"""

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from ._environments import ROOT, environment, install, newest_python, resolved, uv, wheel

CACHE = ROOT / ".cache" / "versions"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


@dataclass(frozen=True)
class Smoke:
    """Modules that an extra must import, and its tests: arguments of pytest, packages they need."""

    module: str
    tests: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


# Without cases of opsets that onnxruntime 1.17 does not load.
LOADABLE = ("-k", "not 21 and not 22 and not 23")
INTEGRATIONS = "tests/trainer/test_integrations.py"
SMOKES = {
    "": Smoke("fanin.cli"),
    "export": Smoke(
        "fanin.export",
        ("tests/ort_ops/test_condensed_file.py", "tests/export/test_onnx_op.py", *LOADABLE),
        ("hypothesis", "ml-dtypes", "onnxruntime", "torch"),
    ),
    "train": Smoke(
        "fanin.trainer",
        ("tests/trainer/test_training.py", "tests/trainer/test_data.py"),
    ),
    "bench": Smoke(
        "fanin.deploy.bench",
        ("tests/deploy/test_bench_layer.py", "tests/deploy/test_bench_memory.py"),
    ),
    "huggingface": Smoke(
        "fanin.trainer.integrations.huggingface", (INTEGRATIONS, "-k", "hugging_face")
    ),
    "lightning": Smoke("fanin.trainer.integrations.lightning", (INTEGRATIONS, "-k", "lightning")),
    "timm": Smoke("timm", (INTEGRATIONS, "-k", "timm")),
    "tensorboard": Smoke("fanin.trainer.tensorboard", ("tests/trainer/test_tensorboard.py",)),
    "wandb": Smoke("wandb", ("tests/trainer/test_recipe_options.py", "-k", "weights_and_biases")),
    "mlflow": Smoke("mlflow", ("tests/trainer/test_recipe_options.py", "-k", "mlflow_receives")),
    "webdataset": Smoke(
        "braceexpand", ("tests/trainer/test_shards.py", "-k", "not two_processes"), ("webdataset",)
    ),
    "ray": Smoke("ray", ("tests/trainer/test_sweep.py", "-k", "ray")),
    "ray-serve": Smoke(
        "fanin.deploy.serve.ray_app",
        ("tests/deploy/test_serve_ray.py", "-k", "replicas_serve or invalid_values"),
        ("onnx",),
    ),
    "serve": Smoke(
        "fanin.deploy.serve.server",
        ("tests/deploy/test_serve_app.py", "tests/deploy/test_serve_process.py"),
        ("onnx",),
    ),
    "grpc": Smoke(
        "fanin.deploy.serve.grpc_api.server",
        ("tests/deploy/test_serve_grpc_fuzz.py", "tests/deploy/test_serve_grpc_process.py"),
        ("onnx",),
    ),
    "otel": Smoke(
        "fanin.deploy.serve.otel", ("tests/deploy/test_serve_tracing.py",), ("onnx", "grpcio")
    ),
    "openvino": Smoke("openvino", ("tests/deploy/test_peers.py", "-k", "openvino")),
    "loadgen": Smoke("mlperf_loadgen", ("tests/deploy/test_bench_serving.py",)),
    "docs": Smoke("sphinx", ("tests/end_to_end/test_documentation_site.py",)),
    "dev": Smoke(
        "pytest",
        (
            "tests/export/test_torch_export.py",
            "tests/export/test_tools.py",
            "tests/deploy/test_serve_process.py",
            "tests/ort_ops/test_conv_kernels.py",
            *LOADABLE,
        ),
    ),
}


def requirement(name: str) -> str:
    """The requirement as pyproject.toml declares it, in any extra."""
    stated = (item for items in EXTRAS.values() for item in items)
    return next(item for item in stated if re.split(r"[\[<>=]", item)[0] == name)


def run(command: list[object], folder: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_every_extra_has_a_smoke_test():
    assert set(SMOKES) == {"", *EXTRAS}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    return tmp_path_factory.mktemp("wheels")


@pytest.mark.parametrize("extra", SMOKES, ids=lambda extra: extra or "fanin")
@pytest.mark.parametrize(
    "resolution",
    [
        pytest.param("lowest-direct", marks=pytest.mark.lowest, id="lowest"),
        pytest.param("highest", marks=pytest.mark.newest, id="newest"),
    ],
)
def test_the_extra_works(extra, resolution, wheels, tmp_path):
    python = sys.executable if resolution == "lowest-direct" else newest_python()
    smoke = SMOKES[extra]
    requirements = resolved(extra, resolution, python)
    print(requirements)
    interpreter = environment(CACHE / f"{extra or 'fanin'}-{resolution}", python)
    install(interpreter, requirements, wheel(python, wheels))
    uv("pip", "check", "--python", interpreter)
    run([interpreter, "-c", f"import {smoke.module}"], tmp_path)
    fanin = [interpreter, "-m", "fanin"]
    assert "--help" in run([*fanin, "--help"], tmp_path)
    for command in ("train", "export", "serve", "bench", "doctor"):
        assert "--help" in run([*fanin, command, "--help"], tmp_path)
    without_option = subprocess.run([*fanin, "export", "absent.onnx"], capture_output=True)
    assert without_option.returncode == 2, without_option.stderr
    if smoke.tests:
        tools = [requirement(name) for name in ("pytest", *smoke.tools)]
        install(interpreter, resolved(extra, resolution, python, tools))
        tests = [ROOT / one if one.startswith("tests/") else one for one in smoke.tests]
        options = ["-m", "not lowest and not newest", "-p", "no:cacheprovider", "--rootdir", ROOT]
        # -P: folders of the source tree must not replace installed packages.
        print(run([interpreter, "-P", "-m", "pytest", *options, *tests], tmp_path)[-200:])
