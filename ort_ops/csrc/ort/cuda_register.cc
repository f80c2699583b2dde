// The one exported symbol of libfanin_ort_ops_cuda.so.
#include <cuda_runtime_api.h>

#include <vector>

#include "ort/cuda_library.h"
#include "ort/cuda_op.h"
#include "ort/export.h"
#include "ort/ops.h"

namespace fanin::ort {
namespace {

std::vector<const OrtCustomOp*> make_ops(const Runtime& runtime) {
  std::vector<const OrtCustomOp*> ops;
  visit_cuda_ops([&](auto visited) {
    using Op = typename decltype(visited)::Op;
    for (const ElementType type : Op::kCudaTypes) ops.push_back(new CudaOp<Op>(runtime, type));
  });
  return ops;
}

}  // namespace
}  // namespace fanin::ort

extern "C" FANIN_EXPORT const fanin::ort::CudaLibrary* fanin_cuda_library() {
  static const fanin::ort::CudaLibrary library{fanin::ort::build_id(), CUDART_VERSION,
                                               fanin::ort::make_ops};
  return &library;
}
