#include "kernels/quantized_conv_dispatch.h"

#include "kernels/dispatch_find.h"
#include "kernels/quantized_taps_conv.h"

namespace fanin {
namespace {

std::vector<QuantizedConvKernelRow> make_table() {
  return {{"i8-conv-taps-scalar", Isa::kScalar, pack_quantized_taps_conv}};
}

}  // namespace

const std::vector<QuantizedConvKernelRow>& quantized_conv_kernel_table() {
  // Never destroyed, since sessions may be created and run while the process exits.
  static const auto& table = *new std::vector<QuantizedConvKernelRow>(make_table());
  return table;
}

const QuantizedConvKernelRow& select_quantized_conv_kernel(Isa isa, const CondensedView&,
                                                           const ConvGeometry&) {
  return first_row(quantized_conv_kernel_table(),
                   [isa](const QuantizedConvKernelRow& row) { return includes(isa, row.isa); });
}

const QuantizedConvKernelRow& find_quantized_conv_kernel(const std::string& name) {
  return find_row(quantized_conv_kernel_table(), name);
}

}  // namespace fanin
