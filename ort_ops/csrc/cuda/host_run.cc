#include "cuda/host_run.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace fanin::cuda {
namespace {

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(cudaGetErrorString(error));
}

class Copy {
 public:
  Copy(const void* from, int64_t bytes, int64_t shift) {
    const auto size = static_cast<size_t>(bytes);
    check(cudaMalloc(&memory_, std::max<size_t>(1, size + static_cast<size_t>(shift))));
    data_ = static_cast<char*>(memory_) + shift;
    if (from) check(cudaMemcpy(data_, from, size, cudaMemcpyHostToDevice));
  }
  ~Copy() { cudaFree(memory_); }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;

  void* data() const { return data_; }

 private:
  void* memory_ = nullptr;
  void* data_ = nullptr;
};

// Calls run(x, y, epilogue) on copies of the arrays in device memory.
template <typename Run>
void run_copied(const HostArrays& arrays, const Run& run) {
  const Copy x(arrays.x, arrays.x_bytes, arrays.shift);
  const Copy y(arrays.y, arrays.y_bytes, arrays.shift);
  const Copy residual(arrays.residual, arrays.residual ? arrays.y_bytes : 16, arrays.shift);
  ConvEpilogue epilogue;
  epilogue.residual = arrays.residual ? residual.data() : nullptr;
  epilogue.clip_min = arrays.clip_min;
  epilogue.clip_max = arrays.clip_max;
  epilogue.gate = arrays.gate;
  run(x.data(), y.data(), epilogue);
  check(cudaDeviceSynchronize());
  check(
      cudaMemcpy(arrays.y, y.data(), static_cast<size_t>(arrays.y_bytes), cudaMemcpyDeviceToHost));
}

}  // namespace

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

void run_on_host_arrays(const PackedGemm& gemm, const HostArrays& arrays) {
  run_copied(arrays, [&](const void* x, void* y, const Epilogue& epilogue) {
    gemm.run(x, arrays.batch, y, epilogue, nullptr, arrays.tf32);
  });
}

void run_on_host_arrays(const PackedConv& conv, const ConvInput& input, const HostArrays& arrays) {
  run_copied(arrays, [&](const void* x, void* y, const ConvEpilogue& epilogue) {
    conv.run(x, input, y, epilogue, nullptr, arrays.tf32);
  });
}

}  // namespace fanin::cuda
