// A block of GPU threads on one CPU thread: each has its own stack and runs until it waits for the
// others. Finds errors that hardware does not report: barriers that not every thread reaches, and
// accesses to shared memory that race (two threads between two barriers, one of them writing), that
// read unwritten memory, or that are out of bounds.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fanin::cuda::emulation {

class Block {
 public:
  Block(int threads, int64_t shared_bytes);

  // The program runs once for every thread; it must outlive these runs.
  void start(const std::function<void()>& program);

  enum class Stop { kEnded, kAtCluster };
  // Runs all threads to their end or to a barrier of the cluster. Throws std::logic_error for
  // errors of the program, and whatever the program throws.
  Stop advance();

  // Opens the barrier of the cluster.
  void pass_cluster_barrier();

  // From within the program:
  int thread() const { return current_; }
  int threads() const { return static_cast<int>(fibers_.size()); }
  void sync();
  void cluster_sync();
  float warp_sum(float value);

  // Records the access and returns the address. The access must not be empty.
  const unsigned char* read(int64_t offset, int64_t bytes);
  unsigned char* write(int64_t offset, int64_t bytes);
  const unsigned char* read_from_outside(int64_t offset, int64_t bytes);

 private:
  enum class State { kRuns, kAtBarrier, kAtCluster, kAtWarp, kDone };

  struct Fiber {
    ucontext_t context;
    std::vector<unsigned char> stack;
    State state = State::kRuns;
    float value = 0;
    std::exception_ptr error;
  };

  // Two bytes of shared memory.
  struct Cell {
    int64_t written = -1;  // number of barriers passed before
    int64_t read = -1;
    int writer = -1;
    int reader = -1;               // kMany: more than one
    int64_t written_cluster = -1;  // number of the cluster's barriers passed before
    int64_t read_outside = -1;     // the same, of a read by another block
  };

  static constexpr int kMany = -2;
  static void enter(unsigned low, unsigned high);

  void wait(State state);
  bool release_warp(int warp);
  bool release_barrier();
  bool all_at(State state) const;
  [[noreturn]] void fail(const std::string& what, int64_t offset) const;
  void check(int64_t offset, int64_t bytes) const;

  std::vector<Fiber> fibers_;
  std::vector<unsigned char> shared_;
  std::vector<Cell> cells_;
  ucontext_t scheduler_;
  const std::function<void()>* program_ = nullptr;
  int current_ = 0;
  int64_t barriers_ = 0;
  int64_t cluster_barriers_ = 0;
  bool ended_ = false;
};

// Blocks that read each other's shared memory between barriers of all of them.
class Cluster {
 public:
  Cluster(int blocks, int threads, int64_t shared_bytes);

  // Runs the program once for every thread of every block, with the block's rank. Throws as
  // Block::advance.
  void run(const std::function<void(int)>& program);

  Block& block(int rank) { return *blocks_.at(static_cast<size_t>(rank)); }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace fanin::cuda::emulation
