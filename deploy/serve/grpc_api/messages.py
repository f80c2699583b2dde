"""The messages of the protocol, as far as this server reads or writes their fields.

Names and numbers are those of the public definitions, which the tests compare them with:
https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/open_inference_grpc.proto,
Triton's extensions of it (grpc_service.proto and model_config.proto in
https://github.com/triton-inference-server/common/tree/main/protobuf), and
https://github.com/grpc/grpc/blob/master/src/proto/grpc/health/v1/health.proto. Enumerations are
int32 here, which is the same on the wire.
"""

from __future__ import annotations

from .proto_text import message_classes

_INFERENCE = """
message ServerLiveResponse { bool live = 1; }
message ServerReadyResponse { bool ready = 1; }
message ModelReadyRequest { string name = 1; string version = 2; }
message ModelReadyResponse { bool ready = 1; }
message ServerMetadataResponse {
  string name = 1;
  string version = 2;
  repeated string extensions = 3;
}
message ModelMetadataRequest { string name = 1; string version = 2; }
message ModelMetadataResponse {
  message TensorMetadata { string name = 1; string datatype = 2; repeated int64 shape = 3; }
  string name = 1;
  repeated string versions = 2;
  string platform = 3;
  repeated TensorMetadata inputs = 4;
  repeated TensorMetadata outputs = 5;
}

message InferParameter {
  oneof parameter_choice {
    bool bool_param = 1;
    int64 int64_param = 2;
    string string_param = 3;
    double double_param = 4;
    uint64 uint64_param = 5;
  }
}
message InferTensorContents {
  repeated bool bool_contents = 1;
  repeated int32 int_contents = 2;
  repeated int64 int64_contents = 3;
  repeated uint32 uint_contents = 4;
  repeated uint64 uint64_contents = 5;
  repeated float fp32_contents = 6;
  repeated double fp64_contents = 7;
  repeated bytes bytes_contents = 8;
}
message ModelInferRequest {
  message InferInputTensor {
    string name = 1;
    string datatype = 2;
    repeated int64 shape = 3;
    map<string, InferParameter> parameters = 4;
    InferTensorContents contents = 5;
  }
  message InferRequestedOutputTensor {
    string name = 1;
    map<string, InferParameter> parameters = 2;
  }
  string model_name = 1;
  string model_version = 2;
  string id = 3;
  map<string, InferParameter> parameters = 4;
  repeated InferInputTensor inputs = 5;
  repeated InferRequestedOutputTensor outputs = 6;
  repeated bytes raw_input_contents = 7;
}
message ModelInferResponse {
  message InferOutputTensor {
    string name = 1;
    string datatype = 2;
    repeated int64 shape = 3;
    map<string, InferParameter> parameters = 4;
    InferTensorContents contents = 5;
  }
  string model_name = 1;
  string model_version = 2;
  string id = 3;
  map<string, InferParameter> parameters = 4;
  repeated InferOutputTensor outputs = 5;
  repeated bytes raw_output_contents = 6;
}

message ModelConfigRequest { string name = 1; string version = 2; }
message ModelConfigResponse { ModelConfig config = 1; }
message ModelConfig {
  message VersionPolicy {
    message Latest { uint32 num_versions = 1; }
    message Specific { repeated int64 versions = 1; }
    message All {}
    oneof policy_choice { Latest latest = 1; All all = 2; Specific specific = 3; }
  }
  message Input { string name = 1; int32 data_type = 2; repeated int64 dims = 4; }
  message Output { string name = 1; int32 data_type = 2; repeated int64 dims = 3; }
  message InstanceGroup { string name = 1; int32 count = 2; int32 kind = 4; }
  message DynamicBatching { uint64 max_queue_delay_microseconds = 2; }
  message Parameter { string string_value = 1; }
  string name = 1;
  string platform = 2;
  VersionPolicy version_policy = 3;
  int32 max_batch_size = 4;
  repeated Input input = 5;
  repeated Output output = 6;
  repeated InstanceGroup instance_group = 7;
  string default_model_filename = 8;
  oneof scheduling_choice { DynamicBatching dynamic_batching = 11; }
  map<string, Parameter> parameters = 14;
  string backend = 17;
}

message StatisticDuration { uint64 count = 1; uint64 ns = 2; }
message InferStatistics {
  StatisticDuration success = 1;
  StatisticDuration fail = 2;
  StatisticDuration queue = 3;
  StatisticDuration compute_input = 4;
  StatisticDuration compute_infer = 5;
  StatisticDuration compute_output = 6;
  StatisticDuration cache_hit = 7;
  StatisticDuration cache_miss = 8;
}
message InferBatchStatistics { uint64 batch_size = 1; }
message MemoryUsage { string type = 1; }
message ModelStatistics {
  string name = 1;
  string version = 2;
  uint64 last_inference = 3;
  uint64 inference_count = 4;
  uint64 execution_count = 5;
  InferStatistics inference_stats = 6;
  repeated InferBatchStatistics batch_stats = 7;
  repeated MemoryUsage memory_usage = 8;
}
message ModelStatisticsRequest { string name = 1; string version = 2; }
message ModelStatisticsResponse { repeated ModelStatistics model_stats = 1; }

message ModelRepositoryParameter {
  oneof parameter_choice {
    bool bool_param = 1;
    int64 int64_param = 2;
    string string_param = 3;
    bytes bytes_param = 4;
  }
}
message RepositoryIndexRequest { string repository_name = 1; bool ready = 2; }
message RepositoryIndexResponse {
  message ModelIndex { string name = 1; string version = 2; string state = 3; string reason = 4; }
  repeated ModelIndex models = 1;
}
message RepositoryModelLoadRequest {
  string repository_name = 1;
  string model_name = 2;
  map<string, ModelRepositoryParameter> parameters = 3;
}
message RepositoryModelLoadResponse {}
message RepositoryModelUnloadRequest {
  string repository_name = 1;
  string model_name = 2;
  map<string, ModelRepositoryParameter> parameters = 3;
}
message RepositoryModelUnloadResponse {}
"""

_HEALTH = """
message HealthCheckResponse { int32 status = 1; }
"""

MESSAGES = message_classes("inference", _INFERENCE)
"""Message classes of the inference service, by name."""

HEALTH_MESSAGES = message_classes("grpc.health.v1", _HEALTH)
"""Message classes of the health service, by name."""

DATATYPES = {
    name: number
    for number, name in enumerate(
        (
            *("INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32"),
            *("INT64", "FP16", "FP32", "FP64", "STRING", "BF16"),
        )
    )
}
"""Triton's DataType by name, without ``TYPE_``."""

KIND_CPU = 2
"""Triton's ModelInstanceGroup.Kind of a CPU."""
