"""fanin library-path, and C programs built with the CMake package and the pkg-config file."""

import importlib.util
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fanin.ort_ops
from fanin.cli import app
from fanin.ort_ops import get_library_path
from fanin.ort_ops.library import get_cuda_library_path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "languages"
# Links the op library and calls it, instead of telling ONNX Runtime its path.
PROGRAM = """\
#include <fanin/ort_ops.h>

#include <dlfcn.h>
#include <stdio.h>

#include "onnxruntime_abi.h"

int main(int count, char** arguments) {
  void* runtime = count == 2 ? dlopen(arguments[1], RTLD_NOW) : NULL;
  if (!runtime) return 1;
  const OrtApiBase* base = ((const OrtApiBase* (*)(void))dlsym(runtime, "OrtGetApiBase"))();
  OrtSessionOptions* options = NULL;
  if (base->GetApi(17)->CreateSessionOptions(&options)) return 2;
  if (RegisterCustomOps(options, base)) return 3;
  puts("registered");
  return 0;
}
"""
CMAKE_LISTS = """\
cmake_minimum_required(VERSION 3.16)
project(linked LANGUAGES C)
find_package(fanin 0.1 REQUIRED CONFIG)
message(STATUS "library ${FANIN_ORT_OPS_LIBRARY} version ${fanin_VERSION}")
add_executable(linked main.c)
target_include_directories(linked PRIVATE ${EXAMPLES})
target_link_libraries(linked PRIVATE fanin::ort_ops ${CMAKE_DL_LIBS})
"""


def printed(*arguments):
    done = CliRunner().invoke(app, ["library-path", *arguments])
    assert done.exit_code == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return Path(line)


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower()
    return done.stdout.strip()


@pytest.fixture
def runtime():
    folder = Path(importlib.util.find_spec("onnxruntime").submodule_search_locations[0]) / "capi"
    found = sorted(folder.glob("libonnxruntime.so*"))
    if not found:
        pytest.skip("this wheel of onnxruntime carries no libonnxruntime")
    return found[0]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "main.c").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_LISTS)
    return tmp_path


def test_it_prints_the_path_and_nothing_else():
    assert printed() == get_library_path()
    assert (printed("--cmake-dir") / "fanin-config.cmake").is_file()
    assert (printed("--pkgconfig-dir") / "fanin.pc").is_file()


def test_two_questions_at_once_are_a_usage_error():
    assert CliRunner().invoke(app, ["library-path", "--cuda", "--cmake-dir"]).exit_code == 2


def test_what_was_not_built_is_one_sentence_and_status_1(tmp_path, monkeypatch):
    folder = tmp_path / "fanin" / "ort_ops"
    folder.mkdir(parents=True)
    shutil.copy(get_library_path(), folder)
    monkeypatch.setattr(fanin.ort_ops, "__path__", [str(folder)])
    for option, missing in (
        ("--cuda", "libfanin_ort_ops_cuda.so"),
        ("--cmake-dir", "fanin-config.cmake"),
        ("--pkgconfig-dir", "fanin.pc"),
    ):
        done = CliRunner().invoke(app, ["library-path", option])
        assert (done.exit_code, done.stdout) == (1, "")
        assert missing in done.stderr
    for place in (tmp_path / "fanin_cuda", folder):  # a package of its own, or beside
        place.mkdir(exist_ok=True)
        (place / "libfanin_ort_ops_cuda.so").touch()
        assert get_cuda_library_path() == place / "libfanin_ort_ops_cuda.so"


def test_a_zip_archive_says_how_to_install_instead(tmp_path, monkeypatch):
    archive = tmp_path / "app.pyz"
    zipfile.ZipFile(archive, "w").close()
    monkeypatch.setattr(fanin.ort_ops, "__path__", [f"{archive}/fanin/ort_ops"])
    with pytest.raises(FileNotFoundError, match=r"app\.pyz.*pip install --target"):
        get_library_path()


def test_a_program_is_built_with_cmake(source, runtime):
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    build = source / "build"
    where = [f"-Dfanin_DIR={printed('--cmake-dir')}", f"-DEXAMPLES={EXAMPLES}"]
    said = run("cmake", "-S", source, "-B", build, *where)
    assert f"library {get_library_path()} version 0.1" in said
    run("cmake", "--build", build)
    assert run(build / "linked", runtime) == "registered"


def test_a_program_is_built_with_pkg_config(source, runtime):
    if shutil.which("pkg-config") is None:
        pytest.skip("needs pkg-config")
    found = {**os.environ, "PKG_CONFIG_PATH": str(printed("--pkgconfig-dir"))}
    assert Path(run("pkg-config", "--variable=library", "fanin", env=found)).samefile(
        get_library_path()
    )
    flags = run("pkg-config", "--cflags", "--libs", "fanin", env=found).split()
    compiler = os.environ.get("CC", "cc")
    command = [compiler, f"-I{EXAMPLES}", source / "main.c", *flags, "-ldl"]
    run(*command, "-o", source / "linked")
    library = {**os.environ, "LD_LIBRARY_PATH": str(get_library_path().parent)}
    assert run(source / "linked", runtime, env=library) == "registered"
