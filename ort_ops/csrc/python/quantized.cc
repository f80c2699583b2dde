#include "python/quantized.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/quantized_gemm.h"
#include "kernels/quantized_dispatch.h"
#include "python/arrays.h"
#include "python/quantized_arrays.h"

namespace fanin {
namespace {

// A valid layer.
struct QuantizedLayer : StoredArrays {
  QuantizedLayer(const py::object& values, const py::object& indices, const py::object& rows,
                 int64_t in_features, int64_t out_features)
      : StoredArrays(array_of<int8_t>(values, "values", 2), ValueType::kInt8, indices, rows,
                     in_features, out_features) {
    const std::string why = validate_quantized(view);
    if (!why.empty()) throw std::invalid_argument(why);
  }
};

// What a run adds to x, as Python passes it.
struct RunArguments {
  std::string y_type;
  py::object multipliers;         // [out_features] float32
  py::object sample_multipliers;  // [batch] float32 or None
  py::object bias;                // [out_features] int32 or None
  py::object float_bias;          // [out_features] float32 or None
  py::object x_zero_point;        // int, or [batch] int32
  py::object residual;            // [batch, out_features] of y's type or None
  float residual_multiplier;
  int64_t residual_zero_point;
  float clip_min;
  float clip_max;
  int64_t y_zero_point;
};

// The arrays of one run.
class QuantizedRun {
 public:
  // The result is written into `out`, or into a new array if that is None.
  QuantizedRun(const py::object& x_object, const RunArguments& arguments, int64_t in_features,
               int64_t out_features, const py::object& out = py::none()) {
    input.type = type_of_x(x_object);
    const py::array x = keep(array_of_type(input.type, x_object, "x", 2));
    if (x.shape(1) != in_features)
      throw std::invalid_argument("x has the shape " + shape_text(x) + ", in_features is " +
                                  std::to_string(in_features));
    batch = x.shape(0);
    input.data = x.data();
    if (py::isinstance<py::array>(arguments.x_zero_point)) {
      input.zero_points = numbers<int32_t>(arguments.x_zero_point, "x_zero_point", "batch", batch);
      for (int64_t b = 0; b < batch; ++b)
        check_zero_point("x_zero_point", input.zero_points[b], input.type);
    } else {
      const auto zero_point = arguments.x_zero_point.cast<int64_t>();
      check_zero_point("x_zero_point", zero_point, input.type);
      input.zero_point = static_cast<int32_t>(zero_point);
    }
    epilogue.type = type_of(arguments.y_type, "y_type");
    check_zero_point("y_zero_point", arguments.y_zero_point, epilogue.type);
    check_zero_point("residual_zero_point", arguments.residual_zero_point, epilogue.type);
    if (arguments.multipliers.is_none()) throw std::invalid_argument("multipliers is missing");
    epilogue.multipliers =
        numbers<float>(arguments.multipliers, "multipliers", "out_features", out_features);
    epilogue.sample_multipliers =
        numbers<float>(arguments.sample_multipliers, "sample_multipliers", "batch", batch);
    epilogue.bias = numbers<int32_t>(arguments.bias, "bias", "out_features", out_features);
    epilogue.float_bias =
        numbers<float>(arguments.float_bias, "float_bias", "out_features", out_features);
    epilogue.residual_multiplier = arguments.residual_multiplier;
    epilogue.residual_zero_point = static_cast<int32_t>(arguments.residual_zero_point);
    epilogue.clip_min = arguments.clip_min;
    epilogue.clip_max = arguments.clip_max;
    epilogue.zero_point = static_cast<int32_t>(arguments.y_zero_point);
    const std::vector<py::ssize_t> shape{batch, out_features};
    if (!arguments.residual.is_none()) {
      const py::array residual =
          keep(array_of_type(epilogue.type, arguments.residual, "residual", 2));
      check_shape(residual, "residual", shape);
      epilogue.residual = residual.data();
    }
    if (out.is_none()) {
      y = py::array(dtype_of(epilogue.type), shape);
      return;
    }
    const py::array same = array_of_type(epilogue.type, out, "out", 2);  // a copy if it has gaps
    y = py::reinterpret_borrow<py::array>(out);
    check_shape(y, "out", shape);
    if (same.data() != y.data() || !y.writeable())
      throw std::invalid_argument("out must be a writeable, C-contiguous array");
  }

