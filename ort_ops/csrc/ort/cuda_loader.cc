#include "ort/cuda_loader.h"

#include <cstring>
#include <type_traits>

#include "core/shared_library.h"

namespace fanin::ort {
namespace {

constexpr const char* kDriver = "libcuda.so.1";

CudaLoad failed(CudaLoad::State state, const std::string& problem) {
  return {state, problem, nullptr};
}

// The driver's functions for listing devices, by names and signatures that its interface
// guarantees.
struct Driver {
  int (*init)(unsigned flags) = nullptr;
  int (*version)(int* out) = nullptr;
  int (*count)(int* out) = nullptr;
  int (*device)(int* out, int ordinal) = nullptr;
  int (*name)(char* out, int size, int device) = nullptr;
  int (*attribute)(int* out, int attribute, int device) = nullptr;
  int (*error_text)(int error, const char** out) = nullptr;

  bool resolve(void* handle) {
    const auto find = [handle](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
          find_symbol(handle, symbol));
      return function != nullptr;
    };
    return find(init, "cuInit") && find(version, "cuDriverGetVersion") &&
           find(count, "cuDeviceGetCount") && find(device, "cuDeviceGet") &&
           find(name, "cuDeviceGetName") && find(attribute, "cuDeviceGetAttribute") &&
           find(error_text, "cuGetErrorString");
  }

  std::string text(int error) const {
    const char* text = nullptr;
    error_text(error, &text);
    return (text == nullptr ? "unknown error" : std::string(text)) + " (CUDA error " +
           std::to_string(error) + ")";
  }
};

// Adds the name of a device and what is known of it.
void describe(const Driver& driver, int ordinal, CudaDevices& devices) {
  int device = 0;
  char name[256] = "unknown device";
  CudaDeviceFacts facts;
  if (driver.device(&device, ordinal) != 0) {
    devices.names.emplace_back(name);
    devices.facts.push_back(facts);
    return;
  }
  driver.name(name, sizeof name, device);
  const auto attribute = [&](int number) {
    int value = 0;
    return driver.attribute(&value, number, device) == 0 ? value : 0;
  };
  // CU_DEVICE_ATTRIBUTE_...: COMPUTE_CAPABILITY_MAJOR, _MINOR
  const int major = attribute(75), minor = attribute(76);
  facts.capability = 10 * major + minor;
  facts.multiprocessors = attribute(16);   // MULTIPROCESSOR_COUNT
  facts.clock_khz = attribute(13);         // CLOCK_RATE
  facts.memory_clock_khz = attribute(36);  // MEMORY_CLOCK_RATE
  facts.memory_bus_bits = attribute(37);   // GLOBAL_MEMORY_BUS_WIDTH
  facts.l2_bytes = attribute(38);          // L2_CACHE_SIZE
  facts.shared_bytes = attribute(97);      // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
  devices.names.push_back(std::string(name) + " (" + std::to_string(major) + "." +
                          std::to_string(minor) + ")");
  devices.facts.push_back(facts);
}

}  // namespace

std::string own_path() {
  const std::string path = library_of(reinterpret_cast<const void*>(&own_path));
  return path.empty() ? "a library without a name" : path;
}

void stay_loaded() { keep_library_of(reinterpret_cast<const void*>(&own_path)); }

std::string own_folder() {
  const std::string path = own_path();
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string cuda_library_path(const std::string& folder) {
  for (const char* beside : {"/", "/../../fanin_cuda/"}) {
    const std::string path = folder + beside + kCudaLibrary;
    if (has_library(path)) return path;
  }
  return "";
}

CudaLoad load_cuda_library(const std::string& folder) {
  using State = CudaLoad::State;
  const std::string path = cuda_library_path(folder);
  if (path.empty()) {
    return failed(State::kNotBuilt,
                  std::string("fanin's CUDA kernels are not installed: neither ") + folder +
                      " nor the package fanin_cuda has " + kCudaLibrary);
  }
  std::string problem;
  if (open_library(kDriver, problem) == nullptr)
    return failed(State::kNoDriver, "there is no NVIDIA driver: " + problem);
  // Kept until the process ends, since the runtime has pointers into it.
  void* handle = open_library(path, problem);
  if (handle == nullptr) return failed(State::kBroken, path + " does not load: " + problem);
  const auto function = reinterpret_cast<CudaLibraryFunction>(find_symbol(handle, kCudaSymbol));
  if (function == nullptr) {
    close_library(handle);
    return failed(State::kBroken, path + " is not fanin's: it exports no " + kCudaSymbol);
  }
  const CudaLibrary* library = function();
  if (std::strcmp(library->build, build_id()) != 0) {
    const std::string other = library->build;
    close_library(handle);
    return failed(State::kBroken, path + " is of another build (" + other +
                                      ") than the library that "
                                      "loads it (" +
                                      build_id() + ")");
  }
  return {State::kLoaded, "", library};
}

CudaDevices cuda_devices() {
  CudaDevices devices;
  std::string problem;
  void* handle = open_library(kDriver, problem);
  if (handle == nullptr) {
    devices.problem = "there is no NVIDIA driver: " + problem;
    return devices;
  }
  Driver driver;
  if (!driver.resolve(handle)) {
    devices.problem = std::string(kDriver) + " lacks functions of the CUDA driver";
    return devices;
  }
  driver.version(&devices.driver_version);
  int count = 0;
  int error = driver.init(0);
  if (error == 0) error = driver.count(&count);
  if (error != 0) {
    devices.problem = "the NVIDIA driver reports: " + driver.text(error);
    return devices;
  }
  for (int i = 0; i < count; ++i) describe(driver, i, devices);
  if (count == 0) devices.problem = "the NVIDIA driver reports no device";
  return devices;
}

}  // namespace fanin::ort
