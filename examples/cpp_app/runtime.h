// A model with one float input and one float output, opened in ONNX Runtime with fanin's ops.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../languages/onnxruntime_abi.h"

// ONNX Runtime, loaded from a shared library. Throws std::runtime_error if that fails. It stays
// loaded until the process ends, because its threads and fanin's ops use it.
class Runtime {
 public:
  explicit Runtime(const std::string& library);

  const OrtApi* api() const { return api_; }
  std::string version() const { return version_; }
  // Throws std::runtime_error with the message of the status unless it is null.
  void check(OrtStatus* status) const;

 private:
  const OrtApi* api_ = nullptr;
  std::string version_;
};

// Thread-safe: several threads may call run() at the same time.
class Model {
 public:
  // `ops` is the absolute path of libfanin_ort_ops.so.
  Model(const Runtime& runtime, const std::string& path, const std::string& ops, int threads);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // `shape` is the shape of the input, which is row-major. Returns the elements of the output.
  std::vector<float> run(std::vector<float>& input, const std::vector<int64_t>& shape) const;

 private:
  std::string name(bool input) const;
  size_t count_floats(const OrtValue* tensor) const;

  const Runtime& runtime_;
  OrtEnv* env_ = nullptr;
  OrtSession* session_ = nullptr;
  std::string input_, output_;
};