  QuantizedInput input;
  QuantizedEpilogue epilogue;
  int64_t batch;
  py::array y;

 private:
  py::array keep(py::array array) {
    kept_.push_back(std::move(array));
    return kept_.back();
  }

  // The elements of a vector, or null for None.
  template <typename T>
  const T* numbers(const py::object& object, const char* name, const char* length_name,
                   int64_t length) {
    if (object.is_none()) return nullptr;
    const auto array = array_of<T>(object, name, 1);
    check_length(name, array.size(), length_name, length);
    keep(array);
    return array.data();
  }

  static void check_shape(const py::array& array, const char* name,
                          const std::vector<py::ssize_t>& shape) {
    if (array.shape(0) != shape[0] || array.shape(1) != shape[1])
      throw std::invalid_argument(std::string(name) + " has the shape " + shape_text(array) +
                                  ", the result has [" + std::to_string(shape[0]) + ", " +
                                  std::to_string(shape[1]) + "]");
  }

  std::vector<py::array> kept_;
};

class PyQuantizedGemm {
 public:
  PyQuantizedGemm(const py::object& values, const py::object& indices, const py::object& rows,
                  int64_t in_features, int64_t out_features, const std::string& isa,
                  int64_t min_batch, std::optional<int64_t> max_batch,
                  std::optional<std::string> kernel, int64_t threads)
      : in_features_(in_features), out_features_(out_features) {
    const QuantizedLayer layer(values, indices, rows, in_features, out_features);
    const BatchRange range = batch_range(min_batch, max_batch);
    if (kernel && isa != "auto")
      throw std::invalid_argument("give either isa or kernel, since a kernel's name fixes its ISA");
    const Isa chosen = parse_isa(isa);
    const ThreadExecutor executor = threads_of(threads);
    const py::gil_scoped_release release;
    packed_ = kernel ? PackedQuantizedGemm::pack_kernel(layer.view, range, *kernel, executor)
                     : PackedQuantizedGemm::pack(layer.view, range, chosen, executor);
  }

  py::array run(const py::object& x, const RunArguments& arguments, int64_t threads,
                const py::object& out) const {
    const ThreadExecutor executor = threads_of(threads);
    QuantizedRun run(x, arguments, in_features_, out_features_, out);
    void* y = run.y.mutable_data();
    {
      const py::gil_scoped_release release;
      packed_->run(run.input, run.batch, y, run.epilogue, executor);
    }
    return run.y;
  }

  std::vector<PackedInfo> info() const { return packed_->info(); }

  std::string kernel(int64_t batch) const { return packed_->kernel(batch); }

  WorkPlan plan(int64_t batch, int64_t threads, const std::pair<double, double>& dispatch) const {
    if (batch < 1)
      throw std::invalid_argument("batch is " + std::to_string(batch) + ", it must be 1 or more");
    return packed_->plan(batch, threads_of(threads).concurrency(), dispatch_of(dispatch));
  }

  bool holds(const py::object& values, const py::object& indices, const py::object& rows) const {
    return packed_->holds(QuantizedLayer(values, indices, rows, in_features_, out_features_).view);
  }

