"""The measures of cmake/hardening.cmake, read back from the built libraries."""

import re
from pathlib import Path

import pytest

from fanin import ort_ops

from ._elf import Elf

LIBRARIES = sorted(path for folder in ort_ops.__path__ for path in Path(folder).glob("*.so"))
OP_LIBRARY = ort_ops.get_library_path()

# The instructions that an indirect branch may target.
LANDING = {
    "x86_64": {b"\xf3\x0f\x1e\xfa"},  # endbr64
    "aarch64": {b"\x5f\x24\x03\xd5", b"\x3f\x23\x03\xd5"},  # bti c, paciasp
}

pytestmark = pytest.mark.skipif(
    b"__asan_init" in OP_LIBRARY.read_bytes(), reason="built with a sanitizer"
)
every_library = pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)


def test_the_op_library_and_the_binding_are_checked():
    names = {path.name.split(".")[0] for path in LIBRARIES}
    assert {"libfanin_ort_ops", "_native"} <= names


@every_library
def test_tables_that_only_the_loader_writes_are_read_only(path):
    elf = Elf(path)
    assert elf.relocations_become_read_only
    assert elf.binds_at_once
    assert not elf.writes_into_code
    assert not elf.stack_is_executable


@every_library
def test_stack_and_buffers_are_guarded(path):
    imports = Elf(path).imports
    assert "__stack_chk_fail" in imports
    assert [name for name in imports if re.fullmatch(r"__\w+_chk", name)] != []


@every_library
def test_indirect_branches_are_protected(path):
    elf = Elf(path)
    if elf.machine not in LANDING:
        pytest.skip(f"nothing is known of {elf.machine}")
    entry = re.compile(r"RegisterCustomOps|fanin_cuda_library|PyInit_\w+")
    (name,) = (symbol.name for symbol in elf.symbols if entry.fullmatch(symbol.name))
    assert elf.code(name, 4) in LANDING[elf.machine]


def test_nothing_of_the_op_library_is_destroyed_while_the_process_exits():
    """A session that outlives the library's static objects would read freed tables."""
    assert "__cxa_atexit" not in Elf(OP_LIBRARY).imports
