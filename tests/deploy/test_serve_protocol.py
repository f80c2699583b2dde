"""Infer requests and responses: decoding, encoding, and the error messages."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fanin.deploy.serve import protocol
from fanin.deploy.serve.datatypes import NUMPY
from fanin.deploy.serve.errors import RequestError
from fanin.deploy.serve.protocol import InferRequest, decode, encode
from fanin.deploy.serve.signature import Signature, TensorSpec

X = TensorSpec("x", "FP32", ("batch", 3))
MODEL = Signature((X,), (TensorSpec("y", "FP32", ("batch", 2)), TensorSpec("z", "INT64", ())))
ANY_SHAPE = Signature((TensorSpec("x", "FP32", ()),), MODEL.outputs)
DATATYPES = sorted(set(NUMPY) - {"BYTES"})


def read(head, binary=b"", signature=MODEL, header_length="right", max_dimension=100):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    if header_length == "right":
        header_length = str(len(text)) if binary else None
    return decode(text + binary, header_length, signature, max_dimension)


def one(**changes):
    """A valid request, with changes to its only input."""
    entry = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}
    entry.update(changes)
    return {"inputs": [{key: value for key, value in entry.items() if value is not ...}]}


def refused(head, *args, **more):
    with pytest.raises(RequestError) as caught:
        read(head, *args, **more)
    assert caught.value.status == 400
    return str(caught.value)


def test_flat_and_nested_data_are_the_same():
    flat = read(one()).inputs["x"]
    nested = read(one(data=[[1, 2, 3], [4, 5, 6]])).inputs["x"]
    assert flat.dtype == np.float32
    assert flat.tolist() == nested.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_outputs_default_to_all_as_json():
    assert read(one()).outputs == (("y", False), ("z", False))


def test_binary_data_output_applies_to_outputs_without_a_setting_of_their_own():
    outputs = [{"name": "z", "parameters": {"binary_data": False}}, {"name": "y"}]
    asked = read({**one(), "parameters": {"binary_data_output": True}, "outputs": outputs})
    assert asked.outputs == (("z", False), ("y", True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "w"}, "the model has no input 'w'; it has x"),
        ({"name": 3}, "inputs[0] has no name"),
        ({"datatype": "FP64"}, "datatype is FP64; the model takes FP32"),
        ({"datatype": "BF16"}, "datatype is BF16; the model takes FP32"),
        ({"datatype": "float"}, "is not a datatype of the protocol"),
        ({"datatype": ...}, "input 'x' has no datatype"),
        ({"shape": ...}, "input 'x' has no shape"),
        ({"shape": [6]}, "has 1 dimensions [6], but the model takes 2: [batch, 3]"),
        ({"shape": [3, 2]}, "has size 2 in dimension 1, but the model takes 3"),
        ({"shape": [-2, 3]}, "has size -2 in dimension 0; the server takes 1 to 100"),
        ({"shape": [0, 3], "data": []}, "has size 0 in dimension 0"),
        ({"shape": [101, 3]}, "has size 101 in dimension 0; the server takes 1 to 100"),
        ({"shape": [2.0, 3]}, "shape is not a list of integers"),
        ({"shape": [True, 3]}, "shape is not a list of integers"),
        ({"shape": "23"}, "shape is not a list of integers"),
        ({"data": [1, 2, 3]}, "data has 3 elements, its shape [2, 3] has 6"),
        ({"data": [[1, 2], [3, 4], [5, 6]]}, "do not have the shape [2, 3]"),
        ({"data": [[1, 2, 3], 4]}, "do not have the shape [2, 3]"),
        ({"data": [[1, 2, 3], [4, 5, [6]]]}, "FP32 takes numbers, not lists"),
        ({"data": 7}, "data is not a list"),
        ({"data": [1, 2, 3, 4, 5, "6"]}, "FP32 takes numbers, not strings"),
        ({"data": [1, 2, 3, 4, 5, True]}, "FP32 takes numbers, not true or false"),
        ({"data": [1, 2, 3, 4, 5, None]}, "FP32 takes numbers, not null"),
        ({"data": [1, 2, 3, 4, 5, 1e39]}, "data does not fit into FP32"),
        ({"data": [1, 2, 3, 4, 5, 10**400]}, "data does not fit into FP32"),
        ({"data": ...}, "needs either data or the parameter binary_data_size"),
        ({"parameters": {"binary_data_size": 24}}, "needs either data or the parameter"),
        ({"data": ..., "parameters": {"binary_data_size": -1}}, "is not a number of bytes"),
        ({"data": ..., "parameters": {"binary_data_size": True}}, "is not a number of bytes"),
        ({"data": ..., "parameters": {"binary_data_size": 24}}, "announce 24 bytes"),
        ({"parameters": {"shared_memory_region": "r"}}, "parameter 'shared_memory_region'"),
        ({"parameters": []}, "parameters of input 'x' are not a JSON object"),
        ({"shape": [2**62, 3]}, "the server takes 1 to 100"),
        ({"shape": [1] * 33}, "has 33 dimensions; the server takes up to 32"),
    ],
)
def test_an_input_that_does_not_fit(changes, message):
    assert message in refused(one(**changes))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"inputs": [NaN]}', "NaN is not JSON"),
        (b"1" * 5000, "is not JSON"),
        ([], "the request is not a JSON object"),
        ({}, "inputs is not a list"),
        ({"inputs": {}}, "inputs is not a list"),
        ({"inputs": []}, "lacks the input x"),
        ({"inputs": [3]}, "inputs[0] is not a JSON object"),
        ({"inputs": one()["inputs"] * 2}, "input 'x' occurs twice"),
        ({**one(), "id": 3}, "id is not a string"),
        ({**one(), "parameters": {"sequence_id": 1}}, "'sequence_id', which this server does not"),
        ({**one(), "parameters": {"sequence_end": True}}, "the parameter 'sequence_end'"),
        ({**one(), "parameters": {"binary_data_output": 1}}, "not a boolean"),
        ({**one(), "outputs": 3}, "outputs is not a list"),
        ({**one(), "outputs": [{"name": "w"}]}, "the model has no output 'w'; it has y, z"),
        ({**one(), "outputs": [{"name": "y"}] * 2}, "output 'y' occurs twice"),
        (
            {**one(), "outputs": [{"name": "y", "parameters": {"classification": 2}}]},
            "'classification', which this server does not support",
        ),
        (
            {**one(), "outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
            "output 'y' has the parameter 'shared_memory_region'",
        ),
    ],
)
def test_a_request_that_does_not_fit(head, message):
    assert message in refused(head)


@pytest.mark.parametrize("length", ["", "x", "-1", "1e3", "999", "٣", "9" * 30])
def test_a_header_length_that_cannot_be(length):
    assert "Inference-Header-Content-Length" in refused(one(), header_length=length)


def test_binary_data_must_have_exactly_the_size_of_the_shape():
    entry = one(data=..., parameters={"binary_data_size": 20})
    assert "20 bytes were sent, but FP32 of shape [2, 3] has 24" in refused(entry, b"0" * 20)
    entry = one(data=..., parameters={"binary_data_size": 24})
    assert "announce 24 bytes of binary data, but 25 were sent" in refused(entry, b"0" * 25)


@pytest.mark.parametrize(
    ("datatype", "value", "message"),
    [
        ("INT8", 128, "does not fit into INT8"),
        ("INT8", 1.0, "INT8 takes integers, not numbers with a fraction or an exponent"),
        ("UINT64", -1, "does not fit into UINT64"),
        ("UINT64", 2**64, "does not fit into UINT64"),
        ("FP16", 65520.0, "does not fit into FP16"),
        ("INT64", "7", "INT64 takes integers, not strings"),
        ("BOOL", 1, "BOOL takes true and false, not integers"),
        ("BYTES", 1, "BYTES takes strings, not integers"),
        ("BYTES", None, "BYTES takes strings, not null"),
        ("FP64", {}, "FP64 takes numbers, not objects"),
        ("BYTES", "\ud800", "lone surrogate"),
    ],
)
def test_values_beyond_their_type(datatype, value, message):
    signature = Signature((TensorSpec("x", datatype, (1,)),), MODEL.outputs)
    entry = {"name": "x", "shape": [1], "datatype": datatype, "data": [value]}
    assert message in refused({"inputs": [entry]}, signature=signature)


def test_a_bool_is_the_byte_0_or_1():
    signature = Signature((TensorSpec("x", "BOOL", (2,)),), MODEL.outputs)
    parameters = {"binary_data_size": 2}
    entry = {"name": "x", "shape": [2], "datatype": "BOOL", "parameters": parameters}
    assert "a BOOL is the byte 0 or 1" in refused({"inputs": [entry]}, b"\1\2", signature=signature)
    good = read({"inputs": [entry]}, b"\1\0", signature=signature)
    assert good.inputs["x"].tolist() == [True, False]


@pytest.mark.parametrize("raw", [b"\3\0\0\0ab", b"\0\0\0", b"\xff\xff\xff\xffa", b"\1\0\0\0\xff"])
def test_strings_that_are_cut_off_or_not_utf8(raw):
    signature = Signature((TensorSpec("x", "BYTES", (1,)),), MODEL.outputs)
    parameters = {"binary_data_size": len(raw)}
    entry = {"name": "x", "shape": [1], "datatype": "BYTES", "parameters": parameters}
    assert "x" in refused({"inputs": [entry]}, raw, signature=signature)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read_back(data):
    datatype = data.draw(st.sampled_from(DATATYPES))
    dtype = NUMPY[datatype]
    finite = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else None
    shape = data.draw(npst.array_shapes(min_dims=0, max_dims=3, max_side=4))
    array = data.draw(npst.arrays(dtype, shape, elements=finite))
    as_binary = data.draw(st.booleans())
    outputs = Signature((), (TensorSpec("t", datatype, shape),))
    asked = InferRequest("7", {}, (("t", as_binary),))
    body, length = encode("m", "1", asked, [array], outputs)
    head = json.loads(body[:length])
    assert (head["id"], head["model_name"], head["model_version"]) == ("7", "m", "1")
    request = {"inputs": [head["outputs"][0]]}
    signature = Signature((TensorSpec("t", datatype, shape),), outputs.outputs)
    back = read(request, body[length:] if as_binary else b"", signature=signature).inputs["t"]
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes() or (back == array).all()  # -0 as JSON stays -0


@given(st.lists(st.text(max_size=5), min_size=1, max_size=4), st.booleans())
@settings(max_examples=50, deadline=None)
def test_strings_are_written_and_read_back(texts, as_binary):
    array = np.array([*texts, None], object)[:-1]
    spec = TensorSpec("t", "BYTES", (len(texts),))
    asked = InferRequest(None, {}, (("t", as_binary),))
    body, length = encode("m", "1", asked, [array], Signature((), (spec,)))
    head = json.loads(body[:length])
    request = {"inputs": [head["outputs"][0]]}
    binary = body[length:] if as_binary else b""
    assert (
        read(request, binary, signature=Signature((spec,), (spec,))).inputs["t"].tolist() == texts
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_json_refuses_an_output_that_it_cannot_carry_and_binary_carries_it(value):
    array = np.full((1, 2), value, np.float32)
    with pytest.raises(RequestError, match="request binary data") as caught:
        encode("m", "1", InferRequest(None, {}, (("y", False),)), [array], MODEL)
    assert caught.value.status == 422
    body, length = encode("m", "1", InferRequest(None, {}, (("y", True),)), [array], MODEL)
    assert body[length:] == array.tobytes()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
PARAMETERS = st.dictionaries(
    st.sampled_from(["binary_data_size", "binary_data_output", "binary_data"]),
    st.integers(-1, 40) | VALUES,
    max_size=2,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", "y", ""]) | VALUES,
        "shape": st.lists(st.integers(-1, 4), max_size=3) | VALUES,
        "datatype": st.sampled_from([*NUMPY, "BF16"]) | VALUES,
        "parameters": PARAMETERS | VALUES,
        "data": st.lists(st.integers() | st.floats(), max_size=9) | VALUES,
    },
)
HEAD = st.fixed_dictionaries(
    {"inputs": st.lists(ENTRY, max_size=2) | VALUES},
    optional={"outputs": st.lists(ENTRY, max_size=2) | VALUES, "parameters": PARAMETERS | VALUES},
)


@given(
    head=HEAD | VALUES,
    binary=st.binary(max_size=30),
    length=st.none() | st.integers(-1, 200).map(str) | st.text(max_size=3),
)
@settings(max_examples=400, deadline=None)
def test_any_request_is_read_or_refused(head, binary, length):
    """Fuzzes protocol.decode, which may raise nothing but RequestError."""
    text = json.dumps(head).encode()
    for said in (length, str(len(text)), "0"):
        with contextlib.suppress(RequestError):
            asked = protocol.decode(text + binary, said, MODEL, 100)
            assert asked.inputs["x"].shape[1:] == (3,)
            assert asked.inputs["x"].size
        with contextlib.suppress(RequestError):
            protocol.decode(text + binary, said, ANY_SHAPE, 1 << 31, 0)