 private:
  int64_t in_features_;
  int64_t out_features_;
  std::unique_ptr<PackedQuantizedGemm> packed_;
};

}  // namespace

void bind_quantized(py::module_& module) {
  using namespace pybind11::literals;
  const float infinity = std::numeric_limits<float>::infinity();

  py::class_<QuantizedKernelRow>(module, "QuantizedKernelRow")
      .def_property_readonly("name", [](const QuantizedKernelRow& row) { return row.name; })
      .def_property_readonly("isa", [](const QuantizedKernelRow& row) { return isa_name(row.isa); })
      .def_property_readonly("supported",
                             [](const QuantizedKernelRow& row) { return is_supported(row.isa); })
      .def_property_readonly("suits_cpu",
                             [](const QuantizedKernelRow& row) { return row.suits(cpu_kind()); })
      .def_property_readonly("fixed_batch",
                             [](const QuantizedKernelRow& row) { return row.fixed_batch; })
      .def_property_readonly("min_batch",
                             [](const QuantizedKernelRow& row) { return row.batches.min; })
      .def_property_readonly("max_batch",
                             [](const QuantizedKernelRow& row) { return limit(row.batches.max); })
      .def_property_readonly("min_weights",
                             [](const QuantizedKernelRow& row) { return row.min_weights; })
      .def_property_readonly("min_density",
                             [](const QuantizedKernelRow& row) { return row.min_density; })
      .def("__repr__",
           [](const QuantizedKernelRow& row) { return "<QuantizedKernelRow " + row.name + ">"; });

  py::class_<PyQuantizedGemm>(module, "PackedQuantizedGemm")
      .def(py::init<const py::object&, const py::object&, const py::object&, int64_t, int64_t,
                    const std::string&, int64_t, std::optional<int64_t>, std::optional<std::string>,
                    int64_t>(),
           py::kw_only(), "values"_a, "indices"_a, "rows"_a, "in_features"_a, "out_features"_a,
           "isa"_a = "auto", "min_batch"_a = 1, "max_batch"_a = py::none(), "kernel"_a = py::none(),
           "threads"_a = 1)
      .def(
          "run",
          [](const PyQuantizedGemm& gemm, const py::object& x, const py::object& multipliers,
             const std::string& y_type, const py::object& x_zero_point,
             const py::object& sample_multipliers, const py::object& bias,
             const py::object& float_bias, const py::object& residual, float residual_multiplier,
             int64_t residual_zero_point, float clip_min, float clip_max, int64_t y_zero_point,
             int64_t threads, const py::object& out) {
            return gemm.run(
                x,
                {y_type, multipliers, sample_multipliers, bias, float_bias, x_zero_point, residual,
                 residual_multiplier, residual_zero_point, clip_min, clip_max, y_zero_point},
                threads, out);
          },
          "x"_a, py::kw_only(), "multipliers"_a, "y_type"_a, "x_zero_point"_a = 0,
          "sample_multipliers"_a = py::none(), "bias"_a = py::none(), "float_bias"_a = py::none(),
          "residual"_a = py::none(), "residual_multiplier"_a = 1.0f, "residual_zero_point"_a = 0,
          "clip_min"_a = -infinity, "clip_max"_a = infinity, "y_zero_point"_a = 0, "threads"_a = 1,
          "out"_a = py::none())
      .def("info", &PyQuantizedGemm::info)
      .def("kernel", &PyQuantizedGemm::kernel, "batch"_a)
      .def("plan", &PyQuantizedGemm::plan, "batch"_a, "threads"_a,
           "dispatch"_a = std::make_pair(0.0, 0.0))
      .def("holds", &PyQuantizedGemm::holds, py::kw_only(), "values"_a, "indices"_a, "rows"_a);

  module.def(
      "run_plain_quantized",
      [](const py::object& values, const py::object& indices, const py::object& rows,
         int64_t in_features, int64_t out_features, const py::object& x,
         const py::object& multipliers, const std::string& y_type, const py::object& x_zero_point,
         const py::object& sample_multipliers, const py::object& bias, const py::object& float_bias,
         const py::object& residual, float residual_multiplier, int64_t residual_zero_point,
         float clip_min, float clip_max, int64_t y_zero_point) {
        const QuantizedLayer layer(values, indices, rows, in_features, out_features);
        QuantizedRun run(
            x,
            {y_type, multipliers, sample_multipliers, bias, float_bias, x_zero_point, residual,
             residual_multiplier, residual_zero_point, clip_min, clip_max, y_zero_point},
            in_features, out_features);
        run_plain_quantized(layer.view, run.input, run.batch, run.y.mutable_data(), run.epilogue);
        return run.y;
      },
      py::kw_only(), "values"_a, "indices"_a, "rows"_a, "in_features"_a, "out_features"_a, "x"_a,
      "multipliers"_a, "y_type"_a, "x_zero_point"_a = 0, "sample_multipliers"_a = py::none(),
      "bias"_a = py::none(), "float_bias"_a = py::none(), "residual"_a = py::none(),
      "residual_multiplier"_a = 1.0f, "residual_zero_point"_a = 0, "clip_min"_a = -infinity,
      "clip_max"_a = infinity, "y_zero_point"_a = 0);
  module.def("quantized_kernel_table",
             [] { return std::vector<QuantizedKernelRow>(quantized_kernel_table()); });
}

}  // namespace fanin
