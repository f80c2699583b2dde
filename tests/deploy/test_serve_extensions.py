"""Extensions over HTTP as Triton's client calls them: configuration, statistics, repository."""

import time

import numpy as np
import pytest

from ._serving import call, gain_model, get, json_body, post, requires_serving, save

requires_serving()
triton = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]")

from tritonclient.utils import InferenceServerException  # noqa: E402

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def infer(client, **more):
    item = triton.InferInput("x", [2, 4], "FP32")
    item.set_data_from_numpy(X)
    return client.infer("m", [item], **more).as_numpy("y")


def test_triton_client_asks_for_all_of_them(tmp_path, start):
    model = save(gain_model(3), tmp_path / "repository" / "m" / "1" / "model.onnx")
    options = ("--model-repository", tmp_path / "repository", "--poll", 0, "--threads", 1)
    with start(*options) as server:
        client = triton.InferenceServerClient(server.address)
        before = time.perf_counter()
        for _ in range(3):
            assert (infer(client) == 3 * X).all()
        (stats,) = client.get_inference_statistics("m")["model_stats"]
        assert (stats["inference_count"], stats["execution_count"]) == (3, 3)
        phases = stats["inference_stats"]
        assert {name: phases[name]["count"] for name in ("success", "fail", "queue")} == {
            "success": 3,
            "fail": 0,
            "queue": 3,
        }
        assert 0 < phases["compute_infer"]["ns"] < phases["success"]["ns"]
        assert phases["success"]["ns"] < (time.perf_counter() - before) * 1e9
        assert client.get_inference_statistics() == {"model_stats": [stats]}
        assert client.get_inference_statistics("m", "1") == {"model_stats": [stats]}
        config = client.get_model_config("m", "1")
        assert (config["name"], config["max_batch_size"]) == ("m", 0)
        assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 4]}]
        save(gain_model(5), model)
        client.load_model("m")
        assert (infer(client) == 5 * X).all()
        client.unload_model("m")
        assert client.get_model_repository_index()[0]["reason"] == "unloaded"
        with pytest.raises(InferenceServerException, match="not loaded"):
            client.get_model_config("m")
        for refused in (
            client.get_system_shared_memory_status,
            client.get_cuda_shared_memory_status,
        ):
            with pytest.raises(InferenceServerException, match="shared memory is not supported"):
                refused()
        client.close()


@pytest.mark.slow
def test_statistics_are_sums_over_workers(tmp_path, start):
    model = save(gain_model(3), tmp_path / "m.onnx")
    before = time.time()
    with start(f"m={model}", "--workers", 2, "--threads", 1, "--poll", 0) as server:
        server.wait_for("serving", 2)
        for _ in range(30):
            assert call(server, "POST", "/v2/models/m/infer", json_body(X))[0] == 200
        for _ in range(4):
            client = triton.InferenceServerClient(server.address)
            (stats,) = client.get_inference_statistics("m")["model_stats"]
            assert (stats["inference_count"], stats["execution_count"]) == (30, 30)
            assert before - 1 < stats["last_inference"] / 1e3 < time.time() + 1
            client.close()


def test_a_request_that_fails_after_its_run_counts_as_failed(serving):
    app = serving(gain_model(1e38))
    assert post(app, "/v2/models/m/infer", json_body(100 * X)).status == 422  # infinity in JSON
    assert post(app, "/v2/models/m/infer", json_body(0 * X)).status == 200
    (stats,) = get(app, "/v2/models/m/versions/1/stats").json["model_stats"]
    assert (stats["inference_count"], stats["execution_count"]) == (1, 2)
    assert stats["inference_stats"]["fail"]["count"] == 1
    assert stats["inference_stats"]["compute_output"]["count"] == 1
    assert get(app, "/v2/models/m/versions/2/stats").status == 404
    assert get(app, "/v2/models/n/config").status == 404
    assert get(app, "/v2/systemsharedmemory/status").status == 501
