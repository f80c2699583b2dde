#include "python/quantized_conv.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/quantized_conv.h"
#include "kernels/quantized_conv_dispatch.h"
#include "python/arrays.h"
#include "python/conv.h"
#include "python/quantized_arrays.h"

namespace fanin {
namespace {

// A valid layer and its attributes.
struct QuantizedConvLayer {
  QuantizedConvLayer(const py::object& values, const py::object& indices, const py::object& rows,
                     const ConvGeometry& attributes)
      : geometry(attributes),
        arrays(array_of<int8_t>(values, "values", 2), ValueType::kInt8, indices, rows,
               geometry.group_inputs() * geometry.taps(), geometry.out_channels) {
    const std::string why = validate_quantized(arrays.view, geometry);
    if (!why.empty()) throw std::invalid_argument(why);
  }

  ConvGeometry geometry;
  StoredArrays arrays;
};

// What a run adds to x, as Python passes it.
struct RunArguments {
  py::object multipliers;  // [out_channels] float32
  std::string y_type;
  int64_t x_zero_point;
  py::object bias;      // [out_channels] int32 or None
  py::object residual;  // of y's shape and type, or None
  float residual_multiplier;
  int64_t residual_zero_point;
  float clip_min;
  float clip_max;
  int64_t y_zero_point;
  bool channels_last;
};

// The arrays of one run.
class QuantizedConvRun {
 public:
  QuantizedConvRun(const ConvGeometry& geometry, const py::object& x_object,
                   const RunArguments& arguments) {
    images.type = type_of_x(x_object);
    x_ = array_of_type(images.type, x_object, "x", 4);
    const bool last = arguments.channels_last;
    const int channels = last ? 3 : 1, space = last ? 1 : 2;
    if (x_.shape(channels) != geometry.in_channels)
      throw std::invalid_argument("x has the shape " + shape_text(x_) + ", in_channels is " +
                                  std::to_string(geometry.in_channels));
    images.data = x_.data();
    images.size = {x_.shape(0), x_.shape(space), x_.shape(space + 1)};
    images.channels_last = last;
    const std::string why = validate(geometry, images.size);
    if (!why.empty()) throw std::invalid_argument(why);
    check_zero_point("x_zero_point", arguments.x_zero_point, images.type);
    images.zero_point = static_cast<int32_t>(arguments.x_zero_point);

    epilogue.type = type_of(arguments.y_type, "y_type");
    check_zero_point("y_zero_point", arguments.y_zero_point, epilogue.type);
    check_zero_point("residual_zero_point", arguments.residual_zero_point, epilogue.type);
    multipliers_ = array_of<float>(arguments.multipliers, "multipliers", 1);
    check_length("multipliers", multipliers_.size(), "out_channels", geometry.out_channels);
    epilogue.multipliers = static_cast<const float*>(multipliers_.data());
    if (!arguments.bias.is_none()) {
      bias_ = array_of<int32_t>(arguments.bias, "bias", 1);
      check_length("bias", bias_.size(), "out_channels", geometry.out_channels);
      epilogue.bias = static_cast<const int32_t*>(bias_.data());
    }
    epilogue.residual_multiplier = arguments.residual_multiplier;
    epilogue.residual_zero_point = static_cast<int32_t>(arguments.residual_zero_point);
    epilogue.clip_min = arguments.clip_min;
    epilogue.clip_max = arguments.clip_max;
    epilogue.zero_point = static_cast<int32_t>(arguments.y_zero_point);

    std::vector<py::ssize_t> shape{images.size.batch, geometry.output_size(0, images.size.height),
                                   geometry.output_size(1, images.size.width)};
    shape.insert(shape.begin() + channels, geometry.out_channels);
    y = py::array(dtype_of(epilogue.type), shape);
    if (arguments.residual.is_none()) return;
    residual_ = array_of_type(epilogue.type, arguments.residual, "residual", 4);
    if (!std::equal(shape.begin(), shape.end(), residual_.shape()))
      throw std::invalid_argument("residual has the shape " + shape_text(residual_) +
                                  ", the result has " + shape_text(y));
    epilogue.residual = residual_.data();
  }

  QuantizedImages images;
  QuantizedEpilogue epilogue;
  py::array y;

 private:
  py::array x_, multipliers_, bias_, residual_;
};

class PyQuantizedConv {
 public:
  PyQuantizedConv(const QuantizedConvLayer& layer, const std::string& isa,
                  const std::optional<std::string>& kernel, int64_t threads)
      : geometry_(layer.geometry) {
    if (kernel && isa != "auto")
      throw std::invalid_argument("give either isa or kernel, since a kernel's name fixes its ISA");
    const Isa chosen = parse_isa(isa);
    const ThreadExecutor executor = threads_of(threads);
    const CondensedView& view = layer.arrays.view;
    const py::gil_scoped_release release;
    packed_ = kernel ? PackedQuantizedConv::pack_kernel(view, geometry_, *kernel, executor)
                     : PackedQuantizedConv::pack(view, geometry_, chosen, executor);
  }

  py::array run(const py::object& x, const RunArguments& arguments, int64_t threads) const {
    const ThreadExecutor executor = threads_of(threads);
    QuantizedConvRun run(geometry_, x, arguments);
    void* y = run.y.mutable_data();
    {
      const py::gil_scoped_release release;
      packed_->run(run.images, y, run.epilogue, executor);
    }
    return run.y;
  }

  std::vector<PackedInfo> info() const { return packed_->info(); }

  WorkPlan plan(const std::array<int64_t, 3>& size, int64_t threads,
                const std::pair<double, double>& dispatch) const {
    const ConvInput input{size[0], size[1], size[2]};
    const std::string why = validate(geometry_, input);
    if (!why.empty()) throw std::invalid_argument(why);
    if (input.batch < 1) throw std::invalid_argument("a batch of 0 images has no plan");
    return packed_->plan(input, threads_of(threads).concurrency(), dispatch_of(dispatch));
  }

