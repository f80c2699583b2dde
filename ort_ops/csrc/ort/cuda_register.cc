// The one exported symbol of libfanin_ort_ops_cuda.so.
#include <cuda_runtime_api.h>

#include <vector>

#include "ort/condensed_conv_cuda.h"
#include "ort/condensed_gemm_cuda.h"
#include "ort/cuda_library.h"

namespace fanin::ort {
namespace {

std::vector<const OrtCustomOp*> make_ops(const Runtime& runtime) {
  std::vector<const OrtCustomOp*> ops;
  for (const ElementType type : {kFloat, kFloat16, kBfloat16}) {
    ops.push_back(new CudaGemmOp(runtime, type));
    ops.push_back(new CudaConvOp(runtime, type));
  }
  return ops;
}

}  // namespace
}  // namespace fanin::ort

extern "C" __attribute__((visibility("default"))) const fanin::ort::CudaLibrary*
fanin_cuda_library() {
  static const fanin::ort::CudaLibrary library{fanin::ort::build_id(), CUDART_VERSION,
                                               fanin::ort::make_ops};
  return &library;
}
