"""Large JSON, and the budget of buffered bytes."""

import json

import numpy as np
import pytest

from ._serving import ask, binary_body, json_body, requires_serving, wide_model

requires_serving()

from fanin.deploy.serve import ModelSource, ServeSettings, bounded_json  # noqa: E402
from fanin.deploy.serve.budget import Budget  # noqa: E402
from fanin.deploy.serve.errors import RequestError  # noqa: E402

INFER = "/v2/models/m/infer"


def parse(text, hold=lambda _size: None):
    return bounded_json.parse(memoryview(text.encode()), hold)


@pytest.mark.parametrize(
    "text",
    ["[1,-2.5e3,0,12345678901234567890123]", '{"a":[true,null,"\\u00e9"],"a":1}', " [ ]\n"],
)
def test_large_json_parses_as_small_json_does(text):
    padded = text + " " * bounded_json.SMALL_TEXT
    assert parse(padded) == json.loads(text)
    assert list(map(type, parse(padded))) == list(map(type, json.loads(text)))


@pytest.mark.parametrize("text", ["[NaN]", "[-Infinity]", "[1,]", "[1", "[1] 2", "", "\ufeff[]"])
def test_invalid_json_is_refused_small_and_large(text):
    for padded in (text, text + " " * bounded_json.SMALL_TEXT):
        with pytest.raises(ValueError, match=r"\w"):
            parse(padded)


@pytest.mark.parametrize("mark", bounded_json._MARKS)
def test_each_mark_is_counted(mark):
    most, _ = bounded_json._MARKS[mark]
    text = f'"{mark * most}"' if mark not in '"\\' else mark * most
    if mark not in '"\\':
        assert parse(text) == mark * most
    with pytest.raises(RequestError, match="more than") as caught:
        parse(text + mark)
    assert caught.value.status == 413


def test_the_parsing_cost_is_reported_in_advance_and_is_an_upper_bound():
    import tracemalloc

    for element in ("[]", "{}", '{"ab":0}', '"ab"', "0.5", "1234567", "[[]]"):
        text = memoryview(f"[{(element + ',') * 30_000}{element}]".encode())
        told = []
        tracemalloc.start()
        value = bounded_json.parse(text, told.append)
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(value) == 30_001
        assert told
        assert taken <= told[0] + 100_000, element


def test_arrays_are_written_as_json_does():
    for array in (
        np.arange(10_000, dtype=np.float32).reshape(100, 100) / 3,
        np.zeros((0, 4), np.float32),
        np.array(5, np.int64),
        np.array([True, False]),
        np.array(['a"', "é"], object),
    ):
        assert json.loads(bounded_json.write(array)) == array.reshape(-1).tolist()


def test_an_output_too_large_for_json_must_be_requested_as_binary():
    with pytest.raises(RequestError, match="request binary data") as caught:
        bounded_json.write(np.zeros(bounded_json.MAX_VALUES + 1, np.uint8))
    assert caught.value.status == 422


@pytest.fixture
def app(tmp_path):
    """Create an opened app whose model has 4 inputs and 2000 outputs per row."""
    from fanin.deploy.serve.app import create_app

    from ._serving import save

    opened = []

    def make(**settings):
        source = ModelSource("m", save(wide_model(4, 2000), tmp_path / "m.onnx"))
        made = create_app(ServeSettings((source,), poll=0, threads=1, **settings))
        made.state.fanin.open()
        opened.append(made.state.fanin)
        return made

    yield make
    for state in opened:
        assert state.budget.held == 0
        state.close()


def post(app, body, headers=None):
    import asyncio

    return asyncio.run(ask(app, "POST", INFER, body, headers))


def test_large_requests_and_answers_are_as_those_in_binary(app):
    served = app(max_dimension=10_000)
    x = np.random.default_rng(0).random((50, 4), np.float32)
    wanted = post(served, *binary_body(x)).array()
    body = json_body(x).ljust(bounded_json.SMALL_TEXT + 1)
    answer = post(served, body)
    assert answer.status == 200
    assert (answer.array().astype(np.float32) == wanted).all()
    assert answer.json["model_name"] == "m"
    answer = post(served, body.replace(b'"data"', b'"datum"'))
    assert answer.status == 400


def test_an_answer_that_the_budget_never_has_room_for_is_413_and_a_full_one_503(app):
    served = app(max_buffered=1 << 20)
    x = np.ones((100, 4), np.float32)  # a response of 800 kB
    assert post(served, *binary_body(x)).status == 200
    answer = post(served, *binary_body(np.ones((200, 4), np.float32)))
    assert (answer.status, "server's buffer of" in answer.error) == (413, True)
    other = served.state.fanin.budget.lease()
    other.take(500_000)
    answer = post(served, *binary_body(x))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "buffer for requests and responses is full" in answer.error
    other.release()
    assert post(served, *binary_body(x)).status == 200


def test_a_lease_releases_what_it_holds_once():
    changes = []
    budget = Budget(100, changes.append)
    one, other = budget.lease(), budget.lease()
    one.take(60)
    with pytest.raises(RequestError) as caught:
        other.take(50)
    assert caught.value.status == 503
    with pytest.raises(RequestError) as caught:
        other.take(101)
    assert caught.value.status == 413
    one.resize(10)
    assert other.try_take(90)
    assert not one.try_take(1)
    one.release()
    one.release()
    other.release()
    assert budget.held == sum(changes) == 0


def test_a_client_that_names_a_host_is_not_sent_there(app):
    import asyncio

    served = app()
    for path in ("/v2/", "/v2/models/m/", "/v2/health/live/", "/docs/"):
        answer = asyncio.run(ask(served, "GET", path, headers={"host": "evil.example"}))
        assert answer.status < 300 or answer.status == 404
        assert "evil" not in str(answer.headers)
