// A custom-op library of somebody else: Twice of the domain "test.other" doubles a float tensor.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ort/abi.h"

namespace {

using namespace fanin::ort;

const OrtApi* table = nullptr;

void double_it(void*, OrtKernelContext* context) {
  const Api api(table);
  const OrtValue* x = nullptr;
  api.KernelContext_GetInput(context, size_t{0}, &x);
  OrtTensorTypeAndShapeInfo* info = nullptr;
  api.GetTensorTypeAndShape(x, &info);
  size_t rank = 0;
  api.GetDimensionsCount(info, &rank);
  std::vector<int64_t> dims(rank);
  api.GetDimensions(info, dims.data(), rank);
  api.ReleaseTensorTypeAndShapeInfo(info);
  size_t count = 1;
  for (const int64_t dim : dims) count *= static_cast<size_t>(dim);
  OrtValue* y = nullptr;
  api.KernelContext_GetOutput(context, size_t{0}, dims.data(), rank, &y);
  void *from = nullptr, *to = nullptr;
  api.GetTensorMutableData(const_cast<OrtValue*>(x), &from);
  api.GetTensorMutableData(y, &to);
  for (size_t i = 0; i < count; ++i)
    static_cast<float*>(to)[i] = 2 * static_cast<const float*>(from)[i];
}

OrtCustomOp twice() {
  OrtCustomOp op{};
  op.version = kApiVersion;
  op.CreateKernel = [](const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*) -> void* {
    static char kernel;
    return &kernel;
  };
  op.GetName = [](const OrtCustomOp*) { return "Twice"; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op.GetInputType = [](const OrtCustomOp*, size_t) { return kFloat; };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
  op.GetOutputType = [](const OrtCustomOp*, size_t) { return kFloat; };
  op.GetOutputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
  op.KernelCompute = double_it;
  op.KernelDestroy = [](void*) {};
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return kRequired; };
  op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return kRequired; };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return kDefaultMemory; };
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return 1; };
  return op;
}

}  // namespace

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  table = base->GetApi(kApiVersion);
  const Api api(table);
  static const OrtCustomOp op = twice();
  OrtCustomOpDomain* domain = nullptr;
  if (OrtStatus* status = api.CreateCustomOpDomain("test.other", &domain)) return status;
  if (OrtStatus* status = api.CustomOpDomain_Add(domain, &op)) return status;
  return api.AddCustomOpDomain(options, domain);
}
