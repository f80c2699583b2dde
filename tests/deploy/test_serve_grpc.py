"""Requests over gRPC, as Triton's client and raw messages see them."""

import asyncio
import json
import threading
import time

import numpy as np
import pytest
from onnx import TensorProto, helper

from .._waiting import PATIENCE, wait_until
from ._serving import gain_model, requires_serving, save

requires_serving()
grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[grpc]'")
triton = pytest.importorskip("tritonclient.grpc", reason="needs tritonclient")

from tritonclient.grpc import model_config_pb2, service_pb2  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

from fanin.deploy.serve.grpc_api.messages import HEALTH_MESSAGES, MESSAGES  # noqa: E402

from ._grpc import code_of, request_of  # noqa: E402

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def client_of():
    clients = []

    def make(server):
        clients.append(triton.InferenceServerClient(server.address))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def tensor(array, datatype, name="x"):
    item = triton.InferInput(name, list(array.shape), datatype)
    item.set_data_from_numpy(array)
    return item


def refusal(function, *arguments, **more):
    with pytest.raises(InferenceServerException) as caught:
        function(*arguments, **more)
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


def identity_model(kind):
    tensors = [helper.make_tensor_value_info(name, kind, ["batch", 2]) for name in "xy"]
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "test", tensors[:1], tensors[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def wire_of(descriptor):
    """The fields of a message as they are on the wire: enumerations are int32."""
    fields = {}
    for field in descriptor.fields:
        inner = field.message_type and wire_of(field.message_type)
        kind = field.TYPE_INT32 if field.type == field.TYPE_ENUM else field.type
        choice = field.containing_oneof and field.containing_oneof.name
        fields[field.name] = (field.number, kind, field.is_repeated, choice, inner)
    return fields


def is_part(ours, theirs):
    """Whether all fields of ours are among theirs."""
    return all(
        name in theirs
        and field[:4] == theirs[name][:4]
        and (field[4] is None or is_part(field[4], theirs[name][4]))
        for name, field in ours.items()
    )


def test_the_messages_are_those_of_the_public_definitions():
    public = service_pb2.DESCRIPTOR.message_types_by_name
    for name, kind in MESSAGES.items():
        theirs = model_config_pb2.ModelConfig.DESCRIPTOR
        theirs = theirs if name == "ModelConfig" else public[name]
        assert is_part(wire_of(kind.DESCRIPTOR), wire_of(theirs)), name
    whole = ("ModelInferRequest", "ModelInferResponse", "RepositoryIndexResponse")
    for name in whole:
        assert wire_of(MESSAGES[name].DESCRIPTOR) == wire_of(public[name])
    # health.proto: HealthCheckResponse.status = 1
    assert HEALTH_MESSAGES["HealthCheckResponse"](status=1).SerializeToString() == b"\x08\x01"


def test_triton_client_infers_and_asks(serving_grpc, client_of):
    client = client_of(serving_grpc())
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m")
    assert client.is_model_ready("m", "1")
    assert client.get_server_metadata().name == "fanin"
    metadata = client.get_model_metadata("m")
    assert (metadata.inputs[0].name, metadata.inputs[0].datatype) == ("x", "FP32")
    assert list(metadata.inputs[0].shape) == [-1, 4]
    assert list(metadata.versions) == ["1"]
    answer = client.infer("m", [tensor(X, "FP32")], request_id="seven")
    assert (answer.as_numpy("y") == 3 * X).all()
    assert answer.get_response().id == "seven"
    assert answer.get_response().model_version == "1"
    wanted = [triton.InferRequestedOutput("y")]
    again = client.infer("m", [tensor(X, "FP32")], model_version="1", outputs=wanted)
    assert (again.as_numpy("y") == 3 * X).all()


def test_async_clients_are_served_in_parallel(serving_grpc):
    import tritonclient.grpc.aio as aio

    server = serving_grpc()

    async def run():
        async with aio.InferenceServerClient(server.address) as client:
            calls = [client.infer("m", [tensor(X + i, "FP32")]) for i in range(20)]
            return [answer.as_numpy("y") for answer in await asyncio.gather(*calls)]

    for number, answer in enumerate(asyncio.run(run())):
        assert (answer == 3 * (X + number)).all()


@pytest.mark.parametrize(
    ("datatype", "kind", "values"),
    [
        ("BOOL", TensorProto.BOOL, [[True, False]]),
        ("UINT8", TensorProto.UINT8, [[0, 255]]),
        ("INT16", TensorProto.INT16, [[-32768, 32767]]),
        ("UINT32", TensorProto.UINT32, [[0, 2**32 - 1]]),
        ("INT64", TensorProto.INT64, [[-(2**63), 2**63 - 1]]),
        ("UINT64", TensorProto.UINT64, [[0, 2**64 - 1]]),
        ("FP16", TensorProto.FLOAT16, [[0.5, -1.0]]),
        ("FP64", TensorProto.DOUBLE, [[1e300, -0.1]]),
        ("BYTES", TensorProto.STRING, [["é", ""]]),
    ],
)
def test_tensors_come_back_raw_and_typed(serving_grpc, client_of, datatype, kind, values):
    server = serving_grpc(identity_model(kind))
    array = np.array(
        values, object if datatype == "BYTES" else helper.tensor_dtype_to_np_dtype(kind)
    )
    answer = client_of(server).infer("m", [tensor(array, datatype)]).as_numpy("y")
    expected = np.array([["é".encode(), b""]], object) if datatype == "BYTES" else array
    assert (answer == expected).all()
    field = {
        **{"BOOL": "bool_contents", "UINT8": "uint_contents", "INT16": "int_contents"},
        **{"UINT32": "uint_contents", "INT64": "int64_contents", "UINT64": "uint64_contents"},
        **{"FP16": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents"},
    }[datatype]
    request = service_pb2.ModelInferRequest(model_name="m")
    entry = request.inputs.add(name="x", datatype=datatype, shape=[1, 2])
    getattr(entry.contents, field).extend(expected.ravel().tolist())
    if datatype == "FP16":
        code, text = code_of(server.call, "ModelInfer", request.SerializeToString())
        assert code == "INVALID_ARGUMENT"
        assert "raw_input_contents" in text
        return
    response = service_pb2.ModelInferResponse.FromString(
        server.call("ModelInfer", request.SerializeToString())
    )
    assert not response.raw_output_contents
    assert list(getattr(response.outputs[0].contents, field)) == expected.ravel().tolist()
    assert list(response.outputs[0].shape) == [1, 2]


def test_errors_name_what_is_wrong_with_fitting_codes(serving_grpc, client_of):
    server = serving_grpc(max_body=1000)
    client = client_of(server)

    def infer(array=X, datatype="FP32", model="m", **more):
        return refusal(client.infer, model, [tensor(array, datatype)], **more)

    code, text = infer(model="n")
    assert (code, "no model 'n'" in text) == ("NOT_FOUND", True)
    assert infer(model_version="2")[0] == "NOT_FOUND"
    code, text = infer(X.astype(np.int32), "INT32")
    assert (code, "the model takes FP32" in text) == ("INVALID_ARGUMENT", True)
    code, text = infer(X[:, :3].copy())
    assert (code, "the model takes 4" in text) == ("INVALID_ARGUMENT", True)
    code, text = infer(outputs=[triton.InferRequestedOutput("z")])
    assert (code, "no output" in text) == ("INVALID_ARGUMENT", True)
    code, text = infer(sequence_id=5)
    assert (code, "sequence_id" in text) == ("INVALID_ARGUMENT", True)
    code, text = infer(outputs=[triton.InferRequestedOutput("y", class_count=2)])
    assert (code, "classification" in text) == ("INVALID_ARGUMENT", True)
    assert infer(np.ones((100, 4), np.float32))[0] == "RESOURCE_EXHAUSTED"
    assert (client.infer("m", [tensor(X, "FP32")]).as_numpy("y") == 3 * X).all()
    assert server.metric("fanin_requests_total", status="400") == 5


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda r: r.raw_input_contents.append(b""), "2 entries, but there are 1 inputs"),
        (lambda r: r.inputs[0].contents.fp32_contents.append(1), "send all inputs one way"),
        (lambda r: r.raw_input_contents.pop(), "0 elements, its shape [2, 4] has 8"),
        (lambda r: r.inputs[0].shape.append(-1), "3 dimensions"),
        (lambda r: r.inputs[0].shape.__setitem__(0, -2), "size -2 in dimension 0"),
        (lambda r: r.inputs[0].shape.__setitem__(0, 2**62), "size 4611686018427387904"),
        (lambda r: r.inputs.pop(), "lacks the input x"),
        (lambda r: r.inputs.add(name="x", datatype="FP32", shape=[2, 4]), "occurs twice"),
    ],
)
def test_contradictions_in_a_request_are_refused(serving_grpc, spoil, said):
    server = serving_grpc()
    request = request_of(X)
    spoil(request)
    code, text = code_of(server.call, "ModelInfer", request.SerializeToString())
    assert (code, said in text) == ("INVALID_ARGUMENT", True), text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"int_contents": [1] * 8}, "FP32 goes into fp32_contents, not int_contents"),
        ({"fp32_contents": [1.0] * 7}, "7 elements"),
        ({"fp32_contents": [1.0] * 8, "bool_contents": [True]}, "not bool_contents"),
    ],
)
def test_typed_contents_must_fit(serving_grpc, fields, said):
    request = request_of(X, raw=False)
    contents = service_pb2.InferTensorContents(**fields).SerializeToString()
    request.inputs[0].contents.ParseFromString(contents)
    code, text = code_of(serving_grpc().call, "ModelInfer", request.SerializeToString())
    assert (code, said in text) == ("INVALID_ARGUMENT", True), text


