"""Ask a server over gRPC. Needs tritonclient[grpc].

python grpc_client.py 127.0.0.1:8001 MODEL
"""

import sys

import numpy as np
import tritonclient.grpc as triton

address, model = sys.argv[1:]
client = triton.InferenceServerClient(address)
(described,) = client.get_model_metadata(model).inputs
# One row; dimensions that the model leaves open are -1.
array = np.full([max(1, size) for size in described.shape], 0.5, np.float32)
tensor = triton.InferInput(described.name, list(array.shape), described.datatype)
tensor.set_data_from_numpy(array)
answer = client.infer(model, [tensor])
for output in answer.get_response().outputs:
    print(output.name, answer.as_numpy(output.name))
