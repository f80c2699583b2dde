// The interface of libfanin_ort_ops_cuda.so for libfanin_ort_ops.so, which loads it.
#pragma once

#include <cstdint>
#include <vector>

#include "ort/abi.h"
#include "ort/runtime.h"

namespace fanin::ort {

// "0.1.0-3f9a...": the version and a hash of the sources. Two libraries with the same build id
// agree on every type in this interface.
const char* build_id();

inline constexpr const char* kCudaLibrary = "libfanin_ort_ops_cuda.so";
inline constexpr const char* kCudaSymbol = "fanin_cuda_library";

struct CudaLibrary {
  const char* build;  // must stay first: the only member that may be read before it is compared
  int cuda_version;   // of the CUDA runtime inside, 1000 * major + 10 * minor
  // The ops for this runtime. `runtime` must outlive them; they live as long as the process.
  std::vector<const OrtCustomOp*> (*make_ops)(const Runtime& runtime);
};

using CudaLibraryFunction = const CudaLibrary* (*)();

}  // namespace fanin::ort
