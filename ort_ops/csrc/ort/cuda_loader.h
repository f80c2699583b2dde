// Finds libfanin_ort_ops_cuda.so and says why it cannot be used.
#pragma once

#include <string>
#include <vector>

#include "ort/cuda_library.h"

namespace fanin::ort {

// The library that this code is linked into, as it was loaded.
std::string own_path();

// Its folder.
std::string own_folder();

struct CudaLoad {
  // kBroken: the library is there, and something is wrong with it.
  enum class State { kLoaded, kNotBuilt, kNoDriver, kBroken };
  State state = State::kNotBuilt;
  std::string problem;                   // a sentence; empty when it is loaded
  const CudaLibrary* library = nullptr;  // null unless it is loaded
};

// Loads the CUDA library of `folder`, for the life of the process, if the driver's library is there
// too. Does not initialize the driver: a process that never opens a CUDA session can still fork.
CudaLoad load_cuda_library(const std::string& folder);

struct CudaDevices {
  int driver_version = 0;          // the CUDA version that it supports, 1000 * major + 10 * minor
  std::vector<std::string> names;  // "NVIDIA H100 (9.0)"
  std::string problem;             // why there is none
};

// Asks the driver, which this initializes.
CudaDevices cuda_devices();

}  // namespace fanin::ort
