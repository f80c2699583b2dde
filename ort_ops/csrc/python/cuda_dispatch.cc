#include "python/cuda_dispatch.h"

#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "cuda/dispatch.h"
#include "cuda/kernel_table.h"
#include "cuda/python/layer.h"
#include "python/arrays.h"

namespace py = pybind11;

namespace fanin {
namespace {

using cuda::KernelRow;

// The row that serves one batch of a layer.
KernelRow serving(const std::string& activations, int64_t in_features, int64_t out_features,
                  int64_t weights, int64_t batch, int64_t multiprocessors, int64_t shared_bytes,
                  int64_t capability, bool unproven) {
  cuda::LayerFacts layer;
  layer.activations = cuda::parse_type(activations);
  layer.in_features = in_features;
  layer.out_features = out_features;
  layer.weights = weights;
  layer.values_fit = layer.activations != ValueType::kFloat32;
  cuda::DeviceLimits limits;
  limits.multiprocessors = multiprocessors;
  limits.shared_bytes_per_block = shared_bytes;
  limits.capability = capability;
  return *cuda::select_kernels(layer, {batch, batch}, limits, unproven).front().row;
}

}  // namespace

void bind_cuda_dispatch(py::module_& module) {
  using namespace pybind11::literals;
  py::class_<KernelRow>(module, "CudaKernelRow")
      .def_property_readonly("name", [](const KernelRow& row) { return row.name; })
      .def_property_readonly("op", [](const KernelRow& row) { return cuda::op_name(row.op); })
      .def_property_readonly("layout",
                             [](const KernelRow& row) { return cuda::layout_name(row.layout); })
      .def_property_readonly("activations",
                             [](const KernelRow& row) { return value_type_name(row.activations); })
      .def_property_readonly("min_batch", [](const KernelRow& row) { return row.batches.min; })
      .def_property_readonly("max_batch",
                             [](const KernelRow& row) { return limit(row.batches.max); })
      .def_property_readonly("shared_samples",
                             [](const KernelRow& row) { return row.shared_samples; })
      .def_property_readonly("proven", [](const KernelRow& row) { return row.proven; })
      .def("__repr__",
           [](const KernelRow& row) { return "<CudaKernelRow " + std::string(row.name) + ">"; });
  module.def("cuda_kernel_table", [] { return std::vector<KernelRow>(cuda::kernel_table()); });
  module.def("cuda_unproven_requested", &cuda::unproven_requested);
  module.def("cuda_kernel_serving", &serving, py::kw_only(), "activations"_a, "in_features"_a,
             "out_features"_a, "weights"_a, "batch"_a, "multiprocessors"_a, "shared_bytes"_a,
             "capability"_a, "unproven"_a);
}

}  // namespace fanin
