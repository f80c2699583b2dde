#include "python/conv.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/conv.h"
#include "core/cpu_features.h"
#include "kernels/conv_dispatch.h"
#include "kernels/depthwise_conv.h"
#include "python/arrays.h"

namespace fanin {
namespace {

// A valid layer and its attributes.
struct ConvLayer {
  ConvGeometry geometry;
  std::unique_ptr<LayerArrays> arrays;

  ConvLayer(const py::object& values, const py::object& indices, const py::object& rows,
            const py::object& bias, int64_t in_channels, int64_t out_channels,
            const Pair& kernel_shape, const Pair& strides, const Pads& pads, const Pair& dilations,
            int64_t group) {
    geometry =
        geometry_of(in_channels, out_channels, kernel_shape, strides, pads, dilations, group);
    arrays = std::make_unique<LayerArrays>(values, indices, rows, bias,
                                           geometry.group_inputs() * geometry.taps(), out_channels);
    const std::string why = validate(arrays->view, geometry);
    if (!why.empty()) throw std::invalid_argument(why);
  }

  const CondensedView& view() const { return arrays->view; }
};

using Floats = py::array_t<float, py::array::c_style>;

// The arrays of one run.
struct ConvRun {
  Floats x;
  Floats residual;  // of no dimension: none
  py::array y;
  ConvInput input;
  ConvEpilogue epilogue;

  // The result is written into `out`, or into a new array if that is None.
  ConvRun(const ConvGeometry& geometry, const py::object& x_object,
          const py::object& residual_object, float clip_min, float clip_max, const Gate& gate,
          const py::object& out)
      : x(array_of<float>(x_object, "x", 4)) {
    if (x.shape(1) != geometry.in_channels)
      throw std::invalid_argument("x has the shape " + shape_text(x) + ", in_channels is " +
                                  std::to_string(geometry.in_channels));
    input = {x.shape(0), x.shape(2), x.shape(3)};
    const std::string why = validate(geometry, input);
    if (!why.empty()) throw std::invalid_argument(why);
    const std::vector<py::ssize_t> shape = {input.batch, geometry.out_channels,
                                            geometry.output_size(0, input.height),
                                            geometry.output_size(1, input.width)};
    const auto check_shape = [&shape](const py::array& array, const char* name) {
      if (!std::equal(shape.begin(), shape.end(), array.shape()))
        throw std::invalid_argument(std::string(name) + " has the shape " + shape_text(array) +
                                    ", the result has " + shape_text(Floats(shape)));
    };
    epilogue.clip_min = clip_min;
    epilogue.clip_max = clip_max;
    epilogue.gate = gate;
    if (!residual_object.is_none()) {
      residual = array_of<float>(residual_object, "residual", 4);
      check_shape(residual, "residual");
      epilogue.residual = residual.data();
    }
    if (out.is_none()) {
      y = Floats(shape);
      return;
    }
    const Floats same = array_of<float>(out, "out", 4);  // a copy if it has gaps
    y = py::reinterpret_borrow<py::array>(out);
    check_shape(y, "out");
    if (same.data() != y.data() || !y.writeable())
      throw std::invalid_argument("out must be a writeable, C-contiguous array");
  }

  float* to() { return static_cast<float*>(y.mutable_data()); }
};

class PyConv {
 public:
  PyConv(const py::object& values, const py::object& indices, const py::object& rows,
         const py::object& bias, int64_t in_channels, int64_t out_channels,
         const Pair& kernel_shape, const Pair& strides, const Pads& pads, const Pair& dilations,
         int64_t group, const std::string& isa, std::optional<std::string> kernel,
         int64_t threads) {
    const ConvLayer layer(values, indices, rows, bias, in_channels, out_channels, kernel_shape,
                          strides, pads, dilations, group);
    if (kernel && isa != "auto")
      throw std::invalid_argument("give either isa or kernel, since a kernel's name fixes its ISA");
    const Isa chosen = parse_isa(isa);
    const ThreadExecutor executor = threads_of(threads);
    geometry_ = layer.geometry;
    const py::gil_scoped_release release;
    packed_ = kernel ? PackedConv::pack_kernel(layer.view(), geometry_, *kernel, executor)
                     : PackedConv::pack(layer.view(), geometry_, chosen, executor);
  }

