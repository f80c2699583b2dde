// fanin.ort_ops._native: the kernels for NumPy arrays, for tests and kernel benchmarks.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/condensed.h"
#include "core/cpu_features.h"
#include "core/cpu_quota.h"
#include "core/executor.h"
#include "core/float16_run.h"
#include "core/gemm.h"
#include "core/packed_cache.h"
#include "core/thread_executor.h"
#include "kernels/dispatch.h"
#include "ort/cuda_loader.h"
#include "python/arrays.h"
#include "python/conv.h"
#include "python/cuda_dispatch.h"
#include "python/limits.h"
#include "python/quantized.h"
#include "python/quantized_conv.h"

namespace fanin {
namespace {

// What a layer computes in.
ValueType compute_of(const std::string& name) {
  for (ValueType type : {ValueType::kFloat32, ValueType::kBfloat16})
    if (name == value_type_name(type)) return type;
  throw std::invalid_argument("compute is '" + name + "', it must be float32 or bfloat16");
}

// A valid layer.
struct Layer : LayerArrays {
  Layer(const py::object& values_object, const py::object& indices_object,
        const py::object& rows_object, const py::object& bias_object, int64_t in_features,
        int64_t out_features, const std::string& compute = "float32")
      : LayerArrays(values_object, indices_object, rows_object, bias_object, in_features,
                    out_features) {
    view.compute = compute_of(compute);
    const std::string why = validate(view);
    if (!why.empty()) throw std::invalid_argument(why);
  }
};

// The arrays of one run: x, residual and y are all float32 or all float16.
struct Run {
  ValueType type;
  py::array x;
  py::array residual;  // of no dimension: none
  py::array y;
  float clip_min;
  float clip_max;

  // The result is written into `out`, or into a new array if that is None.
  Run(const py::object& x_object, const py::object& residual_object, float low, float high,
      int64_t in_features, int64_t out_features, const py::object& out = py::none())
      : clip_min(low), clip_max(high) {
    const FloatArray activations =
        float_array(x_object, "x", 2, {ValueType::kFloat32, ValueType::kFloat16});
    type = activations.type;
    x = activations.array;
    if (x.shape(1) != in_features)
      throw std::invalid_argument("x has the shape " + shape_text(x) + ", in_features is " +
                                  std::to_string(in_features));
    if (!residual_object.is_none()) {
      residual = float_array(residual_object, "residual", 2, {type}).array;
      if (residual.shape(0) != x.shape(0) || residual.shape(1) != out_features)
        throw std::invalid_argument("residual has the shape " + shape_text(residual) +
                                    ", the result has [" + std::to_string(x.shape(0)) + ", " +
                                    std::to_string(out_features) + "]");
    }
    if (out.is_none()) {
      y = py::array(type == ValueType::kFloat32 ? py::dtype::of<float>() : py::dtype("float16"),
                    {x.shape(0), static_cast<py::ssize_t>(out_features)});
      return;
    }
    const py::array same = float_array(out, "out", 2, {type}).array;  // a copy if it has gaps
    y = py::reinterpret_borrow<py::array>(out);
    if (same.data() != y.data() || !y.writeable() || y.shape(0) != x.shape(0) ||
        y.shape(1) != out_features)
      throw std::invalid_argument("out must be a writeable, C-contiguous array of the shape [" +
                                  std::to_string(x.shape(0)) + ", " + std::to_string(out_features) +
                                  "]");
  }

