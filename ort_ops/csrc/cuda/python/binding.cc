// fanin.ort_ops._cuda: the CUDA kernels on device memory, by address, for tests and benchmarks.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/conv.h"
#include "cuda/dispatch.h"
#include "cuda/gemm.h"
#include "cuda/host_run.h"
#include "cuda/pack.h"
#include "cuda/python/conv_arrays.h"
#include "cuda/python/layer.h"
#include "python/arrays.h"

namespace py = pybind11;

namespace fanin::cuda {
namespace {

std::vector<py::dict> dicts_of(const std::vector<PackedInfo>& layouts) {
  std::vector<py::dict> dicts;
  for (const PackedInfo& info : layouts) {
    py::dict row;
    row["kernel"] = info.kernel;
    row["min_batch"] = info.batches.min;
    row["max_batch"] = limit(info.batches.max);
    row["bytes"] = info.bytes;
    row["padding"] = info.padding;
    row["shared"] = info.shared;
    row["seconds"] = info.seconds;
    dicts.push_back(row);
  }
  return dicts;
}

class PyGemm {
 public:
  PyGemm(const py::array& values, const std::string& value_type, const py::array& indices,
         const py::array& rows, const py::array& bias, int64_t in_features,
         const std::string& activations, int device, int64_t min_batch,
         std::optional<int64_t> max_batch, const std::optional<std::string>& kernel)
      : in_features_(in_features),
        out_features_(bias.size()),
        element_bytes_(static_cast<int64_t>(value_bytes(parse_type(activations)))) {
    const CondensedView view =
        view_of(values, parse_type(value_type), indices, rows, bias, in_features);
    BatchRange batches;
    batches.min = min_batch;
    if (max_batch) batches.max = *max_batch;
    if (batches.min < 1 || batches.max < batches.min)
      throw std::invalid_argument("batches of " + std::to_string(batches.min) + " to " +
                                  std::to_string(batches.max) + " are not a range");
    const ValueType type = parse_type(activations);
    const py::gil_scoped_release release;
    packed_ = kernel ? pack_kernel(view, batches, type, device, *kernel)
                     : PackedGemm::pack(view, batches, type, device);
  }

  void run(uintptr_t x, int64_t batch, uintptr_t y, uintptr_t residual, float clip_min,
           float clip_max, uintptr_t stream, bool tf32) const {
    Epilogue epilogue;
    epilogue.residual = reinterpret_cast<const void*>(residual);
    epilogue.clip_min = clip_min;
    epilogue.clip_max = clip_max;
    packed_->run(reinterpret_cast<const void*>(x), batch, reinterpret_cast<void*>(y), epilogue,
                 reinterpret_cast<void*>(stream), tf32);
  }

  void run_arrays(const py::array& x, py::array y, const py::object& residual, float clip_min,
                  float clip_max, int64_t shift, bool tf32) const {
    HostArrays arrays;
    arrays.x = data_of(x, x.shape(0), in_features_);
    arrays.x_bytes = x.nbytes();
    arrays.y_bytes = y.nbytes();
    if (!residual.is_none())
      arrays.residual = data_of(residual.cast<py::array>(), x.shape(0), out_features_);
    data_of(y, x.shape(0), out_features_);
    arrays.y = y.mutable_data();
    arrays.batch = x.shape(0);
    arrays.shift = shift;
    arrays.clip_min = clip_min;
    arrays.clip_max = clip_max;
    arrays.tf32 = tf32;
    const py::gil_scoped_release release;
    run_on_host_arrays(*packed_, arrays);
  }

  std::vector<py::dict> info() const { return dicts_of(packed_->info()); }

 private:
  const void* data_of(const py::array& array, int64_t rows, int64_t columns) const {
    if (array.ndim() != 2 || array.shape(0) != rows || array.shape(1) != columns ||
        array.itemsize() != element_bytes_ || !(array.flags() & py::array::c_style))
      throw std::invalid_argument("an array has the wrong shape, type or layout");
    return array.data();
  }

  int64_t in_features_;
  int64_t out_features_;
  int64_t element_bytes_;
  std::unique_ptr<PackedGemm> packed_;
};

class PyConv {
 public:
  PyConv(const py::array& values, const std::string& value_type, const py::array& indices,
         const py::array& rows, const py::array& bias, int64_t in_features, int64_t in_channels,
         int64_t group, const Pair& kernel, const Pair& strides, const std::array<int64_t, 4>& pads,
         const Pair& dilations, const std::string& activations, int device,
         const std::optional<std::string>& conv_kernel)
      : element_bytes_(static_cast<int64_t>(value_bytes(parse_type(activations)))) {
    const CondensedView view =
        view_of(values, parse_type(value_type), indices, rows, bias, in_features);
    geometry_ = geometry_of(view, in_channels, group, kernel, strides, pads, dilations);
    const ValueType type = parse_type(activations);
    const py::gil_scoped_release release;
    packed_ = conv_kernel ? pack_conv_kernel(view, geometry_, type, device, *conv_kernel)
                          : PackedConv::pack(view, geometry_, type, device);
  }

