"""Health in JSON, HEAD for every GET route, paths with a trailing slash."""

import asyncio
import logging

import numpy as np
import pytest

from ._serving import ask, get, json_body, post, requires_serving

requires_serving()

X = np.arange(8, dtype=np.float32).reshape(2, 4)
GETS = [
    *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/m", "/v2/models/m/ready"),
    *("/v2/models/m/versions/1", "/v2/models/m/versions/1/ready"),
    *("/docs", "/openapi.json"),
]


def head(app, path, **more):
    return asyncio.run(ask(app, "HEAD", path, **more))


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/m/ready", {"name": "m", "ready": True}),
        ("/v2/models/m/versions/1/ready", {"name": "m", "ready": True}),
    ],
)
def test_health_is_reported_as_json(serving, path, answer):
    got = get(serving(), path)
    assert (got.status, got.json) == (200, answer)
    assert got.headers["content-type"] == "application/json"


def test_not_ready_is_503_with_a_reason_in_json(serving):
    app = serving()
    state = app.state.fanin
    state.repository.unload("m")
    for path in ("/v2/models/m/ready", "/v2/models/m/versions/1/ready"):
        got = get(app, path)
        reason = "model 'm' is not loaded"
        assert (got.status, got.json) == (503, {"name": "m", "ready": False, "error": reason})
        assert head(app, path).status == 503
    assert get(app, "/v2/health/ready").json == {"ready": True}  # it was unloaded on request
    state.draining = True
    got = get(app, "/v2/health/ready")
    reason = "the server is shutting down"
    assert (got.status, got.json) == (503, {"ready": False, "error": reason})
    assert get(app, "/v2/health/live").json == {"live": True}


@pytest.mark.parametrize("path", ["/v2/models/n/ready", "/v2/models/m/versions/2/ready"])
def test_readiness_of_an_unknown_model_is_404(serving, path):
    got = get(serving(), path)
    assert (got.status, set(got.json)) == (404, {"error"})


@pytest.mark.parametrize("path", [*GETS, "/metrics", "/v2/models/n", "/nowhere"])
def test_head_is_get_without_its_body(serving, path):
    app = serving()
    expected, got = get(app, path), head(app, path)
    assert (got.status, got.body) == (expected.status, b"")
    if path != "/metrics":  # whose content differs between scrapes
        assert got.headers == expected.headers
        assert int(got.headers["content-length"]) == len(expected.body) > 0


@pytest.mark.parametrize("path", ["/v2/models/m/infer", "/v2/repository/index"])
def test_head_is_refused_for_post_routes(serving, path):
    got = head(serving(), path)
    assert (got.status, got.headers["allow"]) == (405, "POST")


def test_a_wrong_method_is_answered_with_the_allowed_ones(serving):
    got = post(serving(), "/v2/models/m")
    assert (got.status, got.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", GETS)
def test_a_slash_at_the_end_changes_nothing(serving, path):
    app = serving()
    expected, got = get(app, path), get(app, path + "/")
    assert (got.status, got.body) == (expected.status, expected.body) == (200, got.body)
    assert head(app, path + "/").status == 200


def test_a_post_may_end_in_a_slash_and_is_never_redirected(serving):
    app = serving()
    headers = {"host": "elsewhere.example"}
    got = post(app, "/v2/models/m/infer/", json_body(X), headers)
    assert (got.status, (got.array() == 3 * X).all()) == (200, True)
    for path in ("/v2//", "/v2/models/m//", "//", "/v2/models/", "/"):
        got = get(app, path, headers=headers)
        assert (got.status, "location" in got.headers) == (404, False), path


def test_a_path_with_a_slash_is_logged_in_full(serving, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("fanin.serve"), "propagate", True)
    caplog.set_level(logging.INFO, "fanin.serve")
    app = serving(access_log=True)
    post(app, "/v2/models/m/infer/", json_body(X, id="7"))
    head(app, "/v2")
    *_, posted, headed = (record.fields for record in caplog.records)
    assert (posted["path"], posted["model"], posted["id"]) == ("/v2/models/m/infer/", "m", "7")
    assert (headed["method"], headed["path"], headed["status"]) == ("HEAD", "/v2", 200)


def test_health_with_a_slash_needs_no_token_either(serving):
    app = serving(token="a-token-of-this-test")
    for path in ("/v2/health/live/", "/v2/health/ready/"):
        assert get(app, path).status == head(app, path).status == 200
    assert get(app, "/v2/models/m/ready/").status == 401


def test_the_description_has_the_bodies_of_health(serving):
    paths = get(serving(), "/openapi.json").json["paths"]

    def schema(path, status):
        content = paths[path]["get"]["responses"][status]["content"]
        return content["application/json"]["schema"]

    assert set(schema("/v2/health/live", "200")["properties"]) == {"live"}
    assert set(schema("/v2/health/ready", "503")["required"]) == {"ready", "error"}
    for path in ("/v2/models/{model}/ready", "/v2/models/{model}/versions/{version}/ready"):
        assert set(schema(path, "200")["required"]) == {"name", "ready"}
    request = paths["/v2/models/{model}/infer"]["post"]["requestBody"]["content"]
    request = request["application/json"]["schema"]
    assert request["additionalProperties"]
    assert request["properties"]["inputs"]["items"]["properties"]["parameters"][
        "additionalProperties"
    ]
