"""The server's choices where the protocol leaves behavior open or to extensions."""

import json

import numpy as np
import pytest

from fanin.deploy.serve.errors import RequestError
from fanin.deploy.serve.protocol import decode, encode
from fanin.deploy.serve.signature import Signature, TensorSpec

from ._serving import HEADER, binary_body, json_body, post, requires_serving

X = np.arange(8, dtype=np.float32).reshape(2, 4)
INFER = "/v2/models/m/infer"
ENTRY = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": X.ravel().tolist()}
MODEL = Signature(
    (TensorSpec("x", "FP32", ("batch", 4)),), (TensorSpec("y", "FP32", ("batch", 4)),)
)
FREE = {"text": "a", "number": 1.5, "flag": True, "none": None, "object": {"a": []}}


def read(head, signature=MODEL):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return decode(text, None, signature, 100)


@pytest.mark.parametrize(
    "head",
    [
        {"inputs": [ENTRY], "model_name": "other", "model_version": "9", "more": [{}]},
        {"inputs": [ENTRY], "parameters": FREE},
        {"inputs": [{**ENTRY, "parameters": FREE}]},
        {"inputs": [{**ENTRY, "dtype": "INT8", "offset": 3}]},
        {"inputs": [ENTRY], "outputs": [{"name": "y", "parameters": FREE}]},
        {"inputs": [ENTRY], "outputs": [{"name": "y", "datatype": "INT8", "shape": [7]}]},
        # Parameters of extensions that are meaningless here or do not affect the response.
        {"inputs": [ENTRY], "parameters": {"priority": 3, "timeout": 1, "classification": 2}},
        {"inputs": [ENTRY], "parameters": {"triton_enable_empty_final_response": True}},
        {"inputs": [{**ENTRY, "parameters": {"binary_data": True, "sequence_id": 3}}]},
        {"inputs": [ENTRY], "outputs": [{"name": "y", "parameters": {"binary_data_size": 3}}]},
        {"inputs": [ENTRY], "outputs": [{"name": "y", "parameters": {"binary_data_output": True}}]},
        # Parameters of extensions, with values that do not use them.
        {"inputs": [ENTRY], "parameters": {"sequence_id": 0, "sequence_start": False}},
        {"inputs": [ENTRY], "outputs": [{"name": "y", "parameters": {"classification": 0}}]},
    ],
    ids=lambda head: json.dumps(head)[-70:],
)
def test_unknown_keys_and_parameters_change_nothing(head):
    asked = read(head)
    assert asked.inputs["x"].tolist() == X.tolist()
    assert asked.outputs == (("y", False),)


@pytest.mark.parametrize(
    "head",
    [
        {"inputs": [{**ENTRY, "parameters": None}], "parameters": None, "outputs": None},
        {"inputs": [ENTRY], "id": None},
        {"inputs": [ENTRY], "outputs": []},
        {"inputs": [ENTRY], "outputs": [{"name": "y", "parameters": None}]},
    ],
    ids=json.dumps,
)
def test_null_and_an_empty_list_of_outputs_are_as_if_absent(head):
    asked = read(head)
    assert (asked.id, asked.outputs) == (None, (("y", False),))


def test_data_that_is_null_is_absent():
    empty = {**ENTRY, "shape": [0, 4], "data": None, "parameters": {"binary_data_size": 0}}
    asked = decode(json.dumps({"inputs": [empty]}).encode(), None, MODEL, 100, 0)
    assert asked.inputs["x"].shape == (0, 4)
    with pytest.raises(RequestError, match="needs either data or the parameter binary_data_size"):
        read({"inputs": [{**ENTRY, "data": None}]})


def test_keys_may_come_in_any_order():
    keys = ("data", "parameters", "datatype", "shape", "name")
    entry = {key: {**ENTRY, "parameters": {}}[key] for key in keys}
    asked = read({"outputs": [{"parameters": {}, "name": "y"}], "inputs": [entry], "id": "7"})
    assert (asked.id, asked.inputs["x"].tolist()) == ("7", X.tolist())


@pytest.mark.parametrize("name", ["", "7", "é\n\u2028", "\ud800", "a" * 10_000])
def test_an_id_of_any_characters_is_returned(name):
    asked = read({"inputs": [ENTRY], "id": name})
    body, _ = encode("m", "1", asked, [X], MODEL)
    assert json.loads(body)["id"] == name


