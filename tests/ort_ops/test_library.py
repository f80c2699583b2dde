"""The compiled library and its Python API."""

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fanin import ort_ops


def output_of(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def run_python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# A build with a sanitizer links its runtime and keeps debug information.
ordinary_build = pytest.mark.skipif(
    b"__asan_init" in ort_ops.get_library_path().read_bytes(), reason="built with a sanitizer"
)


def test_one_symbol_is_exported():
    listing = output_of("nm", "-D", "--defined-only", str(ort_ops.get_library_path()))
    assert [line.split()[-1] for line in listing.splitlines()] == ["RegisterCustomOps"]


@ordinary_build
def test_only_the_c_and_cxx_runtimes_are_needed():
    listing = output_of("readelf", "-d", str(ort_ops.get_library_path()))
    needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", listing)
    allowed = re.compile(r"(libstdc\+\+|libgcc_s|libm|libc|ld-linux[\w-]*)\.so\.\d+")
    assert needed
    assert [name for name in needed if not allowed.fullmatch(name)] == []


def test_the_library_loads_nothing_else():
    listing = output_of("ldd", str(ort_ops.get_library_path()))
    assert not re.search(r"torch|omp|onnxruntime|python|not found", listing), listing


@ordinary_build
def test_no_path_of_the_build_machine_is_in_the_library():
    tree = Path(__file__).resolve().parents[2]
    assert str(tree).encode() not in ort_ops.get_library_path().read_bytes()


def test_importing_the_package_loads_neither_torch_nor_onnxruntime():
    program = """
        import sys
        from fanin import ort_ops
        import fanin.ort_ops.reference
        assert ort_ops.get_library_path().is_absolute()
        ort_ops.kernel_table()
        loaded = {name.split(".")[0] for name in sys.modules}
        print(sorted(loaded & {"torch", "onnxruntime", "onnx"}))
    """
    assert run_python(textwrap.dedent(program)).strip() == "[]"


def test_a_missing_library_is_reported_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(ort_ops, "__path__", [str(tmp_path)])
    with pytest.raises(FileNotFoundError, match="pip install") as refusal:
        ort_ops.get_library_path()
    assert str(tmp_path) in str(refusal.value)
