"""The example apps of other languages: the numbers of Python, and errors as sentences."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from fanin import ort_ops
from fanin.deploy import open_session

from .._waiting import PATIENCE
from ._serving import REPOSITORY

SOURCES = REPOSITORY / "examples" / "languages"

# `make languages` installs the packages of the npm registry here.
NODE_MODULES = REPOSITORY / ".cache" / "languages" / "node" / "node_modules"


TOOLS = {
    "c": ("cc", "make"),
    "cpp": ("c++",),
    "go": ("go", "cc", "make"),
    "rust": ("rustc", "cc", "make"),
    "java": ("javac", "cc", "make"),
    "csharp": ("mcs", "mono", "cc", "make"),
    "node": ("node", "cc", "make"),
}

# Compilers that have to be newer than some that people have.
OLDEST = {"javac": ((22, 0), "-version"), "rustc": ((1, 82), "--version")}


def _version(tool, option):
    done = subprocess.run([tool, option], capture_output=True, text=True)
    found = re.search(r"(\d+)(?:\.(\d+))?", done.stdout + done.stderr)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def _missing(language):
    """Return why the app of a language cannot be built here, or None."""
    for tool in TOOLS[language]:
        if not shutil.which(tool):
            return f"there is no {tool}"
        oldest, option = OLDEST.get(tool, ((0, 0), ""))
        if option and (found := _version(tool, option)) < oldest:
            return "{} is {}.{}, older than {}.{}".format(tool, *found, *oldest)
    if language == "node" and not (NODE_MODULES / "koffi").is_dir():
        return "koffi is not installed: make languages"
    return None


class App:
    """An app that was built into a folder."""

    def __init__(self, language, build):
        if reason := _missing(language):
            pytest.skip(reason)
        self.command, self.environment = [build / f"{language}_app"], dict(os.environ)
        library = build / "libfanin_model.so"
        if language == "cpp":
            self.command = [_build_cpp(build)]
            return
        target = library if language == "node" else language
        flags = "CFLAGS=-O1 -Wall -Wextra -Werror"
        _succeeds("make", "-C", SOURCES, f"BUILD={build}", flags, target)
        if language == "java":
            options = ["--enable-native-access=ALL-UNNAMED", f"-Dfanin.model={library}"]
            self.command = ["java", *options, "-cp", build, "App"]
        elif language == "csharp":
            self.command = ["mono", build / "App.exe"]
        elif language == "node":
            app = shutil.copy(SOURCES / "node" / "app.mjs", build)
            (build / "node_modules").symlink_to(NODE_MODULES)
            self.command = ["node", app]
            self.environment["FANIN_MODEL"] = str(library)

    def __call__(self, runtime, ops, model, shape, x, threads=2):
        command = list(map(str, (*self.command, runtime, ops, model, shape, threads)))
        return subprocess.run(
            command, input=x.tobytes(), capture_output=True, env=self.environment, timeout=PATIENCE
        )


def _build_cpp(build):
    """Build the C++ app as docs/languages.md says; without CMake, by the compiler alone."""
    source = REPOSITORY / "examples" / "cpp_app"
    if shutil.which("cmake"):
        flags = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS=-Werror"]
        _succeeds("cmake", "-S", source, "-B", build, *flags)
        _succeeds("cmake", "--build", build)
    else:
        compiler = [os.environ.get("CXX", "c++"), "-std=c++17"]
        _succeeds(*compiler, *source.glob("*.cc"), "-o", build / "fanin_app", "-ldl")
    return build / "fanin_app"


def _succeeds(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in TOOLS if name not in ("c", "cpp")]


@pytest.fixture(scope="module", params=["c", "cpp", *SLOW])
def app(request, tmp_path_factory):
    return App(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def runtime():
    folder = Path(importlib.util.find_spec("onnxruntime").submodule_search_locations[0]) / "capi"
    found = sorted(folder.glob("libonnxruntime.so*"))
    if not found:
        pytest.skip(f"the wheel of onnxruntime {onnxruntime.__version__} carries no libonnxruntime")
    return found[0]


def test_the_app_gives_the_numbers_of_python(app, runtime, save_condensed):
    path = save_condensed()
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    done = app(runtime, ort_ops.get_library_path(), path, "3,4", x)
    assert done.returncode == 0, done.stderr
    # The model has no functions, so these are the numbers of fanin's kernels.
    (expected,) = open_session(path, threads=2).run(None, {"X": x})
    assert np.array(done.stdout.split(), np.float32).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runtime": "absent.so"}, "absent.so"),
        ({"runtime": ort_ops.get_library_path()}, "no OrtGetApiBase"),
        ({"ops": "/absent.so"}, "/absent.so"),
        ({"model": "absent.onnx"}, "absent.onnx"),
        ({"model": __file__}, "Protobuf parsing failed"),
        ({"shape": "2,4"}, "not enough"),
        ({"shape": "1,3"}, "more numbers than its shape"),
        ({"shape": "1,-4"}, "negative"),
        ({"shape": "4"}, "rank"),
        ({"shape": "1,x"}, "x"),
        ({"threads": 0}, "0 threads"),
        ({"threads": 2000}, "2000 threads"),
        ({"threads": "2x"}, "2x"),
    ],
)
def test_the_app_reports_errors(app, runtime, save_condensed, change, message):
    ops, x = ort_ops.get_library_path(), np.zeros((1, 4), np.float32)
    given = {"runtime": runtime, "ops": ops, "model": save_condensed(), "shape": "1,4", "x": x}
    done = app(**{**given, **change})
    assert (done.returncode, done.stdout) == (1, b"")
    assert message in done.stderr.decode()
    assert not re.search(rb"^\s+at |panic", done.stderr, re.MULTILINE)  # no stack trace


def _slots(folder, *flags):
    """Return the number of each slot of onnxruntime_abi.h, as the C compiler sees it."""
    header = (SOURCES / "onnxruntime_abi.h").read_text(encoding="utf-8")
    table = header[header.index("typedef struct OrtApi {") : header.index("} OrtApi;")]
    names = re.findall(r"\(\*(\w+)\)\(", table)
    prints = "".join(f'P("%zu\\n", offsetof(OrtApi, {name}) / sizeof(void*));' for name in names)
    source, program = folder / "slots.c", folder / "slots"
    source.write_text(
        '#include <stdio.h>\n#include <stddef.h>\n#include "onnxruntime_abi.h"\n'
        f"#define P printf\nint main(void) {{ {prints} return 0; }}"
    )
    _succeeds("cc", "-std=c11", *flags, "-I", SOURCES, source, "-o", program)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return dict(zip(names, map(int, printed.split()), strict=True))


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no cc")
def test_the_slots_of_the_header_are_those_that_the_ops_call(tmp_path):
    """The table of the op library is checked against the official header by itself."""
    table = (REPOSITORY / "ort_ops" / "csrc" / "ort" / "abi.h").read_text(encoding="utf-8")
    ops = {name: int(slot) for slot, name in re.findall(r"ROW\((\d+), \d+, [^,]+, (\w+)", table)}
    slots = _slots(tmp_path)
    common = slots.keys() & ops.keys()
    assert {"AddSessionConfigEntry", "GetTensorElementType", "ReleaseStatus"} <= common
    assert {name: slots[name] for name in common} == {name: ops[name] for name in common}


def test_the_official_header_can_take_the_place_of_ours(tmp_path):
    folder = os.environ.get("FANIN_ORT_INCLUDE_DIR")
    if not folder:
        pytest.skip("FANIN_ORT_INCLUDE_DIR, the folder of onnxruntime_c_api.h, is not set")
    official = ["-DFANIN_OFFICIAL_HEADER", "-isystem", folder]
    assert _slots(tmp_path) == _slots(tmp_path, *official)
    flags = [*official, "-Wall", "-Wextra", "-Werror", "-c"]
    cpp = REPOSITORY / "examples" / "cpp_app" / "runtime.cc"
    _succeeds("cc", "-std=c11", *flags, SOURCES / "model.c", "-o", tmp_path / "model.o")
    _succeeds("c++", "-std=c++17", *flags, cpp, "-o", tmp_path / "runtime.o")
