// Runs a model on float32 numbers from standard input and prints its outputs, one per line.
//
//   fanin_app RUNTIME OPS MODEL SHAPE [THREADS] < input
//
// RUNTIME is libonnxruntime.so, OPS is libfanin_ort_ops.so, SHAPE is the input's shape, such as
// 1,784. The input is raw: row-major float32, as numpy's tofile writes it.
#include <charconv>
#include <cstdio>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>

#include "runtime.h"

namespace {

template <typename Number>
Number parse_number(const std::string& text) {
  Number number{};
  const char* end = text.data() + text.size();
  auto [stop, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || stop != end)
    throw std::runtime_error("'" + text + "' is not a whole number in range");
  return number;
}

std::vector<int64_t> parse_shape(const std::string& text) {
  std::vector<int64_t> shape;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');)
    shape.push_back(parse_number<int64_t>(part));
  return shape;
}

std::vector<float> read_floats(std::FILE* file) {
  std::vector<float> values;
  float buffer[4096];
  while (size_t count = std::fread(buffer, sizeof(float), 4096, file)) {
    values.insert(values.end(), buffer, buffer + count);
  }
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5 || argc > 6) {
    std::fprintf(stderr, "usage: %s RUNTIME OPS MODEL SHAPE [THREADS] < input\n", argv[0]);
    return 2;
  }
  try {
    Runtime runtime(argv[1]);
    std::fprintf(stderr, "ONNX Runtime %s\n", runtime.version().c_str());
    Model model(runtime, argv[3], argv[2], argc == 6 ? parse_number<int>(argv[5]) : 1);
    std::vector<float> input = read_floats(stdin);
    for (float value : model.run(input, parse_shape(argv[4]))) std::printf("%.9g\n", value);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fanin_app: %s\n", error.what());
    return 1;
  }
  return 0;
}
