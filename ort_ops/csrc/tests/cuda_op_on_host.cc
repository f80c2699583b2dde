// The CUDA op without CUDA: a library whose CondensedGemm is the code of condensed_gemm_cuda.cc,
// offered to the CPU provider, with host memory in the device's place and the scalar reference in
// the kernels' place. Stock ONNX Runtime then runs everything of the op but its kernels.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/gemm.h"
#include "cuda/gemm.h"
#include "ort/condensed_gemm_cuda.h"
#include "ort/cuda_device.h"
#include "ort/status.h"

namespace fanin {
namespace {

uint16_t narrow_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // no NaN in these tests
}

std::vector<float> widened(const void* values, ValueType type, int64_t count) {
  std::vector<float> result(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) result[i] = load_value(values, type, i);
  return result;
}

template <typename T>
std::vector<T> copied(const void* from, int64_t count) {
  return {static_cast<const T*>(from), static_cast<const T*>(from) + count};
}

class HostGemm final : public cuda::PackedGemm {
 public:
  HostGemm(const CondensedView& view, BatchRange batches, ValueType activations)
      : batches_(batches),
        activations_(activations),
        view_(view),
        values_(copied<char>(view.values, view.active * view.fan_in * bytes_of(view.value_type))),
        indices_(copied<char>(view.indices, view.active * view.fan_in *
                                                (view.index_type == IndexType::kUint16 ? 2 : 4))),
        rows_(copied<int32_t>(view.rows, view.active)),
        bias_(copied<float>(view.bias, view.out_features)) {
    view_.values = values_.data();
    view_.indices = indices_.data();
    view_.rows = rows_.data();
    view_.bias = bias_.data();
  }

  void run(const void* x, int64_t batch, void* y, const cuda::Epilogue& epilogue,
           void*) const override {
    const std::vector<float> wide = widened(x, activations_, batch * view_.in_features);
    const int64_t outputs = batch * view_.out_features;
    std::vector<float> add, sums(static_cast<size_t>(outputs));
    if (epilogue.residual) add = widened(epilogue.residual, activations_, outputs);
    run_plain(view_, wide.data(), batch, sums.data(),
              {epilogue.residual ? add.data() : nullptr, epilogue.clip_min, epilogue.clip_max});
    if (activations_ == ValueType::kFloat32)
      std::memcpy(y, sums.data(), sums.size() * sizeof(float));
    else if (activations_ == ValueType::kFloat16)
      narrow_float16(sums.data(), outputs, static_cast<uint16_t*>(y));
    else
      for (int64_t i = 0; i < outputs; ++i) static_cast<uint16_t*>(y)[i] = narrow_bfloat16(sums[i]);
  }

  std::vector<PackedInfo> info() const override {
    PackedInfo info;
    info.kernel = "host-double";
    info.batches = batches_;
    info.bytes = static_cast<int64_t>(values_.size() + indices_.size());
    return {info};
  }

 private:
  static int64_t bytes_of(ValueType type) { return static_cast<int64_t>(value_bytes(type)); }

  const BatchRange batches_;
  const ValueType activations_;
  CondensedView view_;
  const std::vector<char> values_, indices_;
  const std::vector<int32_t> rows_;
  const std::vector<float> bias_;
};

}  // namespace

std::unique_ptr<cuda::PackedGemm> cuda::PackedGemm::pack(const CondensedView& view,
                                                         BatchRange batches, ValueType activations,
                                                         int) {
  // A layer of this size stands for one that the device has no room for.
  class NoRoom : public std::bad_alloc {
    const char* what() const noexcept override { return "96 bytes for the weights"; }
  };
  if (view.in_features == 404) throw NoRoom();
  return std::make_unique<HostGemm>(view, batches, activations);
}

namespace ort {

DeviceGuard::DeviceGuard(int) {}
DeviceGuard::~DeviceGuard() = default;
void copy_to_host(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

}  // namespace ort
}  // namespace fanin

extern "C" __attribute__((visibility("default"))) fanin::ort::OrtStatus* RegisterCustomOps(
    fanin::ort::OrtSessionOptions* options, const fanin::ort::OrtApiBase* base) {
  using namespace fanin::ort;
  return guarded(Api(base->GetApi(1)), "fanin", [&] {
    const Runtime& runtime = *new Runtime(Runtime::of(*base));
    OrtCustomOpDomain* domain = nullptr;
    check(runtime.api, runtime.api.CreateCustomOpDomain("ai.fanin", &domain));
    for (const ElementType type : {kFloat, kFloat16, kBfloat16}) {
      auto* op = new CudaGemmOp(runtime, type);
      op->GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
      check(runtime.api, runtime.api.CustomOpDomain_Add(domain, op));
    }
    check(runtime.api, runtime.api.AddCustomOpDomain(options, domain));
  });
}
