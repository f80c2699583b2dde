"""Open Inference Protocol V2 over gRPC, beside HTTP. Needs the extra ``[grpc]``.

Importing this package loads neither grpc nor protobuf; its modules do.
"""