  // Calls run_float32(x, batch, y, epilogue), in float32 slices if the arrays are float16. Releases
  // the GIL.
  template <typename RunFloat32>
  void apply(const Executor& executor, const RunFloat32& run_float32) {
    const void* from = x.data();
    const void* add = residual.ndim() == 2 ? residual.data() : nullptr;
    void* to = y.mutable_data();
    const int64_t batch = x.shape(0), in_features = x.shape(1), out_features = y.shape(1);
    const py::gil_scoped_release release;
    if (type == ValueType::kFloat32) {
      run_float32(static_cast<const float*>(from), batch, static_cast<float*>(to),
                  Epilogue{static_cast<const float*>(add), clip_min, clip_max});
      return;
    }
    run_float16({static_cast<const uint16_t*>(from), static_cast<const uint16_t*>(add),
                 static_cast<uint16_t*>(to), batch, in_features, out_features},
                executor, [&](const Float32Slice& slice) {
                  run_float32(slice.x, slice.batch, slice.y,
                              Epilogue{slice.residual, clip_min, clip_max});
                });
  }
};

class PyGemm {
 public:
  PyGemm(const py::object& values, const py::object& indices, const py::object& rows,
         const py::object& bias, int64_t in_features, int64_t out_features, const std::string& isa,
         int64_t min_batch, std::optional<int64_t> max_batch, std::optional<std::string> kernel,
         int64_t threads, const std::string& compute)
      : in_features_(in_features), out_features_(out_features) {
    const Layer layer(values, indices, rows, bias, in_features, out_features, compute);
    const BatchRange range = batch_range(min_batch, max_batch);
    if (kernel && isa != "auto")
      throw std::invalid_argument("give either isa or kernel, since a kernel's name fixes its ISA");
    const Isa chosen = parse_isa(isa);
    const ThreadExecutor executor = threads_of(threads);
    py::gil_scoped_release release;
    packed_ = kernel ? PackedGemm::pack_kernel(layer.view, range, *kernel, executor)
                     : PackedGemm::pack(layer.view, range, chosen, executor);
  }

  py::array run(const py::object& x, const py::object& residual, float clip_min, float clip_max,
                int64_t threads, const py::object& out) const {
    const ThreadExecutor executor = threads_of(threads);
    Run run(x, residual, clip_min, clip_max, in_features_, out_features_, out);
    run.apply(executor, [&](const float* from, int64_t batch, float* to, const Epilogue& epilogue) {
      packed_->run(from, batch, to, epilogue, executor);
    });
    return run.y;
  }

  std::vector<PackedInfo> info() const { return packed_->info(); }

  WorkPlan plan(int64_t batch, int64_t threads, const std::pair<double, double>& dispatch) const {
    if (batch < 1)
      throw std::invalid_argument("batch is " + std::to_string(batch) + ", it must be 1 or more");
    return packed_->plan(batch, threads_of(threads).concurrency(), dispatch_of(dispatch));
  }

  bool holds(const py::object& values, const py::object& indices, const py::object& rows,
             const py::object& bias) const {
    return packed_->holds(Layer(values, indices, rows, bias, in_features_, out_features_).view);
  }

 private:
  int64_t in_features_;
  int64_t out_features_;
  std::unique_ptr<PackedGemm> packed_;
};

py::array run_plain_arrays(const py::object& values, const py::object& indices,
                           const py::object& rows, const py::object& bias, int64_t in_features,
                           int64_t out_features, const py::object& x, const py::object& residual,
                           float clip_min, float clip_max, const std::string& compute) {
  const Layer layer(values, indices, rows, bias, in_features, out_features, compute);
  Run run(x, residual, clip_min, clip_max, in_features, out_features);
  run.apply(InlineExecutor(),
            [&](const float* from, int64_t batch, float* to, const Epilogue& epilogue) {
              run_plain(layer.view, from, batch, to, epilogue);
            });
  return run.y;
}

uint64_t content_hash_arrays(const py::object& values, const py::object& indices,
                             const py::object& rows, const py::object& bias, int64_t in_features,
                             int64_t out_features) {
  return content_hash(Layer(values, indices, rows, bias, in_features, out_features).view);
}

}  // namespace
}  // namespace fanin

