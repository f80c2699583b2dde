// The ops of the domain ai.fanin. An op is a class that holds the attributes of a node and defines
// what is specific to it; CpuOp and CudaOp are templates over it:
//
//   kSchema               name, inputs (X is the first) and shape inference
//   kCpuTypes, kCudaTypes types of X, residual and Y, with one registration each
//   kResidualInput        the input that is added to Y, kNoInput if the op has none
//   kWritesOverResidual   whether the CPU's kernels may be given the residual's memory as Y
//   Weights, View         the tensors of the weights, and what is packed of them
//   RunSize               the sizes of one run, of which one is `batch`
//   Op(info)              reads and checks the attributes
//   check_declared        checks what the graph declares
//   sound_view            a checked view of the weights
//   check_x, run_size, batches, output_dims
//                         what follows from the shape of X
//   pack, run             on the CPU
//   pack_on_device, run_on_device
//                         on a GPU
#pragma once

#include "ort/condensed_conv.h"
#include "ort/condensed_gemm.h"

namespace fanin::ort {

template <typename T>
struct OpType {
  using Op = T;
};

// Calls visit(OpType<Op>()) for every op. To add an op, add a line here.
template <typename Visit>
void visit_ops(const Visit& visit) {
  visit(OpType<CondensedGemm>());
  visit(OpType<CondensedConv>());
}

}  // namespace fanin::ort
