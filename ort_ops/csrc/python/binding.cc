#include <pybind11/pybind11.h>

#include "core/cpu_features.h"

PYBIND11_MODULE(_native, module) {
  module.def("supported_isas", [] {
    std::vector<std::string> names;
    for (fanin::Isa isa : fanin::supported_isas()) names.emplace_back(fanin::isa_name(isa));
    return pybind11::cast(names.size());
  });
}
