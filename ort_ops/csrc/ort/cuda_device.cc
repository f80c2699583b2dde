#include "ort/cuda_device.h"

#include <cuda_runtime_api.h>

#include <string>

#include "ort/status.h"

namespace fanin::ort {
namespace {

void check_cuda(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return;
  throw Error(kFail, std::string("CUDA error ") + cudaGetErrorName(error) + " while " + doing +
                         ": " + cudaGetErrorString(error));
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  check_cuda(cudaGetDevice(&previous_), "asking for the current device");
  if (previous_ == device) return;
  check_cuda(cudaSetDevice(device), "choosing the device");
  changed_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (changed_) cudaSetDevice(previous_);
}

void copy_to_host(void* to, const void* from, size_t bytes) {
  check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "reading a constant");
}

}  // namespace fanin::ort