def test_what_is_not_supported_says_so_by_name(serving_grpc, client_of):
    server = serving_grpc()
    client = client_of(server)
    for call, said in (
        (client.get_system_shared_memory_status, "shared memory is not supported"),
        (lambda: client.register_cuda_shared_memory("a", b"", 0, 8), "shared memory"),
        (client.get_trace_settings, "trace settings"),
        (client.get_log_settings, "log settings"),
    ):
        code, text = refusal(call)
        assert (code, said in text) == ("UNIMPLEMENTED", True), text
    got = []
    client.start_stream(lambda error, **_: got.append(error))
    client.async_stream_infer("m", [tensor(X, "FP32")])
    wait_until(lambda: got, "the stream is refused")
    client.stop_stream()
    assert "streaming is not supported" in got[0].message()
    in_memory = triton.InferInput("x", [2, 4], "FP32")
    in_memory.set_shared_memory("region", 32)
    code, text = refusal(client.infer, "m", [in_memory])
    assert (code, "shared_memory_region" in text) == ("INVALID_ARGUMENT", True)
    assert code_of(server.call, "NoSuchMethod")[0] == "UNIMPLEMENTED"


def test_a_token_is_required_of_all_but_probes(serving_grpc):
    server = serving_grpc(token="0123456789abcdef")
    body = request_of(X).SerializeToString()
    bearer = ("authorization", "Bearer 0123456789abcdef")
    assert code_of(server.call, "ModelInfer", body)[0] == "UNAUTHENTICATED"
    wrong = (("authorization", "Bearer 0123456789abcdeF"),)
    assert code_of(server.call, "ModelInfer", body, wrong)[0] == "UNAUTHENTICATED"
    assert code_of(server.call, "ModelInfer", body, (bearer, bearer))[0] == "UNAUTHENTICATED"
    assert code_of(server.call, "ServerMetadata")[0] == "UNAUTHENTICATED"
    assert code_of(server.call, "ModelInfer", body, (bearer,))[0] == "OK"
    for probe in ("ServerLive", "ServerReady", "/grpc.health.v1.Health/Check"):
        assert code_of(server.call, probe)[0] == "OK"


