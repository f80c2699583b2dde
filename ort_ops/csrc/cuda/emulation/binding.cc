// fanin.ort_ops._cuda_emulation: the CUDA thread programs on NumPy arrays, on the host.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/condensed.h"
#include "cuda/built_device.h"
#include "cuda/dispatch.h"
#include "cuda/emulation/conv.h"
#include "cuda/emulation/gemm.h"
#include "cuda/python/conv_arrays.h"
#include "cuda/python/layer.h"
#include "python/arrays.h"

namespace py = pybind11;

namespace fanin::cuda {
namespace {

DeviceLimits limits_of(int64_t multiprocessors, int64_t shared_bytes, int64_t cluster,
                       int64_t capability) {
  DeviceLimits limits;
  limits.multiprocessors = multiprocessors;
  limits.shared_bytes_per_block = shared_bytes;
  limits.shared_bytes_per_multiprocessor = shared_bytes + 1024;
  limits.cluster = cluster;
  limits.capability = capability;
  return limits_for_build(limits, capability);
}

py::dict dict_of(const emulation::Report& report) {
  py::dict result;
  result["kernel"] = report.kernel;
  result["warps"] = report.warps;
  result["grid"] = py::make_tuple(report.grid_x, report.grid_y);
  result["shared_bytes"] = report.shared_bytes;
  result["packed_bytes"] = report.packed_bytes;
  result["padding"] = report.padding;
  result["variant"] = report.variant;
  result["vector_x"] = report.vector_x;
  result["cluster"] = report.cluster;
  result["parts"] = report.parts;
  result["turns"] = report.turns;
  result["stages"] = report.stages;
  result["store_cycles"] = report.store_cycles;
  return result;
}

py::dict run(const std::optional<std::string>& kernel, const py::array& values,
             const std::string& value_type, const py::array& indices, const py::array& rows,
             const py::array& bias, int64_t in_features, const py::array& x,
             const std::string& activations, const py::object& residual, py::array y,
             float clip_min, float clip_max, int64_t multiprocessors, int64_t shared_bytes,
             int64_t cluster, int64_t capability, bool tf32) {
  const CondensedView view =
      view_of(values, parse_type(value_type), indices, rows, bias, in_features);
  emulation::Request request;
  if (kernel) request.kernel = *kernel;
  request.activations = parse_type(activations);
  request.limits = limits_of(multiprocessors, shared_bytes, cluster, capability);
  request.tf32 = tf32;
  const auto size = static_cast<py::ssize_t>(value_bytes(request.activations));
  const auto check = [&](const py::array& array, int64_t columns, const char* name) {
    if (array.ndim() != 2 || array.shape(0) != x.shape(0) || array.shape(1) != columns ||
        array.itemsize() != size || !(array.flags() & py::array::c_style))
      throw std::invalid_argument(std::string(name) + " has the wrong shape, type or layout");
  };
  check(x, in_features, "x");
  check(y, view.out_features, "y");
  RunArguments arguments;
  if (!residual.is_none()) {
    const auto array = residual.cast<py::array>();
    check(array, view.out_features, "residual");
    arguments.residual = array.data();
  }
  arguments.x = x.data();
  arguments.y = y.mutable_data();
  arguments.batch = x.shape(0);
  arguments.clip_min = clip_min;
  arguments.clip_max = clip_max;
  return dict_of(emulation::run_gemm(view, request, arguments));
}

std::vector<py::dict> select(const std::string& activations, int64_t in_features,
                             int64_t out_features, int64_t weights, bool values_fit,
                             int64_t min_batch, std::optional<int64_t> max_batch, bool unproven,
                             bool tf32, int64_t multiprocessors, int64_t shared_bytes,
                             int64_t capability) {
  const LayerFacts facts{parse_type(activations), in_features, out_features, weights, values_fit};
  BatchRange batches;
  batches.min = min_batch;
  if (max_batch) batches.max = *max_batch;
  std::vector<py::dict> rows;
  for (const ServedBatches& served :
       select_kernels(facts, batches, limits_of(multiprocessors, shared_bytes, 8, capability),
                      {unproven, tf32})) {
    py::dict row;
    row["kernel"] = served.row->name;
    row["layout"] = layout_name(served.row->layout);
    row["min_batch"] = served.batches.min;
    row["max_batch"] = limit(served.batches.max);
    rows.push_back(row);
  }
  return rows;
}

std::string select_conv(const std::string& activations, int64_t in_channels, int64_t out_channels,
                        int64_t group, const Pair& kernel, int64_t weights, bool values_fit,
                        bool unproven, bool tf32, int64_t capability) {
  ConvFacts facts;
  facts.activations = parse_type(activations);
  facts.geometry.in_channels = in_channels;
  facts.geometry.out_channels = out_channels;
  facts.geometry.group = group;
  std::copy(kernel.begin(), kernel.end(), facts.geometry.kernel);
  facts.weights = weights;
  facts.values_fit = values_fit;
  DeviceLimits limits;
  limits.capability = capability;
  return select_conv_kernel(facts, limits, {unproven, tf32}).name;
}

std::string problem_of_expand(const std::string& activations, bool values_fit, int64_t capability) {
  LayerFacts facts;
  facts.activations = parse_type(activations);
  facts.values_fit = values_fit;
  DeviceLimits limits;
  limits.capability = capability;
  return expand_problem(facts, limits);
}

py::dict run_conv(const py::array& values, const std::string& value_type, const py::array& indices,
                  const py::array& rows, const py::array& bias, int64_t in_features,
                  int64_t in_channels, int64_t group, const Pair& kernel, const Pair& strides,
                  const std::array<int64_t, 4>& pads, const Pair& dilations, const py::array& x,
                  const std::string& activations, const py::object& residual, py::array y,
                  float clip_min, float clip_max, float gate_scale, float gate_shift,
                  int64_t blocks, const std::optional<std::string>& conv_kernel,
                  int64_t multiprocessors, int64_t shared_bytes, int64_t cluster,
                  int64_t capability, bool tf32) {
  const CondensedView view =
      view_of(values, parse_type(value_type), indices, rows, bias, in_features);
  const ConvGeometry geometry =
      geometry_of(view, in_channels, group, kernel, strides, pads, dilations);
  const ValueType type = parse_type(activations);
  const ConvInput input =
      input_of(geometry, x, residual, y, static_cast<int64_t>(value_bytes(type)));
  RunArguments arguments;
  if (!residual.is_none()) arguments.residual = residual.cast<py::array>().data();
  arguments.x = x.data();
  arguments.y = y.mutable_data();
  arguments.clip_min = clip_min;
  arguments.clip_max = clip_max;
  arguments.gate = {gate_scale, gate_shift};
  emulation::Request request;
  if (conv_kernel) request.kernel = *conv_kernel;
  request.activations = type;
  request.limits = limits_of(multiprocessors, shared_bytes, cluster, capability);
  request.tf32 = tf32;
  return dict_of(emulation::run_conv(view, geometry, input, request, blocks, arguments));
}

}  // namespace
}  // namespace fanin::cuda

