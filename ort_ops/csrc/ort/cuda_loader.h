// Finds libfanin_ort_ops_cuda.so, or the reason why it cannot be used.
#pragma once

#include <string>
#include <vector>

#include "ort/cuda_library.h"

namespace fanin::ort {

// The library that this code is linked into, as it was loaded.
std::string own_path();

// Keeps that library loaded until the process ends. A runtime would unload it with the last
// session, and its process-wide state would be lost and rebuilt with the next one.
void stay_loaded();

// The folder of that library.
std::string own_folder();

struct CudaLoad {
  // kBroken: the library exists but cannot be used.
  enum class State { kLoaded, kNotBuilt, kNoDriver, kBroken };
  State state = State::kNotBuilt;
  std::string problem;                   // a sentence; empty if it is loaded
  const CudaLibrary* library = nullptr;  // null unless it is loaded
};

// The CUDA library that belongs to the op library of `folder`: beside it, or in the package
// fanin_cuda of the same site-packages. Empty if there is none.
std::string cuda_library_path(const std::string& folder);

// Loads the CUDA library that belongs to `folder`, until the process ends, if the driver's library
// is installed. Does not initialize the driver, so a process that never opens a CUDA session can
// still fork.
CudaLoad load_cuda_library(const std::string& folder);

// What the driver says of a device; 0 where it does not say.
struct CudaDeviceFacts {
  int capability = 0;  // ten times the major version, and the minor one
  int multiprocessors = 0;
  int clock_khz = 0;
  int memory_clock_khz = 0;
  int memory_bus_bits = 0;
  int l2_bytes = 0;
  int shared_bytes = 0;  // that a block can ask for
};

struct CudaDevices {
  int driver_version = 0;          // the CUDA version that it supports, 1000 * major + 10 * minor
  std::vector<std::string> names;  // "NVIDIA H100 (9.0)"
  std::vector<CudaDeviceFacts> facts;  // of each
  std::string problem;                 // why there is none
};

// Queries the driver, and initializes it.
CudaDevices cuda_devices();

}  // namespace fanin::ort
