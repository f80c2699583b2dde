"""From a sparse float model to a file that computes in 8 bits, by ONNX Runtime's quantizer."""