// Free-threaded Python keeps its lock off: no object of this module changes once it is made, and
// what they share (packed layers, memory) has locks of its own, since `run` has always released the
// GIL.
PYBIND11_MODULE(_native, module, pybind11::mod_gil_not_used()) {
  using namespace fanin;
  using namespace pybind11::literals;
  const float infinity = std::numeric_limits<float>::infinity();

  // Functions of more than three arguments take them by keyword, except x in `run`: arrays of the
  // same type, or two numbers, are too easily swapped.
  py::class_<KernelRow>(module, "KernelRow")
      .def_property_readonly("name", [](const KernelRow& row) { return row.name; })
      .def_property_readonly("isa", [](const KernelRow& row) { return isa_name(row.isa); })
      .def_property_readonly("weights",
                             [](const KernelRow& row) { return value_type_name(row.weights); })
      .def_property_readonly("compute",
                             [](const KernelRow& row) { return value_type_name(row.compute); })
      .def_property_readonly("supported",
                             [](const KernelRow& row) { return is_supported(row.isa); })
      .def_property_readonly("suits_cpu", [](const KernelRow& row) { return row.suits_cpu; })
      .def_property_readonly("min_batch", [](const KernelRow& row) { return row.batches.min; })
      .def_property_readonly("max_batch",
                             [](const KernelRow& row) { return limit(row.batches.max); })
      .def_property_readonly("min_fan_in", [](const KernelRow& row) { return row.min_fan_in; })
      .def_property_readonly("max_fan_in",
                             [](const KernelRow& row) { return limit(row.max_fan_in); })
      .def_property_readonly("min_density", [](const KernelRow& row) { return row.min_density; })
      .def_property_readonly("max_density", [](const KernelRow& row) { return row.max_density; })
      .def("__repr__",
           [](const KernelRow& row) { return "<KernelRow " + std::string(row.name) + ">"; });

  py::class_<PackedInfo>(module, "PackedInfo")
      .def_property_readonly("kernel", [](const PackedInfo& info) { return info.kernel; })
      .def_property_readonly("min_batch", [](const PackedInfo& info) { return info.batches.min; })
      .def_property_readonly("max_batch",
                             [](const PackedInfo& info) { return limit(info.batches.max); })
      .def_property_readonly("min_pixels", [](const PackedInfo& info) { return info.pixels.min; })
      .def_property_readonly("max_pixels",
                             [](const PackedInfo& info) { return limit(info.pixels.max); })
      .def_property_readonly("bytes", [](const PackedInfo& info) { return info.bytes; })
      .def_property_readonly("padding", [](const PackedInfo& info) { return info.padding; })
      .def_property_readonly("remainder", [](const PackedInfo& info) { return info.remainder; })
      .def_property_readonly("shared", [](const PackedInfo& info) { return info.shared; })
      .def_property_readonly("seconds", [](const PackedInfo& info) { return info.seconds; })
      .def("__repr__", [](const PackedInfo& info) { return "<PackedInfo " + info.kernel + ">"; });

  py::class_<WorkPlan>(module, "WorkPlan")
      .def_property_readonly("begins", [](const WorkPlan& plan) { return plan.begins; })
      .def_property_readonly("threads", [](const WorkPlan& plan) { return plan.threads; })
      .def_property_readonly("tile_width", [](const WorkPlan& plan) { return plan.tile_width; })
      .def_property_readonly("microseconds", [](const WorkPlan& plan) { return plan.microseconds; })
      .def_property_readonly("longest", [](const WorkPlan& plan) { return plan.longest; })
      .def_property_readonly("dispatch", [](const WorkPlan& plan) { return plan.dispatch; })
      .def_property_readonly("imbalance", &WorkPlan::imbalance)
      .def("__repr__", [](const WorkPlan& plan) {
        return "<WorkPlan of " + std::to_string(plan.begins.back()) + " units for " +
               std::to_string(plan.threads) + " threads>";
      });

  py::class_<PyGemm>(module, "PackedGemm")
      .def(py::init<const py::object&, const py::object&, const py::object&, const py::object&,
                    int64_t, int64_t, const std::string&, int64_t, std::optional<int64_t>,
                    std::optional<std::string>, int64_t, const std::string&>(),
           py::kw_only(), "values"_a, "indices"_a, "rows"_a, "bias"_a, "in_features"_a,
           "out_features"_a, "isa"_a = "auto", "min_batch"_a = 1, "max_batch"_a = py::none(),
           "kernel"_a = py::none(), "threads"_a = 1, "compute"_a = "float32")
      .def("run", &PyGemm::run, "x"_a, py::kw_only(), "residual"_a = py::none(),
           "clip_min"_a = -infinity, "clip_max"_a = infinity, "threads"_a = 1, "out"_a = py::none())
      .def("info", &PyGemm::info)
      .def("plan", &PyGemm::plan, "batch"_a, "threads"_a, "dispatch"_a = std::make_pair(0.0, 0.0))
      .def("holds", &PyGemm::holds, py::kw_only(), "values"_a, "indices"_a, "rows"_a, "bias"_a);

  bind_conv(module);
  bind_quantized(module);
  bind_quantized_conv(module);
  bind_cuda_dispatch(module);
  module.def("run_plain", &run_plain_arrays, py::kw_only(), "values"_a, "indices"_a, "rows"_a,
             "bias"_a, "in_features"_a, "out_features"_a, "x"_a, "residual"_a = py::none(),
             "clip_min"_a = -infinity, "clip_max"_a = infinity, "compute"_a = "float32");
  module.def("content_hash", &content_hash_arrays, py::kw_only(), "values"_a, "indices"_a, "rows"_a,
             "bias"_a, "in_features"_a, "out_features"_a);
  module.def("kernel_table", [] { return std::vector<KernelRow>(kernel_table()); });
  module.def("supported_isas", [] {
    std::vector<std::string> names;
    for (Isa isa : supported_isas()) names.emplace_back(isa_name(isa));
    return names;
  });
  module.def("clock_hertz", &clock_hertz, py::call_guard<py::gil_scoped_release>());
  module.def("peak_macs_per_second", &peak_macs_per_second,
             py::call_guard<py::gil_scoped_release>());
  module.def(
      "read_once",
      [](const py::buffer& buffer) {
        const py::buffer_info info = buffer.request();
        if (!PyBuffer_IsContiguous(info.view(), 'C'))
          throw std::invalid_argument("the buffer is not contiguous");
        py::gil_scoped_release release;
        return read_once(info.ptr, static_cast<size_t>(info.size * info.itemsize));
      },
      "buffer"_a);
  module.def(
      "cuda_library",
      [](const std::string& folder) {
        static constexpr const char* kStates[] = {"loaded", "not built", "no driver", "broken"};
        const ort::CudaLoad load = ort::load_cuda_library(folder);
        return py::make_tuple(kStates[static_cast<int>(load.state)], load.problem,
                              load.library ? load.library->cuda_version : 0,
                              ort::cuda_library_path(folder));
      },
      "folder"_a);
  module.def("cuda_devices", [] {
    const ort::CudaDevices devices = ort::cuda_devices();
    std::vector<py::dict> facts;
    for (const ort::CudaDeviceFacts& found : devices.facts) {
      py::dict fact;
      fact["capability"] = found.capability;
      fact["multiprocessors"] = found.multiprocessors;
      fact["clock_khz"] = found.clock_khz;
      fact["memory_clock_khz"] = found.memory_clock_khz;
      fact["memory_bus_bits"] = found.memory_bus_bits;
      fact["l2_bytes"] = found.l2_bytes;
      fact["shared_bytes"] = found.shared_bytes;
      facts.push_back(fact);
    }
    return py::make_tuple(devices.problem, devices.driver_version, devices.names, facts);
  });
  module.def("cpu_quota", &cpu_quota, "root"_a = "");
  module.def("select_isa", [] { return std::string(isa_name(select_isa())); });
}