def test_health_follows_the_server(serving_grpc):
    server = serving_grpc()
    check = "/grpc.health.v1.Health/Check"
    assert server.call(check) == b"\x08\x01"  # SERVING
    assert server.call(check, b"\n\x01a") == b"\x08\x01"  # whatever service it names
    assert code_of(server.call, "/grpc.health.v1.Health/Watch")[0] == "UNIMPLEMENTED"
    server.state.draining = True
    assert server.call(check) == b"\x08\x02"  # NOT_SERVING
    assert server.call("ServerReady") == b""
    assert server.call("ServerLive") == b"\x08\x01"


def test_models_are_loaded_and_unloaded(serving_grpc, client_of, tmp_path):
    client = client_of(serving_grpc())
    client.unload_model("m")
    assert not client.is_model_ready("m")
    assert client.is_server_ready()  # as wanted
    assert refusal(client.infer, "m", [tensor(X, "FP32")])[0] == "NOT_FOUND"
    (row,) = client.get_model_repository_index().models
    assert (row.name, row.state, row.reason) == ("m", "UNAVAILABLE", "unloaded")
    save(gain_model(5), tmp_path / "m.onnx")
    client.load_model("m")
    assert (client.infer("m", [tensor(X, "FP32")]).as_numpy("y") == 5 * X).all()
    code, text = refusal(client.load_model, "m", config=json.dumps({"name": "m"}))
    assert (code, "'config' is not supported" in text) == ("INVALID_ARGUMENT", True)
    assert refusal(client.load_model, "n")[0] == "NOT_FOUND"


