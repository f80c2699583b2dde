"""Installations other than pip into a virtual environment, as docs/deploying.md describes them."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import zipapp
from pathlib import Path

import pytest

from .._waiting import PATIENCE, wait_until
from ..deploy._serving import port_of
from ._environments import ROOT, environment, uv, wheel

EXTRA = "fanin[serve]"
RECIPE = ROOT / "packaging" / "conda" / "recipe.yaml"


def site_packages():
    found = [
        Path(folder) for folder in sys.path if (Path(folder) / "_editable_skbc_fanin.pth").exists()
    ]
    if not found:
        pytest.skip("fanin is not installed with --editable here")
    return found[0]


def test_an_editable_install_puts_nothing_but_src_on_the_path():
    lines = (site_packages() / "_editable_skbc_fanin.pth").read_text().split("\n")
    assert [line for line in lines if line] == ["import _editable_skbc_fanin", str(ROOT / "src")]


def test_an_editable_install_copies_no_data_files():
    """A copy would hide what is edited in the checkout."""
    folder = site_packages() / "fanin"
    kinds = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert kinds - {".pyc"} <= {".so", ".cmake", ".pc", ".h"}


def test_the_conda_recipe_needs_what_the_project_needs():
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    recipe = yaml.safe_load(RECIPE.read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert recipe["context"]["version"] == project["project"]["version"]
    wanted = recipe["requirements"]
    given = [item.replace(">=", " >=") for item in project["project"]["dependencies"]]
    assert set(wanted["run"]) == {"python", "onnxruntime >=1.17", *given}
    build = {item.replace(">=", " >=") for item in project["build-system"]["requires"]}
    assert build <= set(wanted["host"])
    assert project["project"]["scripts"]["fanin"] in recipe["build"]["python"]["entry_points"][0]


def test_rattler_build_renders_the_conda_recipe():
    build = pytest.importorskip("rattler_build", reason="pip install py-rattler-build")
    compilers = {"cxx_compiler": ["gxx"], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"]}
    recipe = build.Stage0Recipe.from_file(str(RECIPE))
    (variant,) = recipe.render(build.VariantConfig({"python": ["3.11.*"], **compilers}))
    assert variant.recipe.to_dict()["build"]["string"].startswith("py311")


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory):
    """A folder with the wheels of fanin and of what a server needs, as pip download makes it."""
    folder = tmp_path_factory.mktemp("wheels")
    built = wheel(sys.executable, tmp_path_factory.mktemp("built"))
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder, f"{built}[serve]"]
    subprocess.run(pip, check=True)
    return folder


@pytest.fixture(scope="module")
def target(downloaded, tmp_path_factory):
    """A read-only folder of packages, installed without an index."""
    folder = tmp_path_factory.mktemp("target") / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, EXTRA]
    subprocess.run([*pip, "--no-index", "--find-links", downloaded], check=True)
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)


def run(command, cwd, **variables):
    """Run without this environment's packages, HOME and user site."""
    plain = {"PATH": "/usr/bin:/bin", "PYTHONNOUSERSITE": "1", **variables}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=plain, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def bare_python():
    """The interpreter behind a virtual environment, which does not see the packages of that."""
    return Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.mark.slow
def test_a_read_only_folder_of_packages_without_an_index(target, tmp_path):
    path = {"PYTHONPATH": str(target)}
    for arguments in (["demo"], ["doctor", "fanin-demo/digits.onnx"]):
        done = run([bare_python(), "-P", "-m", "fanin", *arguments], tmp_path, **path)
        assert done.returncode == 0, done.stdout + done.stderr
    done = run([bare_python(), "-P", "-m", "fanin", "library-path"], tmp_path, **path)
    assert done.stdout.strip() == f"{target}/fanin/ort_ops/libfanin_ort_ops.so"


@pytest.mark.slow
def test_a_zip_of_packages_says_what_to_do(target, tmp_path):
    packages = tmp_path / "packages"
    for folder in ("fanin", next(target.glob("fanin-*.dist-info")).name):
        shutil.copytree(target / folder, packages / folder, copy_function=shutil.copyfile)
    (packages / "__main__.py").write_text("from fanin.cli import main\nmain()\n")
    zipapp.create_archive(packages, tmp_path / "app.pyz")
    done = run([bare_python(), "app.pyz", "library-path"], tmp_path, PYTHONPATH=str(target))
    assert (done.returncode, done.stdout) == (1, "")
    assert "fanin is in the archive" in done.stderr
    assert "pip install --target" in done.stderr


@pytest.mark.slow
def test_a_frozen_program_serves(downloaded, tmp_path):
    """PyInstaller finds the library, data files and version, and -m starts the server's workers."""
    python = environment(tmp_path / "venv", sys.executable)
    local = ["--no-index", "--find-links", downloaded]
    uv("pip", "install", "--python", python, *local, EXTRA)
    uv("pip", "install", "--python", python, "pyinstaller")
    (tmp_path / "app.py").write_text("from fanin.cli import main\nmain()\n")
    freeze = [python, "-m", "PyInstaller", "--noconfirm", "--log-level=WARN", "app.py"]
    subprocess.run(freeze, cwd=tmp_path, check=True)
    app = tmp_path / "dist" / "app" / "app"
    shutil.rmtree(tmp_path / "venv")
    for arguments in (["demo"], ["doctor", "fanin-demo/digits.onnx"]):
        done = run([app, *arguments], tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    command = [app, "serve", "fanin-demo/digits.onnx", "--port", "0", "--workers", "2"]
    server = subprocess.Popen(command, cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    try:
        port = port_of(server.pid)
        where = f"http://127.0.0.1:{port}/v2/models/digits"

        def ready():
            try:
                return urllib.request.urlopen(f"{where}/ready").status == 200
            except OSError:
                return False

        wait_until(ready, "it is ready")
        request = (tmp_path / "fanin-demo" / "request.json").read_bytes()
        answer = json.load(urllib.request.urlopen(f"{where}/infer", request))
    finally:
        server.terminate()
        assert server.wait(PATIENCE) == 0
    assert len(answer["outputs"][0]["data"]) == 8
