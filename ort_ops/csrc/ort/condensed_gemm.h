// The operator ai.fanin::CondensedGemm, version 1, for CPU (docs/op.md).
#pragma once

#include <optional>

#include "ort/abi.h"
#include "ort/runtime.h"

namespace fanin::ort {

// What the runtime holds of the op. It must outlive every session; the runtime keeps the pointer.
struct CondensedGemmOp : OrtCustomOp {
  // `threads`: the session's, where it is known at registration.
  CondensedGemmOp(const Runtime& runtime, std::optional<int> threads);

  const Runtime& runtime;
  const std::optional<int> threads;
};

}  // namespace fanin::ort
