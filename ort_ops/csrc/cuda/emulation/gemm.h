// CondensedGemm through the CUDA thread programs on the host: packing, launch plan, and every block
// and thread, with all checks.
#pragma once

#include <cstdint>
#include <string>

#include "core/condensed.h"
#include "cuda/plan.h"

namespace fanin::cuda::emulation {

struct Request {
  std::string kernel;  // a row of the dispatch table; empty: what dispatch takes for the batch
  ValueType activations = ValueType::kFloat32;
  DeviceLimits limits;
};

// The launch of a run.
struct Report {
  const char* kernel = nullptr;
  int warps = 0;
  int64_t grid_x = 0;
  int64_t grid_y = 0;
  int64_t shared_bytes = 0;
  int64_t packed_bytes = 0;
  double padding = 1.0;
  // Samples at a time (delta; stream, 0: x read in place; expand), bands of a block (panel).
  int variant = 0;
  int cluster = 1;
  int parts = 1;              // of a row (delta) or of the columns (expand)
  int turns = 1;              // tiles of a block (delta)
  int stages = 1;             // chunks of x in shared memory (expand)
  double store_cycles = 1.0;  // of shared memory for a warp's stores of words (expand)
};

// Writes run.y. Throws std::invalid_argument as pack_kernel does, std::logic_error for an access
// out of bounds, a race, a barrier in divergent code, an output that is written twice or not at
// all.
Report run_gemm(const CondensedView& view, const Request& request, const RunArguments& run);

}  // namespace fanin::cuda::emulation
