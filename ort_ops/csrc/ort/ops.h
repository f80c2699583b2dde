// The ops of the domain ai.fanin. An op is a class that holds the attributes of a node and defines
// what is specific to it; CpuOp and CudaOp are templates over it:
//
//   kSchema               name, inputs (X is the first) and shape inference
//   kCpuTypes             types of X and of Y, with one registration each
//   kCudaTypes            on CUDA, where both have the same
//   kResidualInput        the input that is added to Y, kNoInput if the op has none
//   kWritesOverResidual   whether the CPU's kernels may be given the residual's memory as Y
//   Weights, View         the tensors of the weights, and what is packed of them
//   RunSize               the sizes of one run, of which one is `batch`
//   Op(info)              reads and checks the attributes
//   check_declared        checks what the graph declares
//   run_inputs            what a run on the CPU reads besides X, the residual and the weights
//   sound_view            a checked view of the weights
//   check_x, run_size, batches, output_dims
//                         what follows from the shape of X
//   pack, run             on the CPU
//   pack_on_device, run_on_device
//                         on a GPU
#pragma once

#include "ort/condensed_conv.h"
#include "ort/condensed_gemm.h"
#include "ort/qlinear_condensed_conv.h"
#include "ort/quantized_gemm_ops.h"

namespace fanin::ort {

template <typename T>
struct OpType {
  using Op = T;
};

// Calls visit(OpType<Op>()) for every op with kernels for CUDA.
template <typename Visit>
void visit_cuda_ops(const Visit& visit) {
  visit(OpType<CondensedGemm>());
  visit(OpType<CondensedConv>());
}

// The same for every op. To add an op, add a line here or above.
template <typename Visit>
void visit_ops(const Visit& visit) {
  visit_cuda_ops(visit);
  visit(OpType<QLinearCondensedGemm>());
  visit(OpType<QLinearCondensedConv>());
  visit(OpType<CondensedGemmIntegerToFloat>());
  visit(OpType<DynamicQuantizeCondensedGemm>());
}

}  // namespace fanin::ort