PYBIND11_MODULE(_cuda_emulation, module) {
  using namespace pybind11::literals;
  const float infinity = std::numeric_limits<float>::infinity();
  module.def("run", &fanin::cuda::run, py::kw_only(), "kernel"_a = py::none(), "values"_a,
             "value_type"_a, "indices"_a, "rows"_a, "bias"_a, "in_features"_a, "x"_a,
             "activations"_a, "residual"_a, "y"_a, "clip_min"_a = -infinity,
             "clip_max"_a = infinity, "multiprocessors"_a = 132, "shared_bytes"_a = 232448,
             "cluster"_a = 8, "capability"_a = 90, "tf32"_a = false);
  module.def("select_kernels", &fanin::cuda::select, py::kw_only(), "activations"_a,
             "in_features"_a, "out_features"_a, "weights"_a, "values_fit"_a, "min_batch"_a = 1,
             "max_batch"_a = py::none(), "unproven"_a = false, "tf32"_a = false,
             "multiprocessors"_a = 132, "shared_bytes"_a = 232448, "capability"_a = 90);
  module.def("select_conv_kernel", &fanin::cuda::select_conv, py::kw_only(), "activations"_a,
             "in_channels"_a, "out_channels"_a, "group"_a, "kernel"_a, "weights"_a, "values_fit"_a,
             "unproven"_a = false, "tf32"_a = false, "capability"_a = 90);
  module.def("expand_problem", &fanin::cuda::problem_of_expand, "activations"_a, "values_fit"_a,
             "capability"_a);
  module.def("run_conv", &fanin::cuda::run_conv, py::kw_only(), "values"_a, "value_type"_a,
             "indices"_a, "rows"_a, "bias"_a, "in_features"_a, "in_channels"_a, "group"_a,
             "kernel"_a, "strides"_a, "pads"_a, "dilations"_a, "x"_a, "activations"_a, "residual"_a,
             "y"_a, "clip_min"_a = -infinity, "clip_max"_a = infinity, "gate_scale"_a = 0.0f,
             "gate_shift"_a = 1.0f, "blocks"_a = 0, "conv_kernel"_a = py::none(),
             "multiprocessors"_a = 132, "shared_bytes"_a = 232448, "cluster"_a = 8,
             "capability"_a = 90, "tf32"_a = false);
}