def test_statistics_and_config_are_true(serving_grpc, client_of):
    server = serving_grpc()
    client = client_of(server)
    assert client.get_inference_statistics("m").model_stats[0].inference_count == 0
    before, start = time.time(), time.perf_counter()
    for _ in range(3):
        client.infer("m", [tensor(X, "FP32")])
    elapsed = time.perf_counter() - start
    refusal(client.infer, "m", [tensor(X.astype(np.int32), "INT32")])
    (stats,) = client.get_inference_statistics("m", "1").model_stats
    assert (stats.name, stats.version) == ("m", "1")
    assert (stats.inference_count, stats.execution_count) == (3, 3)
    assert before * 1e3 - 1 <= stats.last_inference <= time.time() * 1e3 + 1
    phases = stats.inference_stats
    assert (phases.success.count, phases.fail.count) == (3, 1)
    parts = [phases.queue, phases.compute_input, phases.compute_infer, phases.compute_output]
    assert [part.count for part in parts] == [3, 3, 3, 3]
    assert all(part.ns > 0 for part in parts)
    assert sum(part.ns for part in parts) <= phases.success.ns <= elapsed * 1e9
    assert len(client.get_inference_statistics().model_stats) == 1
    assert refusal(client.get_inference_statistics, "n")[0] == "NOT_FOUND"
    config = client.get_model_config("m").config
    assert config.max_batch_size == 0
    assert [list(item.dims) for item in config.input] == [[-1, 4]]
    assert config.input[0].data_type == 11  # TYPE_FP32
    assert config.instance_group[0].kind == 2  # KIND_CPU


def test_batches_count_rows_and_runs(held_grpc, client_of):
    server, session = held_grpc(max_batch=8, batch_delay=0.3, concurrency=1)
    client = client_of(server)
    calls = [threading.Thread(target=client.infer, args=("m", [tensor(X, "FP32")])) for _ in "123"]
    calls[0].start()
    assert session.begun.acquire(timeout=PATIENCE)
    for call in calls[1:]:
        call.start()
    scheduler = server.state.repository.find("m").scheduler
    wait_until(lambda: scheduler.waiting == 2, "the other requests wait")
    session.released.set()
    for call in calls:
        call.join()
    (stats,) = client.get_inference_statistics("m").model_stats
    assert (stats.inference_count, stats.inference_stats.success.count) == (6, 3)
    assert stats.execution_count == 2
    config = client.get_model_config("m").config
    assert (config.max_batch_size, list(config.input[0].dims)) == (8, [4])
    assert config.dynamic_batching.max_queue_delay_microseconds == 300_000


def test_the_trace_context_is_passed_on(serving_grpc):
    server = serving_grpc()
    trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

    def response(value):
        with grpc.insecure_channel(server.address) as channel:
            method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            _, call = method.with_call(
                request_of(X).SerializeToString(), metadata=(("traceparent", value),)
            )
            return dict(call.trailing_metadata()).get("traceresponse")

    version, found, span, flags = response(f"00-{trace}-{caller}-01").split("-")
    assert (version, found, flags) == ("00", trace, "01")
    assert span != caller
    assert response("nonsense") is None


def test_more_rows_than_the_models_limit_are_refused(serving_grpc, client_of, tmp_path):
    folder = tmp_path / "repository" / "m"
    save(gain_model(3), folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text("max_batch_size: 2")
    client = client_of(serving_grpc(model_repository=str(folder.parent)))
    assert (client.infer("m", [tensor(X, "FP32")]).as_numpy("y") == 3 * X).all()
    code, text = refusal(client.infer, "m", [tensor(np.ones((3, 4), np.float32), "FP32")])
    assert (code, "has 3 rows, but max_batch_size" in text) == ("INVALID_ARGUMENT", True)
