"""Random models in unusual encodings that protobuf may read although no library writes them."""

from random import Random

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from onnx import ModelProto

from ._encoding import BYTES, END_GROUP, FIXED32, FIXED64, GROUP, VARINT, tag, varint

_DEPTH = 7
_ODD = 0.004  # share of the fields; most models can still be read
_TEXTS = [b"location", b"offset", b"ai.fanin", b"CondensedGemm", b"a", b"", b"../s", b"\xff", b"W"]
_NUMBERS = [0, 1, 7, 1 << 31, 1 << 32, (1 << 64) - 1]


def odd_model(random: Random) -> bytes:
    """A model with fields in any order, number, type and width, sometimes broken."""
    return b"".join([tag(7, BYTES) + varint(0), *_message(random, ModelProto.DESCRIPTOR, 0)])


def _message(random: Random, kind: Descriptor, depth: int) -> list[bytes]:
    known = [part for part in kind.fields if depth < _DEPTH or part.message_type is None]
    number = random.randint(0, 6 if depth < 4 else 3) if known else 0
    return [_field(random, known, depth) for _ in range(number)]


def _field(random: Random, known: list[FieldDescriptor], depth: int) -> bytes:
    deeper = [part for part in known if part.message_type is not None]
    part = random.choice(deeper if deeper and random.random() < 0.6 else known)
    if random.random() < _ODD:
        return _stray(random, random.choice([part.number, 0, 999, 1 << 28, 1 << 29]))
    width = random.choice([2, 3, 5, 6]) if random.random() < _ODD else 0
    if part.message_type is not None:
        return _bytes(random, part, b"".join(_message(random, part.message_type, depth + 1)), width)
    if part.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        return _bytes(random, part, random.choice(_TEXTS), width)
    if part.type == FieldDescriptor.TYPE_FLOAT:
        return tag(part.number, FIXED32, width) + b"\0\0\x80\x3f"
    if part.type == FieldDescriptor.TYPE_DOUBLE:
        return tag(part.number, FIXED64, width) + bytes(8)
    return tag(part.number, VARINT, width) + _number(random)


def _bytes(random: Random, part: FieldDescriptor, content: bytes, width: int) -> bytes:
    padded = random.choice([2, 5, 6, 10]) if random.random() < _ODD else 0
    size = len(content) + (random.random() < _ODD / 4)
    return tag(part.number, BYTES, width) + varint(size, padded) + content


def _number(random: Random) -> bytes:
    if random.random() < _ODD:
        return b"\xff" * 9 + bytes([random.choice([1, 2, 0x7F])])
    return varint(random.choice(_NUMBERS), random.choice([0, 0, 0, 10]))


def _stray(random: Random, number: int) -> bytes:
    """A field of any wire type, regardless of the message's schema."""
    wire = random.choice([VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32, 6, 7])
    content = {
        VARINT: _number(random),
        FIXED64: bytes(8),
        FIXED32: bytes(4),
        BYTES: varint(1) + b"x",
        GROUP: random.choice([b"", tag(5, VARINT) + b"\1"]) + tag(number, END_GROUP),
    }
    return tag(number, wire) + content.get(wire, b"")