@pytest.mark.parametrize("name", [7, 1.5, True, ["7"], {}])
def test_an_id_that_is_no_string_is_refused(name):
    with pytest.raises(RequestError, match="id is not a string"):
        read({"inputs": [ENTRY], "id": name})


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([2, 2, 2], [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]),
        ([2, 2, 2], [0, 1, 2, 3, 4, 5, 6, 7]),
        ([8], [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_data_are_flat_or_nested_as_the_shape_is(shape, data):
    model = Signature((TensorSpec("x", "INT32", ("n",) * len(shape)),), MODEL.outputs)
    head = {"inputs": [{"name": "x", "shape": shape, "datatype": "INT32", "data": data}]}
    assert read(head, model).inputs["x"].tolist() == np.arange(8).reshape(shape).tolist()


@pytest.mark.parametrize(
    "data", [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1, 2, 3, 4, 5, 6, 7]], [[0], [1], [2], [3]] * 2]
)
def test_data_nested_in_another_way_than_the_shape_are_refused(data):
    model = Signature((TensorSpec("x", "INT32", ("n",) * 3),), MODEL.outputs)
    head = {"inputs": [{"name": "x", "shape": [2, 2, 2], "datatype": "INT32", "data": data}]}
    with pytest.raises(RequestError, match=r"do not have the shape \[2, 2, 2\]"):
        read(head, model)


def test_fp16_in_json_is_the_nearest_number_of_that_type():
    model = Signature((TensorSpec("x", "FP16", (3,)),), MODEL.outputs)
    entry = {"name": "x", "shape": [3], "datatype": "FP16", "data": [0.1, 65504, 1e-9]}
    array = read({"inputs": [entry]}, model).inputs["x"]
    assert array.dtype == np.float16
    assert array.tolist() == np.array([0.1, 65504, 1e-9], np.float16).tolist()


def test_64_bit_integers_in_json_keep_every_digit():
    model = Signature((TensorSpec("x", "UINT64", (2,)),), MODEL.outputs)
    values = [2**64 - 1, 2**53 + 1]
    entry = {"name": "x", "shape": [2], "datatype": "UINT64", "data": values}
    assert read({"inputs": [entry]}, model).inputs["x"].tolist() == values


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity"])
def test_words_that_json_does_not_have_are_refused_wherever_they_stand(word):
    for text in (b'{"inputs": [%s]}', b'{"parameters": {"free": %s}, "inputs": []}'):
        with pytest.raises(RequestError, match="is not JSON, send it as binary data"):
            read(text % word)


requires_serving()


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/octet-stream",
    ],
)
def test_the_content_type_decides_nothing(serving, kind):
    app = serving()
    headers = {} if kind is None else {"content-type": kind}
    assert (post(app, INFER, json_body(X), headers).array() == 3 * X).all()
    body, length = binary_body(X)
    assert (post(app, INFER, body, {**headers, **length}).array() == 3 * X).all()


def test_json_is_utf8_whatever_the_content_type(serving):
    body = json_body(X, id="é", free="é").decode()
    headers = {"content-type": "application/json; charset=utf-16"}
    app = serving()
    assert post(app, INFER, body.encode(), headers).json["id"] == "é"
    answer = post(app, INFER, body.encode("utf-16"), headers)
    assert (answer.status, "is not JSON" in answer.error) == (400, True)


@pytest.mark.parametrize("version", ["01", "-1", "latest", "1.0", " 1"])
def test_a_version_is_the_number_as_the_folder_has_it(serving, version):
    answer = post(serving(), f"/v2/models/m/versions/{version}/infer", json_body(X))
    assert answer.status == 404
    assert "serves version 1, not" in answer.error


def test_a_length_of_the_whole_body_means_json_alone(serving):
    body = json_body(X)
    answer = post(serving(), INFER, body, {HEADER: str(len(body))})
    assert (answer.array() == 3 * X).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"parameters": {"config": "{}"}}', "the parameter 'config' is not supported"),
        (b'{"parameters": {"file:1/model.onnx": "AAAA"}}', "the parameter 'file:1/model.onnx'"),
        (b'{"parameters": 3}', "parameters is not a JSON object"),
        (b"[]", "the body is not a JSON object"),
        (b"x", "the body is not JSON"),
    ],
)
def test_a_load_with_files_or_a_configuration_of_its_own_is_refused(serving, body, message):
    answer = post(serving(), "/v2/repository/models/m/load", body)
    assert answer.status == 400
    assert message in answer.error


@pytest.mark.parametrize("action", ["load", "unload"])
@pytest.mark.parametrize("body", [b"", b"{}", b'{"parameters": {"unload_dependents": true}}'])
def test_load_and_unload_ignore_other_parameters(serving, action, body):
    assert post(serving(), f"/v2/repository/models/m/{action}", body).status == 200
