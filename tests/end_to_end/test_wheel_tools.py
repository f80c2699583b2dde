"""What wheels are checked with before they are published; whether the tree could be released."""

import importlib.util
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from fanin import ort_ops

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ort_ops.get_library_path()
needs_readelf = pytest.mark.skipif(shutil.which("readelf") is None, reason="needs binutils")


def tool(name):
    path = ROOT / "tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"fanin_tool_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def wheel(folder, tag, library=LIBRARY):
    path = folder / f"fanin-0.1.0-py3-none-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(library, "fanin/ort_ops/libfanin_ort_ops.so")
    return path


def test_a_tag_states_the_lowest_glibc():
    libraries = tool("wheels/libraries")
    assert libraries.floor_of("manylinux_2_27_x86_64") == (2, 27)
    assert libraries.floor_of("manylinux_2_17_x86_64.manylinux_2_28_x86_64") == (2, 17)
    assert libraries.floor_of("musllinux_1_2_x86_64") is None
    with pytest.raises(ValueError, match="neither"):
        libraries.floor_of("linux_x86_64")


@needs_readelf
def test_a_library_that_needs_more_than_its_tag_promises_is_found(tmp_path):
    libraries = tool("wheels/libraries")
    newest = libraries.newest_glibc(LIBRARY)
    assert (2, 14) <= newest < (3, 0)  # memcpy is of 2.14
    (too_low,) = (
        p for p in libraries.check_wheel(wheel(tmp_path, "manylinux_2_5_x86_64")) if "glibc" in p
    )
    assert too_low.endswith(f"libfanin_ort_ops.so needs glibc {newest[0]}.{newest[1]}")
    high = libraries.check_wheel(wheel(tmp_path, "manylinux_2_99_x86_64"))
    assert [p for p in high if "libstdc++" not in p] == []


def test_a_wheel_without_a_library_or_platform_is_refused(tmp_path):
    libraries = tool("wheels/libraries")
    text = tmp_path / "text"
    text.write_text("")
    path = tmp_path / "fanin-0.1.0-py3-none-manylinux_2_27_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(text, "fanin/__init__.py")
    assert libraries.check_wheel(path) == [f"{path.name}: holds no library"]
    assert libraries.check_wheel(tmp_path / "fanin-0.1.0-py3-none-any.whl") == [
        "fanin-0.1.0-py3-none-any.whl: is built for no platform"
    ]


def test_every_wheel_is_built_for_a_platform_and_without_python_where_its_tag_says_so():
    recipes = {recipe.name: recipe for recipe in tool("wheels/build").recipes()}
    assert {"x86_64", "aarch64", "musl", "cuda", "cp311"} <= set(recipes)
    for recipe in recipes.values():
        anywhere = recipe.settings.get("wheel.py-api") == "py3"
        assert anywhere == (recipe.settings.get("cmake.define.FANIN_PYTHON") == "OFF")
        assert recipe.platform.startswith(("manylinux_", "musllinux_"))


def test_free_threaded_pythons_are_told_from_the_others(tmp_path, monkeypatch):
    build = tool("wheels/build")
    for version in ("3.13.0t", "3.13.1"):
        python = tmp_path / "versions" / version / "bin" / "python3"
        python.parent.mkdir(parents=True)
        python.touch()
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert build.find_python("3.13") == str(tmp_path / "versions/3.13.1/bin/python3")
    assert build.find_python("3.13t") == str(tmp_path / "versions/3.13.0t/bin/python3")


def test_versions_and_changelog_agree():
    check = tool("release_check")
    assert list(check.problems(ROOT, None)) == []
    wrong = list(check.problems(ROOT, "v99.0.0"))
    assert len(wrong) == 1 + len(list(check.versions(ROOT)))


def test_only_a_tag_is_published_and_only_that_job_may():
    yaml = pytest.importorskip("yaml", reason="PyYAML reads the workflow")
    jobs = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"
    assert jobs["publish"]["environment"] == "pypi"
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == [
        "publish"
    ]
    assert set(jobs["publish"]["needs"]) == {"sdist", "linux", "cuda"}