  bool holds(const py::object& values, const py::object& indices, const py::object& rows) const {
    const QuantizedConvLayer layer(values, indices, rows, geometry_);
    return packed_->holds(layer.arrays.view, geometry_);
  }

 private:
  ConvGeometry geometry_;
  std::unique_ptr<PackedQuantizedConv> packed_;
};

}  // namespace

void bind_quantized_conv(py::module_& module) {
  using namespace pybind11::literals;
  const float infinity = std::numeric_limits<float>::infinity();
  const Pair ones = {1, 1};
  const Pads zeros = {0, 0, 0, 0};

  py::class_<QuantizedConvKernelRow>(module, "QuantizedConvKernelRow")
      .def_property_readonly("name", [](const QuantizedConvKernelRow& row) { return row.name; })
      .def_property_readonly("isa",
                             [](const QuantizedConvKernelRow& row) { return isa_name(row.isa); })
      .def_property_readonly(
          "supported", [](const QuantizedConvKernelRow& row) { return is_supported(row.isa); })
      .def("__repr__", [](const QuantizedConvKernelRow& row) {
        return "<QuantizedConvKernelRow " + row.name + ">";
      });

  py::class_<PyQuantizedConv>(module, "PackedQuantizedConv")
      .def(py::init([](const py::object& values, const py::object& indices, const py::object& rows,
                       int64_t in_channels, int64_t out_channels, const Pair& kernel_shape,
                       const Pair& strides, const Pads& pads, const Pair& dilations, int64_t group,
                       const std::string& isa, const std::optional<std::string>& kernel,
                       int64_t threads) {
             const QuantizedConvLayer layer(values, indices, rows,
                                            geometry_of(in_channels, out_channels, kernel_shape,
                                                        strides, pads, dilations, group));
             return std::make_unique<PyQuantizedConv>(layer, isa, kernel, threads);
           }),
           py::kw_only(), "values"_a, "indices"_a, "rows"_a, "in_channels"_a, "out_channels"_a,
           "kernel_shape"_a, "strides"_a = ones, "pads"_a = zeros, "dilations"_a = ones,
           "group"_a = 1, "isa"_a = "auto", "kernel"_a = py::none(), "threads"_a = 1)
      .def(
          "run",
          [](const PyQuantizedConv& conv, const py::object& x, const py::object& multipliers,
             const std::string& y_type, int64_t x_zero_point, const py::object& bias,
             const py::object& residual, float residual_multiplier, int64_t residual_zero_point,
             float clip_min, float clip_max, int64_t y_zero_point, bool channels_last,
             int64_t threads) {
            return conv.run(x,
                            {multipliers, y_type, x_zero_point, bias, residual, residual_multiplier,
                             residual_zero_point, clip_min, clip_max, y_zero_point, channels_last},
                            threads);
          },
          "x"_a, py::kw_only(), "multipliers"_a, "y_type"_a, "x_zero_point"_a = 0,
          "bias"_a = py::none(), "residual"_a = py::none(), "residual_multiplier"_a = 1.0f,
          "residual_zero_point"_a = 0, "clip_min"_a = -infinity, "clip_max"_a = infinity,
          "y_zero_point"_a = 0, "channels_last"_a = false, "threads"_a = 1)
      .def("info", &PyQuantizedConv::info)
      .def("plan", &PyQuantizedConv::plan, "size"_a, "threads"_a,
           "dispatch"_a = std::make_pair(0.0, 0.0))
      .def("holds", &PyQuantizedConv::holds, py::kw_only(), "values"_a, "indices"_a, "rows"_a);

  module.def(
      "run_plain_quantized_conv",
      [](const py::object& values, const py::object& indices, const py::object& rows,
         int64_t in_channels, int64_t out_channels, const Pair& kernel_shape, const Pair& strides,
         const Pads& pads, const Pair& dilations, int64_t group, const py::object& x,
         const py::object& multipliers, const std::string& y_type, int64_t x_zero_point,
         const py::object& bias, const py::object& residual, float residual_multiplier,
         int64_t residual_zero_point, float clip_min, float clip_max, int64_t y_zero_point,
         bool channels_last) {
        const QuantizedConvLayer layer(
            values, indices, rows,
            geometry_of(in_channels, out_channels, kernel_shape, strides, pads, dilations, group));
        QuantizedConvRun run(
            layer.geometry, x,
            {multipliers, y_type, x_zero_point, bias, residual, residual_multiplier,
             residual_zero_point, clip_min, clip_max, y_zero_point, channels_last});
        run_plain_quantized_conv(layer.arrays.view, layer.geometry, run.images,
                                 run.y.mutable_data(), run.epilogue);
        return run.y;
      },
      py::kw_only(), "values"_a, "indices"_a, "rows"_a, "in_channels"_a, "out_channels"_a,
      "kernel_shape"_a, "strides"_a = ones, "pads"_a = zeros, "dilations"_a = ones, "group"_a = 1,
      "x"_a, "multipliers"_a, "y_type"_a, "x_zero_point"_a = 0, "bias"_a = py::none(),
      "residual"_a = py::none(), "residual_multiplier"_a = 1.0f, "residual_zero_point"_a = 0,
      "clip_min"_a = -infinity, "clip_max"_a = infinity, "y_zero_point"_a = 0,
      "channels_last"_a = false);
  module.def("quantized_conv_kernel_table",
             [] { return std::vector<QuantizedConvKernelRow>(quantized_conv_kernel_table()); });
}

}  // namespace fanin
