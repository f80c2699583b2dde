// The CUDA ops without CUDA: a library with the ops of ort/cuda_op.h, registered for the CPU
// provider, with host memory instead of device memory and the plain kernels instead of CUDA
// kernels. Stock ONNX Runtime then runs all code of the ops except their kernels.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/conv.h"
#include "core/gemm.h"
#include "cuda/conv.h"
#include "cuda/gemm.h"
#include "ort/cuda_device.h"
#include "ort/cuda_op.h"
#include "ort/export.h"
#include "ort/ops.h"
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

// A copy of a layer's arrays, in host memory instead of device memory.
class HostLayer {
 public:
  HostLayer(const CondensedView& view, ValueType activations)
      : activations_(activations),
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

  const CondensedView& view() const { return view_; }

  // Calls run(x, y, epilogue) in float32 on arrays of these sizes.
  template <typename Run>
  void run(const void* x, int64_t inputs, void* y, int64_t outputs, const cuda::Epilogue& epilogue,
           const Run& run) const {
    const std::vector<float> wide = widened(x, activations_, inputs);
    std::vector<float> add, sums(static_cast<size_t>(outputs));
    if (epilogue.residual) add = widened(epilogue.residual, activations_, outputs);
    run(wide.data(), sums.data(),
        Epilogue{epilogue.residual ? add.data() : nullptr, epilogue.clip_min, epilogue.clip_max});
    if (activations_ == ValueType::kFloat32)
      std::memcpy(y, sums.data(), sums.size() * sizeof(float));
    else if (activations_ == ValueType::kFloat16)
      narrow_float16(sums.data(), outputs, static_cast<uint16_t*>(y));
    else
      for (int64_t i = 0; i < outputs; ++i) static_cast<uint16_t*>(y)[i] = narrow_bfloat16(sums[i]);
  }

  PackedInfo info() const {
    PackedInfo info;
    info.kernel = "host-double";
    info.bytes = static_cast<int64_t>(values_.size() + indices_.size());
    return info;
  }

 private:
  static int64_t bytes_of(ValueType type) { return static_cast<int64_t>(value_bytes(type)); }

  const ValueType activations_;
  CondensedView view_;
  const std::vector<char> values_, indices_;
  const std::vector<int32_t> rows_;
  const std::vector<float> bias_;
};

class HostGemm final : public cuda::PackedGemm {
 public:
  HostGemm(const CondensedView& view, BatchRange batches, ValueType activations)
      : batches_(batches), layer_(view, activations) {}

  void run(const void* x, int64_t batch, void* y, const cuda::Epilogue& epilogue, void*,
           bool) const override {
    const CondensedView& view = layer_.view();
    layer_.run(x, batch * view.in_features, y, batch * view.out_features, epilogue,
               [&](const float* wide, float* sums, const Epilogue& end) {
                 run_plain(view, wide, batch, sums, end);
               });
  }

  std::vector<PackedInfo> info() const override {
    PackedInfo info = layer_.info();
    info.batches = batches_;
    return {info};
  }

 private:
  const BatchRange batches_;
  const HostLayer layer_;
};

class HostConv final : public cuda::PackedConv {
 public:
  HostConv(const CondensedView& view, const ConvGeometry& geometry, ValueType activations)
      : geometry_(geometry), layer_(view, activations) {}

  void run(const void* x, const ConvInput& input, void* y, const cuda::ConvEpilogue& epilogue,
           void*, bool) const override {
    const int64_t pixels =
        geometry_.output_size(0, input.height) * geometry_.output_size(1, input.width);
    layer_.run(x, input.batch * geometry_.in_channels * input.height * input.width, y,
               input.batch * geometry_.out_channels * pixels, epilogue,
               [&](const float* wide, float* sums, const Epilogue& end) {
                 run_plain_conv(layer_.view(), geometry_, wide, input, sums, {end, epilogue.gate});
               });
  }

  std::vector<PackedInfo> info() const override { return {layer_.info()}; }

 private:
  const ConvGeometry geometry_;
  const HostLayer layer_;
};

// A layer of this size stands for one that does not fit into device memory.
void refuse_mark(const CondensedView& view) {
  class NoRoom : public std::bad_alloc {
    const char* what() const noexcept override { return "96 bytes for the weights"; }
  };
  if (view.in_features == 404) throw NoRoom();
}

}  // namespace

std::unique_ptr<cuda::PackedGemm> cuda::PackedGemm::pack(const CondensedView& view,
                                                         BatchRange batches, ValueType activations,
                                                         int) {
  refuse_mark(view);
  return std::make_unique<HostGemm>(view, batches, activations);
}

std::unique_ptr<cuda::PackedConv> cuda::PackedConv::pack(const CondensedView& view,
                                                         const ConvGeometry& geometry,
                                                         ValueType activations, int) {
  refuse_mark(view);
  return std::make_unique<HostConv>(view, geometry, activations);
}

namespace ort {

DeviceGuard::DeviceGuard(int) {}
DeviceGuard::~DeviceGuard() = default;
void copy_to_host(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

}  // namespace ort
}  // namespace fanin

extern "C" FANIN_EXPORT fanin::ort::OrtStatus* RegisterCustomOps(
    fanin::ort::OrtSessionOptions* options, const fanin::ort::OrtApiBase* base) {
  using namespace fanin::ort;
  return guarded(Api(base->GetApi(1)), "fanin", [&] {
    const Runtime& runtime = *new Runtime(Runtime::of(*base));
    OrtCustomOpDomain* domain = nullptr;
    check(runtime.api, runtime.api.CreateCustomOpDomain("ai.fanin", &domain));
    visit_cuda_ops([&](auto visited) {
      using Op = typename decltype(visited)::Op;
      for (const ElementType type : Op::kCudaTypes) {
        auto* op = new CudaOp<Op>(runtime, type);
        op->GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
        check(runtime.api, runtime.api.CustomOpDomain_Add(domain, op));
      }
    });
    check(runtime.api, runtime.api.AddCustomOpDomain(options, domain));
  });
}
