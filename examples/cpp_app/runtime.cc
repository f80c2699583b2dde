#include "runtime.h"

#include <dlfcn.h>

#include <stdexcept>

namespace {

// Releases a runtime object at the end of a scope.
template <typename Object, typename Release>
auto scoped(const OrtApi* api, Object* object, Release release) {
  auto deleter = [api, release](Object* held) { release(api, held); };
  return std::unique_ptr<Object, decltype(deleter)>(object, deleter);
}

}  // namespace

Runtime::Runtime(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) throw std::runtime_error(std::string("cannot load ONNX Runtime: ") + dlerror());
  auto* entry = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(handle, "OrtGetApiBase"));
  if (!entry) throw std::runtime_error(library + " is not ONNX Runtime: no OrtGetApiBase");
  const OrtApiBase* base = entry();
  version_ = base->GetVersionString();
  api_ = base->GetApi(abi::kApiVersion);
  if (!api_) throw std::runtime_error("ONNX Runtime " + version_ + " is older than 1.17");
}

void Runtime::check(OrtStatus* status) const {
  if (!status) return;
  std::string message = abi::GetErrorMessage(api_, status);
  abi::ReleaseStatus(api_, status);
  throw std::runtime_error(message);
}

Model::Model(const Runtime& runtime, const std::string& path, const std::string& ops, int threads)
    : runtime_(runtime) {
  const OrtApi* api = runtime.api();
  OrtSessionOptions* created = nullptr;
  runtime.check(abi::CreateSessionOptions(api, &created));
  auto options = scoped(api, created, abi::ReleaseSessionOptions);
  runtime.check(abi::SetIntraOpNumThreads(api, options.get(), threads));
  // The ops cannot query the number of threads; they read it here when they are registered.
  runtime.check(abi::AddSessionConfigEntry(api, options.get(), "fanin.threads",
                                           std::to_string(threads).c_str()));
  void* handle = nullptr;  // never closed: sessions keep pointers into the library
  runtime.check(abi::RegisterCustomOpsLibrary(api, options.get(), ops.c_str(), &handle));
  runtime.check(abi::CreateEnv(api, abi::kLogWarning, "fanin_app", &env_));
  try {
    runtime.check(abi::CreateSession(api, env_, path.c_str(), options.get(), &session_));
    size_t inputs = 0, outputs = 0;
    runtime.check(abi::SessionGetInputCount(api, session_, &inputs));
    runtime.check(abi::SessionGetOutputCount(api, session_, &outputs));
    if (inputs != 1 || outputs != 1)
      throw std::runtime_error("the model must have one input and one output");
    input_ = name(true);
    output_ = name(false);
  } catch (...) {
    if (session_) abi::ReleaseSession(api, session_);
    abi::ReleaseEnv(api, env_);
    throw;
  }
}

Model::~Model() {
  abi::ReleaseSession(runtime_.api(), session_);
  abi::ReleaseEnv(runtime_.api(), env_);
}

std::string Model::name(bool input) const {
  const OrtApi* api = runtime_.api();
  OrtAllocator* allocator = nullptr;
  runtime_.check(abi::GetAllocatorWithDefaultOptions(api, &allocator));
  char* text = nullptr;
  runtime_.check(input ? abi::SessionGetInputName(api, session_, 0, allocator, &text)
                       : abi::SessionGetOutputName(api, session_, 0, allocator, &text));
  std::string copy = text;
  runtime_.check(abi::AllocatorFree(api, allocator, text));
  return copy;
}

std::vector<float> Model::run(std::vector<float>& input, const std::vector<int64_t>& shape) const {
  const OrtApi* api = runtime_.api();
  OrtMemoryInfo* described = nullptr;
  runtime_.check(
      abi::CreateCpuMemoryInfo(api, abi::kArenaAllocator, abi::kDefaultMemory, &described));
  auto memory = scoped(api, described, abi::ReleaseMemoryInfo);
  OrtValue* tensor = nullptr;
  runtime_.check(abi::CreateTensorWithDataAsOrtValue(api, memory.get(), input.data(),
                                                     input.size() * sizeof(float), shape.data(),
                                                     shape.size(), abi::kFloat, &tensor));
  auto x = scoped(api, tensor, abi::ReleaseValue);

  const char* inputs[] = {input_.c_str()};
  const char* outputs[] = {output_.c_str()};
  const OrtValue* values[] = {x.get()};
  OrtValue* result = nullptr;
  runtime_.check(abi::Run(api, session_, nullptr, inputs, values, 1, outputs, 1, &result));
  auto y = scoped(api, result, abi::ReleaseValue);

  OrtTensorTypeAndShapeInfo* typed = nullptr;
  runtime_.check(abi::GetTensorTypeAndShape(api, y.get(), &typed));
  auto info = scoped(api, typed, abi::ReleaseTensorTypeAndShapeInfo);
  int type = 0;
  size_t count = 0;
  runtime_.check(abi::GetTensorElementType(api, info.get(), &type));
  if (type != abi::kFloat) throw std::runtime_error("the output is not float32");
  runtime_.check(abi::GetTensorShapeElementCount(api, info.get(), &count));
  void* data = nullptr;
  runtime_.check(abi::GetTensorMutableData(api, y.get(), &data));
  auto* first = static_cast<const float*>(data);
  return std::vector<float>(first, first + count);
}
