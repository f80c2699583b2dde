"""Graph passes: each does one thing to an onnx-ir model and says whether it changed anything."""
