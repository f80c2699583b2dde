"""Writes the protobuf wire format by hand, for bytes that no library writes."""

from onnx import ModelProto, TensorProto, helper

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)


def varint(value: int, width: int = 0) -> bytes:
    """A number, padded to ``width`` bytes."""
    out = bytearray()
    while value > 127 or len(out) + 1 < width:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def tag(number: int, wire: int, width: int = 0) -> bytes:
    return varint(number << 3 | wire, width)


def field(number: int, content: bytes | str) -> bytes:
    """A string or message."""
    content = content.encode() if isinstance(content, str) else content
    return tag(number, BYTES) + varint(len(content)) + content


def number_field(number: int, value: int) -> bytes:
    return tag(number, VARINT) + varint(value)


def entry(key: bytes | str, value: bytes | str) -> bytes:
    """External data of a TensorProto."""
    return field(13, field(1, key) + field(2, value))


def external_tensor(location: str = "data", **more: str) -> TensorProto:
    """Four float32 numbers "W" in a file."""
    tensor = TensorProto(
        name="W", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL
    )
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def adding_model(*tensors: TensorProto) -> ModelProto:
    """y = x + W, with the tensors as initializers."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    node = helper.make_node("Add", ["x", "W"], ["y"], name="add")
    graph = helper.make_graph([node], "g", value[:1], value[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def with_tensor(content: bytes) -> bytes:
    """The model above with these bytes as W."""
    return adding_model().SerializeToString() + field(7, field(5, content))
