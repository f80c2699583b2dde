"""What KServe's own client sends and understands; run in an environment that has kserve.

Prints for each request its body as sent, the headers that matter, and what the client makes of the
answer, as JSON. Model m takes x, FP32 [batch, 4]; model types takes and returns one tensor each of
several types.
"""

import asyncio
import json
import sys

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

BASE = sys.argv[1]
X = np.arange(8, dtype=np.float32).reshape(2, 4)
OTHERS = {
    "BOOL": np.array([True, False]),
    "INT64": np.array([2**62 + 1, -1]),
    "FP16": np.array([0.5, 65504], np.float16),
    "BYTES": np.array(["é", ""], object),
}


class Recorder(httpx.AsyncHTTPTransport):
    """Keeps the last request."""

    async def handle_async_request(self, request):
        self.body = request.content
        self.headers = {
            name: request.headers[name]
            for name in ("content-type", "inference-header-content-length")
            if name in request.headers
        }
        return await super().handle_async_request(request)


def tensor(array, datatype="FP32", binary=True, name="x", parameters=None):
    made = InferInput(name, list(array.shape), datatype, parameters=parameters)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def request(*inputs, model="m", **more):
    return InferRequest(model, list(inputs), request_id="7", **more)


def requests():
    yield "json", request(tensor(X, binary=False))
    yield "array", request(InferInput("x", [2, 4], "FP32", data=X))
    yield "binary", request(tensor(X))
    yield (
        "parameters",
        request(
            tensor(X, parameters={"content_type": "np", "weight": 0.5}),
            parameters={"tenant": "a", "retries": 3, "binary_data_output": False},
            request_outputs=[RequestedOutput("y", {"binary_data": True, "label": "a"})],
        ),
    )
    yield "empty json", request(tensor(X[:0], binary=False))
    yield "empty binary", request(tensor(X[:0]))
    yield "nan", request(tensor(X[:1] * np.nan, binary=False))
    yield (
        "dict",
        {"inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": X.tolist()}]},
    )
    tensors = [tensor(array, datatype, name=datatype) for datatype, array in OTHERS.items()]
    yield "types", request(*tensors, model="types", parameters={"binary_data_output": True})


async def main():
    recorder = Recorder()
    client = InferenceRESTClient(RESTConfig(protocol="v2", transport=recorder))
    health = {
        "live": await client.is_server_live(BASE),
        "ready": await client.is_server_ready(BASE),
        "m ready": await client.is_model_ready(BASE, "m"),
        "n ready": await client.is_model_ready(BASE, "n"),
    }
    infer = {}
    for name, data in requests():
        model = "types" if name == "types" else "m"
        try:
            answer = await client.infer(BASE, data, model_name=model)
            outputs = [
                [item.name, item.shape, np.ravel(item.data).tolist()] for item in answer.outputs
            ]
            got = {"id": answer.id, "outputs": outputs}
        except httpx.HTTPStatusError as error:
            got = {"error": str(error)}
        sent = {**recorder.headers, "body": recorder.body.decode("latin-1")}
        infer[name] = {"sent": sent, "got": got}
    await client.close()
    print(json.dumps({"health": health, "infer": infer}))


asyncio.run(main())
