// The information about a node of the graph at session creation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ort/abi.h"
#include "ort/runtime.h"
#include "ort/tensor.h"

namespace fanin::ort {

// An input as the graph declares it.
struct InputInfo {
  ElementType type = kUndefined;
  std::vector<int64_t> dims;  // -1 where symbolic; empty for a scalar and for an unknown rank

  Shape shape() const { return shape_of(dims); }
};

class KernelInfo {
 public:
  // `op` is its name.
  KernelInfo(const Runtime& runtime, const OrtKernelInfo* info, const char* op)
      : runtime_(runtime), info_(info), op_(op) {}

  const OrtKernelInfo* get() const { return info_; }
  const Runtime& runtime() const { return runtime_; }

  // "CondensedGemm node 'name'"; a node without a name is identified by its output.
  std::string node() const;

  InputInfo input(size_t index) const;

  // The value of a constant input; null for any other.
  const OrtValue* constant(size_t index) const;

  // Throws Error if the attribute is absent or of the wrong type.
  int64_t int_attribute(const char* name) const;

  // The default if the attribute is absent. Throws Error if it is of the wrong type.
  int64_t int_attribute(const char* name, int64_t otherwise) const;

  // Throws Error if the attribute is absent, empty or not a list of INT.
  std::vector<int64_t> ints_attribute(const char* name) const;

  // The default if the attribute is absent. Throws Error if it is of the wrong type.
  float float_attribute(const char* name, float otherwise) const;

  // Writes a line to the session's log if its level includes it.
  void log(LogLevel level, const std::string& message) const;

 private:
  // Whether the attribute exists but has a type other than the requested one.
  bool has_other_type(const char* name) const;

  const Runtime& runtime_;
  const OrtKernelInfo* info_;
  const char* op_;
};

}  // namespace fanin::ort
