#include "runtime.h"

#include <dlfcn.h>

#include <stdexcept>

namespace {

constexpr uint32_t kApiVersion = 17;  // onnxruntime 1.17, which fanin's ops require
constexpr int kMaxThreads = 1024;

// Releases a runtime object at the end of a scope.
template <typename Object>
auto scoped(Object* object, void (*release)(Object*)) {
  return std::unique_ptr<Object, void (*)(Object*)>(object, release);
}

}  // namespace

Runtime::Runtime(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) throw std::runtime_error(std::string("cannot load ONNX Runtime: ") + dlerror());
  auto* entry = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(handle, "OrtGetApiBase"));
  if (!entry) throw std::runtime_error(library + " is not ONNX Runtime: no OrtGetApiBase");
  const OrtApiBase* base = entry();
  version_ = base->GetVersionString();
  api_ = base->GetApi(kApiVersion);
  if (!api_) throw std::runtime_error("ONNX Runtime " + version_ + " is older than 1.17");
}

void Runtime::check(OrtStatus* status) const {
  if (!status) return;
  std::string message = api_->GetErrorMessage(status);
  api_->ReleaseStatus(status);
  throw std::runtime_error(message);
}

Model::Model(const Runtime& runtime, const std::string& path, const std::string& ops, int threads)
    : runtime_(runtime) {
  if (threads < 1 || threads > kMaxThreads)
    throw std::runtime_error(std::to_string(threads) + " threads: pass 1 to " +
                             std::to_string(kMaxThreads));
  const OrtApi* api = runtime.api();
  OrtSessionOptions* created = nullptr;
  runtime.check(api->CreateSessionOptions(&created));
  auto options = scoped(created, api->ReleaseSessionOptions);
  runtime.check(api->SetIntraOpNumThreads(options.get(), threads));
  // The ops cannot query the number of threads; they read it here when they are registered.
  runtime.check(
      api->AddSessionConfigEntry(options.get(), "fanin.threads", std::to_string(threads).c_str()));
  runtime.check(api->RegisterCustomOpsLibrary_V2(options.get(), ops.c_str()));
  runtime.check(api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "fanin_app", &env_));
  try {
    runtime.check(api->CreateSession(env_, path.c_str(), options.get(), &session_));
    size_t inputs = 0, outputs = 0;
    runtime.check(api->SessionGetInputCount(session_, &inputs));
    runtime.check(api->SessionGetOutputCount(session_, &outputs));
    if (inputs != 1 || outputs != 1)
      throw std::runtime_error("the model must have one input and one output");
    input_ = name(true);
    output_ = name(false);
  } catch (...) {
    if (session_) api->ReleaseSession(session_);
    api->ReleaseEnv(env_);
    throw;
  }
}

Model::~Model() {
  runtime_.api()->ReleaseSession(session_);
  runtime_.api()->ReleaseEnv(env_);
}

std::string Model::name(bool input) const {
  const OrtApi* api = runtime_.api();
  OrtAllocator* allocator = nullptr;
  runtime_.check(api->GetAllocatorWithDefaultOptions(&allocator));
  char* text = nullptr;
  runtime_.check(input ? api->SessionGetInputName(session_, 0, allocator, &text)
                       : api->SessionGetOutputName(session_, 0, allocator, &text));
  std::string copy = text;
  runtime_.check(api->AllocatorFree(allocator, text));
  return copy;
}

std::vector<float> Model::run(std::vector<float>& input, const std::vector<int64_t>& shape) const {
  const OrtApi* api = runtime_.api();
  OrtMemoryInfo* described = nullptr;
  runtime_.check(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &described));
  auto memory = scoped(described, api->ReleaseMemoryInfo);
  OrtValue* tensor = nullptr;
  runtime_.check(api->CreateTensorWithDataAsOrtValue(
      memory.get(), input.data(), input.size() * sizeof(float), shape.data(), shape.size(),
      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &tensor));
  auto x = scoped(tensor, api->ReleaseValue);
  if (count_floats(tensor) != input.size())
    throw std::runtime_error("the input has more numbers than its shape");

  const char* inputs[] = {input_.c_str()};
  const char* outputs[] = {output_.c_str()};
  const OrtValue* values[] = {x.get()};
  OrtValue* result = nullptr;
  runtime_.check(api->Run(session_, nullptr, inputs, values, 1, outputs, 1, &result));
  auto y = scoped(result, api->ReleaseValue);

  void* data = nullptr;
  runtime_.check(api->GetTensorMutableData(y.get(), &data));
  auto* first = static_cast<const float*>(data);
  return std::vector<float>(first, first + count_floats(y.get()));
}

size_t Model::count_floats(const OrtValue* tensor) const {
  const OrtApi* api = runtime_.api();
  OrtTensorTypeAndShapeInfo* typed = nullptr;
  runtime_.check(api->GetTensorTypeAndShape(tensor, &typed));
  auto info = scoped(typed, api->ReleaseTensorTypeAndShapeInfo);
  ONNXTensorElementDataType type{};
  size_t count = 0;
  runtime_.check(api->GetTensorElementType(info.get(), &type));
  if (type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
    throw std::runtime_error("the output is not float32");
  runtime_.check(api->GetTensorShapeElementCount(info.get(), &count));
  return count;
}