  py::array run(const py::object& x, const py::object& residual, float clip_min, float clip_max,
                float gate_scale, float gate_shift, int64_t threads, const py::object& out) const {
    const ThreadExecutor executor = threads_of(threads);
    ConvRun run(geometry_, x, residual, clip_min, clip_max, {gate_scale, gate_shift}, out);
    const float* from = run.x.data();
    float* to = run.to();
    {
      const py::gil_scoped_release release;
      packed_->run(from, run.input, to, run.epilogue, executor);
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

  bool holds(const py::object& values, const py::object& indices, const py::object& rows,
             const py::object& bias) const {
    const LayerArrays arrays(values, indices, rows, bias,
                             geometry_.group_inputs() * geometry_.taps(), geometry_.out_channels);
    const std::string why = validate(arrays.view, geometry_);
    if (!why.empty()) throw std::invalid_argument(why);
    return packed_->holds(arrays.view, geometry_);
  }

 private:
  ConvGeometry geometry_;
  std::unique_ptr<PackedConv> packed_;
};

py::array run_plain_conv_arrays(const py::object& values, const py::object& indices,
                                const py::object& rows, const py::object& bias, const py::object& x,
                                const py::object& residual, float clip_min, float clip_max,
                                float gate_scale, float gate_shift, int64_t in_channels,
                                int64_t out_channels, const Pair& kernel_shape, const Pair& strides,
                                const Pads& pads, const Pair& dilations, int64_t group) {
  const ConvLayer layer(values, indices, rows, bias, in_channels, out_channels, kernel_shape,
                        strides, pads, dilations, group);
  ConvRun run(layer.geometry, x, residual, clip_min, clip_max, {gate_scale, gate_shift},
              py::none());
  const float* from = run.x.data();
  float* to = run.to();
  {
    const py::gil_scoped_release release;
    run_plain_conv(layer.view(), layer.geometry, from, run.input, to, run.epilogue);
  }
  return run.y;
}

}  // namespace

ConvGeometry geometry_of(int64_t in_channels, int64_t out_channels, const Pair& kernel_shape,
                         const Pair& strides, const Pads& pads, const Pair& dilations,
                         int64_t group) {
  ConvGeometry geometry;
  geometry.in_channels = in_channels;
  geometry.out_channels = out_channels;
  geometry.group = group;
  std::copy(kernel_shape.begin(), kernel_shape.end(), geometry.kernel);
  std::copy(strides.begin(), strides.end(), geometry.strides);
  std::copy(pads.begin(), pads.end(), geometry.pads);
  std::copy(dilations.begin(), dilations.end(), geometry.dilations);
  const std::string why = validate(geometry);
  if (!why.empty()) throw std::invalid_argument(why);
  return geometry;
}

void bind_conv(py::module_& module) {
  using namespace pybind11::literals;
  const float infinity = std::numeric_limits<float>::infinity();
  const Pair ones = {1, 1};
  const Pads zeros = {0, 0, 0, 0};

  py::class_<ConvKernelRow>(module, "ConvKernelRow")
      .def_property_readonly("name", [](const ConvKernelRow& row) { return row.name; })
      .def_property_readonly("isa", [](const ConvKernelRow& row) { return isa_name(row.isa); })
      .def_property_readonly("supported",
                             [](const ConvKernelRow& row) { return is_supported(row.isa); })
      .def_property_readonly(
          "whole_depthwise",
          [](const ConvKernelRow& row) { return row.fits == is_whole_depthwise; })
      .def_property_readonly("condition", [](const ConvKernelRow& row) { return row.condition; })
      .def_property_readonly("min_pixels", [](const ConvKernelRow& row) { return row.min_pixels; })
      .def_property_readonly("min_group_outputs",
                             [](const ConvKernelRow& row) { return row.min_group_outputs; })
      .def_property_readonly("max_taps",
                             [](const ConvKernelRow& row) { return limit(row.max_taps); })
      .def_property_readonly("min_density",
                             [](const ConvKernelRow& row) { return row.min_density; })
      .def("__repr__", [](const ConvKernelRow& row) { return "<ConvKernelRow " + row.name + ">"; });

  py::class_<PyConv>(module, "PackedConv")
      .def(py::init<const py::object&, const py::object&, const py::object&, const py::object&,
                    int64_t, int64_t, const Pair&, const Pair&, const Pads&, const Pair&, int64_t,
                    const std::string&, std::optional<std::string>, int64_t>(),
           py::kw_only(), "values"_a, "indices"_a, "rows"_a, "bias"_a, "in_channels"_a,
           "out_channels"_a, "kernel_shape"_a, "strides"_a = ones, "pads"_a = zeros,
           "dilations"_a = ones, "group"_a = 1, "isa"_a = "auto", "kernel"_a = py::none(),
           "threads"_a = 1)
      .def("run", &PyConv::run, "x"_a, py::kw_only(), "residual"_a = py::none(),
           "clip_min"_a = -infinity, "clip_max"_a = infinity, "gate_scale"_a = 0.0f,
           "gate_shift"_a = 1.0f, "threads"_a = 1, "out"_a = py::none())
      .def("info", &PyConv::info)
      .def("plan", &PyConv::plan, "size"_a, "threads"_a, "dispatch"_a = std::make_pair(0.0, 0.0))
      .def("holds", &PyConv::holds, py::kw_only(), "values"_a, "indices"_a, "rows"_a, "bias"_a);

  module.def("run_plain_conv", &run_plain_conv_arrays, py::kw_only(), "values"_a, "indices"_a,
             "rows"_a, "bias"_a, "x"_a, "residual"_a = py::none(), "clip_min"_a = -infinity,
             "clip_max"_a = infinity, "gate_scale"_a = 0.0f, "gate_shift"_a = 1.0f, "in_channels"_a,
             "out_channels"_a, "kernel_shape"_a, "strides"_a = ones, "pads"_a = zeros,
             "dilations"_a = ones, "group"_a = 1);
  module.def("conv_kernel_table", [] { return std::vector<ConvKernelRow>(conv_kernel_table()); });
}

}  // namespace fanin
