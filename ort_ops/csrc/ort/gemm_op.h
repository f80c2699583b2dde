// What the CPU and the CUDA op of ai.fanin::CondensedGemm have in common: the schema that the
// runtime merges their registrations into, and the ends of a run.
#pragma once

#include <string>

#include "core/gemm.h"
#include "ort/abi.h"
#include "ort/runtime.h"
#include "ort/tensor.h"

namespace fanin::ort {

inline constexpr const char* kGemmName = "CondensedGemm";

// One registration for each execution provider and type of X, residual and Y. Whoever derives from
// it adds provider, memory types and the kernel. It must outlive every session; the runtime keeps
// the pointer.
struct GemmOp : OrtCustomOp {
  GemmOp(const Runtime& runtime, ElementType type);

  const Runtime& runtime;
  const ElementType type;
};

// "f32-gemm-...: 1440128 bytes, packed in 8.1 ms"
std::string packing_report(const PackedInfo& layout);

// Null for an input that is absent.
const OrtValue* context_input(const Runtime& runtime, const OrtKernelContext* context,
                              size_t index);

// The memory of Y.
void* context_output(const Runtime& runtime, OrtKernelContext* context, const Shape& shape);

// Throws Error for a batch that nothing was packed for: the model declares another one.
void check_batch(int64_t batch, const BatchRange& packed, const Shape& x);

}  // namespace fanin::ort
