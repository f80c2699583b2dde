"""A reader of 64-bit little-endian ELF shared libraries, without external tools."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_LOAD, _DYNAMIC = 1, 2
_GNU_STACK, _GNU_RELRO = 0x6474E551, 0x6474E552
_TEXTREL, _FLAGS, _FLAGS_1 = 22, 30, 0x6FFFFFFB
_DYNSYM = 11
MACHINES = {62: "x86_64", 183: "aarch64"}


@dataclass(frozen=True)
class Segment:
    kind: int
    flags: int  # 1: executable
    offset: int
    address: int
    size: int  # in the file


@dataclass(frozen=True)
class Symbol:
    name: str
    address: int  # 0 if defined in another library


class Elf:
    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        assert self._data[:6] == b"\x7fELF\x02\x01", f"{path} is no 64-bit ELF file"
        self.machine = MACHINES.get(struct.unpack_from("<H", self._data, 18)[0], "another")

    @cached_property
    def segments(self) -> list[Segment]:
        (start,) = struct.unpack_from("<Q", self._data, 32)
        size, count = struct.unpack_from("<HH", self._data, 54)
        raw = [struct.unpack_from("<IIQQQQ", self._data, start + i * size) for i in range(count)]
        return [Segment(kind, flags, at, to, n) for kind, flags, at, to, _, n in raw]

    def _has(self, kind: int) -> list[Segment]:
        return [segment for segment in self.segments if segment.kind == kind]

    @property
    def stack_is_executable(self) -> bool:
        return any(segment.flags & 1 for segment in self._has(_GNU_STACK)) or not self._has(
            _GNU_STACK
        )

    @property
    def relocations_become_read_only(self) -> bool:
        return bool(self._has(_GNU_RELRO))

    @cached_property
    def _dynamic(self) -> dict[int, int]:
        (segment,) = self._has(_DYNAMIC)
        area = self._data[segment.offset : segment.offset + segment.size]
        return dict(struct.iter_unpack("<qQ", area[: segment.size // 16 * 16]))

    @property
    def binds_at_once(self) -> bool:
        return bool(self._dynamic.get(_FLAGS, 0) & 8 or self._dynamic.get(_FLAGS_1, 0) & 1)

    @property
    def writes_into_code(self) -> bool:
        return _TEXTREL in self._dynamic or bool(self._dynamic.get(_FLAGS, 0) & 4)

    @cached_property
    def symbols(self) -> list[Symbol]:
        """Symbols that the dynamic linker sees."""
        return list(self._read_symbols())

    @property
    def imports(self) -> set[str]:
        return {symbol.name for symbol in self.symbols if not symbol.address}

    def code(self, name: str, count: int) -> bytes:
        """The first bytes of an exported function."""
        (address,) = (symbol.address for symbol in self.symbols if symbol.name == name)
        for segment in self._has(_LOAD):
            if segment.address <= address < segment.address + segment.size:
                at = segment.offset + address - segment.address
                return self._data[at : at + count]
        raise AssertionError(f"{name} lies in no segment")

    def _read_symbols(self) -> Iterator[Symbol]:
        (start,) = struct.unpack_from("<Q", self._data, 40)
        size, count = struct.unpack_from("<HH", self._data, 58)
        sections = [
            struct.unpack_from("<IIQQQQI", self._data, start + i * size) for i in range(count)
        ]
        for _, kind, _, _, offset, length, strings in sections:
            if kind != _DYNSYM:
                continue
            names = sections[strings][4]
            for at in range(offset, offset + length, 24):
                name, _, _, section, value = struct.unpack_from("<IBBHQ", self._data, at)
                begin = names + name
                text = self._data[begin : self._data.index(b"\0", begin)].decode()
                yield Symbol(text, value if section else 0)
