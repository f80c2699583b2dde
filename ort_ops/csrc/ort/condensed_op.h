// Shared by all ops of ai.fanin, on CPU and CUDA: schemas, shape inference, callbacks, and access
// to inputs and outputs of a run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/gemm.h"
#include "ort/abi.h"
#include "ort/kernel_info.h"
#include "ort/runtime.h"
#include "ort/status.h"
#include "ort/tensor.h"

namespace fanin::ort {

class ShapeInference;

inline constexpr size_t kNoInput = ~size_t{0};

// Types of a registration. The residual has Y's.
struct ActivationTypes {
  ElementType x;
  ElementType y;
};

enum class TypedAs { kItself, kX, kY };

struct InputSpec {
  const char* name;
  TypedAs typed_as;  // activations have a type of the registration, and lie in a GPU's memory
  ElementType type;  // of kItself; kUndefined: one of several, which creation checks by name
};

struct OpSchema {
  const char* name;  // "CondensedGemm"
  const InputSpec* inputs;
  size_t input_count;
  void (*infer_shape)(const ShapeInference& node);
};

// One registration for each op, execution provider and types of X and Y; the runtime
// merges those of an op into one schema. Derived classes add the kernel. It must outlive every
// session, since the runtime keeps the pointer.
struct CondensedOp : OrtCustomOp {
  CondensedOp(const Runtime& runtime, const ActivationTypes& types, const OpSchema& schema);

  const Runtime& runtime;
  const ActivationTypes types;
  const OpSchema& schema;
};

// Sets the callbacks of a kernel class with the constructor Kernel(op, info, node), node(),
// runtime() and compute(context) const. No exception leaves a callback.
template <typename Op, typename Kernel>
void set_kernel(OrtCustomOp& op) {
  op.CreateKernelV2 = [](const OrtCustomOp* raw_op, const OrtApi*, const OrtKernelInfo* raw,
                         void** kernel) noexcept -> OrtStatus* {
    const auto& self = *static_cast<const Op*>(raw_op);
    std::string node;
    const char* where = self.schema.name;
    return guarded(self.runtime.api, where, [&] {
      const KernelInfo info(self.runtime, raw, where);
      node = info.node();
      where = node.c_str();
      *kernel = new Kernel(self, info, node);
    });
  };
  op.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) noexcept -> OrtStatus* {
    const auto& self = *static_cast<const Kernel*>(kernel);
    return guarded(self.runtime().api, self.node().c_str(), [&] { self.compute(context); });
  };
  op.KernelDestroy = [](void* kernel) noexcept { delete static_cast<Kernel*>(kernel); };
}

// A shape during inference.
struct InferredShape {
  int type = kUndefined;
  std::vector<int64_t> dims;       // -1 where unknown; none for an unknown rank
  std::vector<std::string> names;  // of the symbolic ones, else ""
};

// A node during shape inference. Its errors are reported at the creation of its kernel, where its
// name is known; here, anything that cannot be inferred stays unknown.
class ShapeInference {
 public:
  ShapeInference(const Api& api, OrtShapeInferContext* context) : api_(api), context_(context) {}

  InferredShape input(size_t index) const;
  InferredShape x() const { return input(0); }
  // None if the attribute is absent or of the wrong type; at most 8 numbers.
  std::optional<int64_t> int_attribute(const char* name) const;
  std::optional<std::vector<int64_t>> ints_attribute(const char* name) const;
  void set_y(InferredShape y) const;

 private:
  const Api& api_;
  OrtShapeInferContext* context_;
};

// "f32-gemm-...: 1440128 bytes, packed in 8.1 ms"
std::string packing_report(const PackedInfo& layout);

// The warning about weights that are not constant; `names` as in "values, bias".
void warn_of_variable_weights(const KernelInfo& info, const std::string& node,
                              const std::string& names);

// Null for an input that is absent.
const OrtValue* context_input(const Runtime& runtime, const OrtKernelContext* context,
                              size_t index);

// The memory of Y.
void* context_output(const Runtime& runtime, OrtKernelContext* context, const Shape& shape);

}  // namespace fanin::ort
