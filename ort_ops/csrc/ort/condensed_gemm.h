// The operator ai.fanin::CondensedGemm, version 1, for CPU (docs/op.md).
#pragma once

#include <optional>
#include <string>

#include "ort/abi.h"
#include "ort/gemm_op.h"
#include "ort/runtime.h"

namespace fanin::ort {

// For kFloat or kFloat16.
struct CondensedGemmOp : GemmOp {
  // `threads`: the session's, where it is known at registration. `cuda_notice`: what the log should
  // say about CUDA kernels that should be there and are not; may be empty.
  CondensedGemmOp(const Runtime& runtime, ElementType type, std::optional<int> threads,
                  const std::string& cuda_notice);

  const std::optional<int> threads;
  const std::string cuda_notice;
};

}  // namespace fanin::ort
