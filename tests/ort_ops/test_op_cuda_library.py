"""The CUDA library: its exports and dependencies, and messages about its absence.

No test needs a GPU: a few lines of C replace the driver or the library of another build, and the
loader finds them in a separate process.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fanin import ort_ops

from ._compile import SANITIZER, compiler_environment

FOLDER = ort_ops.get_library_path().parent
LIBRARY = FOLDER / "libfanin_ort_ops_cuda.so"
built_with_cuda = pytest.mark.skipif(not LIBRARY.exists(), reason="built without CUDA")

DRIVER = """
int cuInit(unsigned flags) { return INIT; }
int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int* count) { *count = COUNT; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char* name, int size, int device) {
  return __builtin_snprintf(name, size, "Card %d", device) < 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 9 : 0; return 0;
}
int cuGetErrorString(int error, const char** text) { *text = "no CUDA-capable device"; return 0; }
"""

OTHER_BUILD = """
struct Library { const char* build; int version; void* make; };
static struct Library library = {"0.0.1-0123456789abcdef", 13000, 0};
struct Library* fanin_cuda_library(void) { return &library; }
"""

STATUS = """
import sys
from fanin import ort_ops
if len(sys.argv) > 1:
    from pathlib import Path
    place = Path(sys.argv[1]) / "libfanin_ort_ops.so"
    ort_ops.cuda.get_library_path = lambda: place
print(ort_ops.cuda_status())
"""


def compiled(source: str, path: Path, **defines: int) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    options = [f"-D{name}={value}" for name, value in defines.items()]
    command = ["cc", "-shared", "-fPIC", "-x", "c", *options, "-o", str(path), "-"]
    subprocess.run(command, input=source, text=True, check=True, env=compiler_environment())
    return path


def driver(folder: Path, *, init: int = 0, version: int = 13000, count: int = 1) -> Path:
    compiled(DRIVER, folder / "libcuda.so.1", INIT=init, VERSION=version, COUNT=count)
    return folder


def status(*libraries: Path, driver_in: Path | None = None) -> str:
    """The result of cuda_status() in a process with that driver, for that folder of libraries."""
    environment = {"LD_LIBRARY_PATH": str(driver_in or "/nowhere"), "PATH": "/usr/bin:/bin"}
    environment |= {name: os.environ[name] for name in SANITIZER if name in os.environ}
    command = [sys.executable, "-c", STATUS, *map(str, libraries)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@built_with_cuda
def test_one_symbol_is_exported():
    command = ["nm", "-D", "--defined-only", str(LIBRARY)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in listing.splitlines()] == ["fanin_cuda_library"]


@built_with_cuda
def test_no_library_of_cuda_is_needed_to_load_it():
    command = ["readelf", "-d", str(LIBRARY)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", listing)
    system = r"(libstdc\+\+|libgcc_s|libm|libc|libdl|librt|libpthread|ld-linux[\w-]*)\.so\.\d+"
    assert needed
    assert [name for name in needed if not re.fullmatch(system, name)] == []


@built_with_cuda
def test_no_path_of_the_build_machine_is_in_the_library():
    assert str(Path(__file__).resolve().parents[2]).encode() not in LIBRARY.read_bytes()


def test_a_missing_driver_is_reported_in_the_status(tmp_path):
    said = status(driver_in=tmp_path)
    assert "devices=()" in said
    assert "there is no NVIDIA driver: libcuda.so.1" in said
    if LIBRARY.exists():
        assert "Install NVIDIA's driver" in said


def test_a_build_without_cuda_is_reported_with_the_remedy(tmp_path):
    said = status(tmp_path, driver_in=driver(tmp_path))
    assert "library=None" in said
    assert "fanin's CUDA kernels are not installed" in said
    assert f"neither {tmp_path} nor the package fanin_cuda has libfanin_ort_ops_cuda.so" in said
    assert "Install fanin-cuda" in said
    assert "FANIN_CUDA=ON" in said
    assert "devices=('Card 0 (9.0)',)" in said


def test_the_library_of_the_package_fanin_cuda_is_found_beside_fanin(tmp_path):
    folder, package = tmp_path / "fanin" / "ort_ops", tmp_path / "fanin_cuda"
    folder.mkdir(parents=True), package.mkdir()
    compiled(OTHER_BUILD, package / "libfanin_ort_ops_cuda.so")
    said = status(folder, driver_in=driver(tmp_path))
    assert "fanin_cuda/libfanin_ort_ops_cuda.so is of another build (0.0.1-" in said
    assert "fanin-cuda of the same release" in said


@built_with_cuda
def test_with_library_driver_and_device_it_is_usable(tmp_path):
    said = status(driver_in=driver(tmp_path, version=13010, count=2))
    assert "library_problem=''" in said
    assert "device_problem=''" in said
    assert "driver=(13, 1)" in said
    assert "devices=('Card 0 (9.0)', 'Card 1 (9.0)')" in said
    assert "remedy=''" in said


@built_with_cuda
def test_a_driver_that_is_too_old_for_the_kernels(tmp_path):
    said = status(driver_in=driver(tmp_path, version=11040))
    assert "driver supports CUDA 11.4, and the kernels are built with CUDA" in said
    assert "Install a driver for CUDA" in said


def test_a_driver_without_a_device(tmp_path):
    assert "reports no device" in status(driver_in=driver(tmp_path, count=0))
    said = status(driver_in=driver(tmp_path, init=100))
    assert "no CUDA-capable device (CUDA error 100)" in said
    assert "devices=()" in said


def test_a_library_of_another_build_is_refused(tmp_path):
    compiled(OTHER_BUILD, tmp_path / LIBRARY.name)
    said = status(tmp_path, driver_in=driver(tmp_path))
    assert re.search(
        r"is of another build \(0\.0\.1-0123456789abcdef\) than .*\(\d.*-\w{16}\)", said
    )
    assert "Install fanin again" in said


def test_another_library_in_its_place_is_refused(tmp_path):
    compiled("int nothing;", tmp_path / LIBRARY.name)
    assert "is not fanin's" in status(tmp_path, driver_in=driver(tmp_path))
    (tmp_path / LIBRARY.name).write_bytes(b"\x7fELF rubbish")
    assert "does not load" in status(tmp_path, driver_in=driver(tmp_path))
