// The operator ai.fanin::CondensedGemm, version 1, for CPU (docs/op.md).
#pragma once

#include <optional>

#include "ort/abi.h"
#include "ort/runtime.h"

namespace fanin::ort {

// What the runtime holds of the op. It must outlive every session; the runtime keeps the pointer.
struct CondensedGemmOp : OrtCustomOp {
  // One registration for each type of X, residual and Y: kFloat or kFloat16. The runtime merges
  // them into one schema. `threads`: the session's, where it is known at registration.
  CondensedGemmOp(const Runtime& runtime, ElementType type, std::optional<int> threads);

  const Runtime& runtime;
  const ElementType type;
  const std::optional<int> threads;
};

}  // namespace fanin::ort
