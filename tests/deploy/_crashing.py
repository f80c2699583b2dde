"""Models that really crash, hang or are killed, by a preloaded library that ends their process."""

import os
import shutil
import subprocess

import pytest
from onnx import TensorProto, helper

# ONNX Runtime takes these functions from the C library, for the operators of the same names.
_LIBRARY = """
#include <signal.h>
#include <unistd.h>
float tanf(float x) { raise(SIGFPE); return x; }
float coshf(float x) { raise(SIGKILL); return x; }
float sinhf(float x) { for (;;) pause(); return x; }
float acoshf(float x) { while (x > 0) pause(); return x; }
"""
CRASHES, IS_KILLED, HANGS, HANGS_ABOVE_0 = "Tan", "Cosh", "Sinh", "Acosh"


def model_of(operator):
    """y = operator(x), float32 of four columns."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "test", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def compile_library(folder):
    """Make the library in this folder; returns its path."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (folder / "crash.c").write_text(_LIBRARY)
    command = [compiler, "-shared", "-fPIC", "-o", "crash.so", "crash.c"]
    # Without a sanitizer that may be preloaded: compilers are not clean under it.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run(command, cwd=folder, env=environment, check=True)
    return folder / "crash.so"