  void run(uintptr_t x, int64_t batch, int64_t height, int64_t width, uintptr_t y,
           uintptr_t residual, float clip_min, float clip_max, uintptr_t stream, bool tf32) const {
    const ConvInput input{batch, height, width};
    const std::string why = validate(geometry_, input);
    if (!why.empty()) throw std::invalid_argument(why);
    const ConvEpilogue epilogue{{reinterpret_cast<const void*>(residual), clip_min, clip_max}, {}};
    packed_->run(reinterpret_cast<const void*>(x), input, reinterpret_cast<void*>(y), epilogue,
                 reinterpret_cast<void*>(stream), tf32);
  }

  void run_arrays(const py::array& x, py::array y, const py::object& residual, float clip_min,
                  float clip_max, float gate_scale, float gate_shift, int64_t shift,
                  bool tf32) const {
    const ConvInput input = input_of(geometry_, x, residual, y, element_bytes_);
    HostArrays arrays;
    arrays.x = x.data();
    arrays.x_bytes = x.nbytes();
    arrays.y_bytes = y.nbytes();
    if (!residual.is_none()) arrays.residual = residual.cast<py::array>().data();
    arrays.y = y.mutable_data();
    arrays.shift = shift;
    arrays.clip_min = clip_min;
    arrays.clip_max = clip_max;
    arrays.gate = {gate_scale, gate_shift};
    arrays.tf32 = tf32;
    const py::gil_scoped_release release;
    run_on_host_arrays(*packed_, input, arrays);
  }

  std::vector<py::dict> info() const { return dicts_of(packed_->info()); }

 private:
  const int64_t element_bytes_;
  ConvGeometry geometry_;
  std::unique_ptr<PackedConv> packed_;
};

std::vector<py::dict> table() {
  std::vector<py::dict> rows;
  for (const KernelRow& kernel : kernel_table()) {
    if (kernel.op != Op::kGemm) continue;  // only those that PackedGemm accepts by name
    py::dict row;
    row["name"] = kernel.name;
    row["layout"] = layout_name(kernel.layout);
    row["activations"] = value_type_name(kernel.activations);
    row["min_batch"] = kernel.batches.min;
    row["max_batch"] = limit(kernel.batches.max);
    row["proven"] = kernel.proven;
    row["tf32"] = kernel.tf32;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace
}  // namespace fanin::cuda

PYBIND11_MODULE(_cuda, module) {
  using fanin::cuda::PyGemm;
  using namespace pybind11::literals;
  const float infinity = std::numeric_limits<float>::infinity();
  // std::bad_alloc would otherwise lose its message when converted to MemoryError.
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const std::bad_alloc& full) {
      PyErr_SetString(PyExc_MemoryError, full.what());
    }
  });
  py::class_<PyGemm>(module, "PackedGemm")
      .def(py::init<const py::array&, const std::string&, const py::array&, const py::array&,
                    const py::array&, int64_t, const std::string&, int, int64_t,
                    std::optional<int64_t>, const std::optional<std::string>&>(),
           py::kw_only(), "values"_a, "value_type"_a, "indices"_a, "rows"_a, "bias"_a,
           "in_features"_a, "activations"_a, "device"_a = 0, "min_batch"_a = 1,
           "max_batch"_a = py::none(), "kernel"_a = py::none())
      .def("run", &PyGemm::run, py::kw_only(), "x"_a, "batch"_a, "y"_a, "residual"_a = 0,
           "clip_min"_a = -infinity, "clip_max"_a = infinity, "stream"_a = 0, "tf32"_a = false)
      .def("run_arrays", &PyGemm::run_arrays, "x"_a, py::kw_only(), "y"_a,
           "residual"_a = py::none(), "clip_min"_a = -infinity, "clip_max"_a = infinity,
           "shift"_a = 0, "tf32"_a = false)
      .def("info", &PyGemm::info);
  using fanin::cuda::PyConv;
  py::class_<PyConv>(module, "PackedConv")
      .def(py::init<const py::array&, const std::string&, const py::array&, const py::array&,
                    const py::array&, int64_t, int64_t, int64_t, const fanin::cuda::Pair&,
                    const fanin::cuda::Pair&, const std::array<int64_t, 4>&,
                    const fanin::cuda::Pair&, const std::string&, int,
                    const std::optional<std::string>&>(),
           py::kw_only(), "values"_a, "value_type"_a, "indices"_a, "rows"_a, "bias"_a,
           "in_features"_a, "in_channels"_a, "group"_a, "kernel"_a, "strides"_a, "pads"_a,
           "dilations"_a, "activations"_a, "device"_a = 0, "conv_kernel"_a = py::none())
      .def("run", &PyConv::run, py::kw_only(), "x"_a, "batch"_a, "height"_a, "width"_a, "y"_a,
           "residual"_a = 0, "clip_min"_a = -infinity, "clip_max"_a = infinity, "stream"_a = 0,
           "tf32"_a = false)
      .def("run_arrays", &PyConv::run_arrays, "x"_a, py::kw_only(), "y"_a,
           "residual"_a = py::none(), "clip_min"_a = -infinity, "clip_max"_a = infinity,
           "gate_scale"_a = 0.0f, "gate_shift"_a = 1.0f, "shift"_a = 0, "tf32"_a = false)
      .def("info", &PyConv::info);
  module.def("device_count", &fanin::cuda::device_count);
  module.def("kernel_table", &fanin::cuda::table);
}
