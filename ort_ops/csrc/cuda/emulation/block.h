// A block of GPU threads on one CPU thread: each has its own stack and runs until it waits for the
// others. Finds errors that hardware does not report: barriers that not every thread reaches, and
// accesses to shared memory that race (two threads between two barriers, one of them writing), that
// read unwritten memory, that meet a copy in flight, or that are out of bounds.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <deque>
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

  // Waits for the other lanes of the warp, which must call the same operation, and calls it once
  // with what each lane has passed. Accesses of the warp's lanes before are ordered before those
  // after.
  using WarpOperation = void (*)(void* const (&lanes)[32]);
  void warp_collective(WarpOperation operation, void* lane);

  // A copy into shared memory that is in flight until copy_wait. `from` may be null for zeros;
  // bytes beyond `there` become zeros, too.
  void copy_async(int64_t offset, int64_t bytes, const void* from, int64_t there);
  void copy_commit();
  // Ends all groups of this thread's copies but the last `pending`.
  void copy_wait(int pending);

  // Records the access and returns the address. The access must not be empty.
  const unsigned char* read(int64_t offset, int64_t bytes);
  unsigned char* write(int64_t offset, int64_t bytes);
  const unsigned char* read_from_outside(int64_t offset, int64_t bytes);

 private:
  enum class State { kRuns, kAtBarrier, kAtCluster, kAtWarp, kDone };

  struct Copy {
    int64_t offset;
    std::vector<unsigned char> bytes;
  };

  struct Fiber {
    ucontext_t context;
    std::vector<unsigned char> stack;
    State state = State::kRuns;
    WarpOperation operation = nullptr;
    void* lane = nullptr;                  // what it has passed to the operation
    std::deque<std::vector<Copy>> copies;  // by group; the last one is not committed
    std::exception_ptr error;
  };

  // Two bytes of shared memory.
  struct Cell {
    int64_t written = -1;  // number of barriers passed before
    int64_t read = -1;
    int writer = -1;
    int reader = -1;               // kMany: more than one
    int reading_warp = -1;         // kMany: more than one
    bool in_flight = false;        // the target of a copy
    int64_t written_in_warp = -1;  // number of collectives that the writer's warp has passed before
    int64_t read_in_warp = -1;     // the same of the reading warp
    int64_t written_cluster = -1;  // number of the cluster's barriers passed before
    int64_t read_outside = -1;     // the same, of a read by another block
  };

  static constexpr int kMany = -2;
  static void enter(unsigned low, unsigned high);

  void wait(State state);
  bool release_warp(int warp);
  bool release_barrier();
  bool all_at(State state) const;
  bool ordered_after_write(const Cell& cell) const;
  bool ordered_after_reads(const Cell& cell) const;
  [[noreturn]] void fail(const std::string& what, int64_t offset) const;
  void check(int64_t offset, int64_t bytes) const;

  std::vector<Fiber> fibers_;
  std::vector<unsigned char> shared_;
  std::vector<Cell> cells_;
  std::vector<int64_t> collectives_;  // that each warp has passed
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
