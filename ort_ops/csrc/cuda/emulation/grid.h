// Runs every block and thread of a launch, one after another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/emulation/block.h"
#include "cuda/emulation/host_context.h"
#include "cuda/plan.h"

namespace fanin::cuda::emulation {

struct Launch {
  int64_t grid_x = 1;
  int64_t grid_y = 1;
  int warps = 1;
  int64_t shared_bytes = 0;
  int cluster = 1;
};

// `outputs`: number of elements of y, each of which must be written once. Throws std::logic_error.
template <typename Program, typename Args>
void run_grid(const Args& args, int64_t outputs, const Launch& launch) {
  if (launch.grid_x < 1 || launch.grid_x > 0x7fffffff || launch.grid_y < 1 ||
      launch.grid_y > kMaxGridY)
    throw std::logic_error("a grid of " + std::to_string(launch.grid_x) + " x " +
                           std::to_string(launch.grid_y));
  if (launch.warps * 32 > Program::kMaxThreads)
    throw std::logic_error("a block of " + std::to_string(launch.warps) + " warps");
  std::vector<uint8_t> writes(static_cast<size_t>(outputs));
  if (launch.grid_x % launch.cluster != 0) throw std::logic_error("a cluster is cut off");
  Cluster cluster(launch.cluster, launch.warps * 32, launch.shared_bytes);
  for (int64_t y = 0; y < launch.grid_y; ++y)
    for (int64_t x = 0; x < launch.grid_x; x += launch.cluster)
      cluster.run([&](int rank) {
        const HostContext context(cluster, rank, {x + rank, y, launch.grid_x, launch.grid_y},
                                  writes);
        Program::run(context, args);
      });
  if (std::count(writes.begin(), writes.end(), 1) != static_cast<int64_t>(writes.size()))
    throw std::logic_error("an output is not written");
}

}  // namespace fanin::cuda::emulation
