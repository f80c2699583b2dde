#include "cuda/emulation/block.h"

#include <algorithm>
#include <stdexcept>

namespace fanin::cuda::emulation {
namespace {

constexpr size_t kStackBytes = 32 << 10;
constexpr int kWarp = 32;

}  // namespace

Block::Block(int threads, int64_t shared_bytes)
    : fibers_(static_cast<size_t>(threads)),
      shared_(static_cast<size_t>(shared_bytes)),
      cells_(static_cast<size_t>((shared_bytes + 1) / 2)) {
  if (threads < 1 || threads > 1024 || threads % kWarp != 0)
    throw std::logic_error("a block of " + std::to_string(threads) + " threads");
  for (Fiber& fiber : fibers_) fiber.stack.resize(kStackBytes);
}

void Block::enter(unsigned low, unsigned high) {
  Block& block =
      *reinterpret_cast<Block*>(static_cast<uintptr_t>(low) | static_cast<uintptr_t>(high) << 32);
  Fiber& fiber = block.fibers_[static_cast<size_t>(block.current_)];
  try {
    (*block.program_)();
  } catch (...) {
    fiber.error = std::current_exception();
  }
  fiber.state = State::kDone;
}

void Block::start(const std::function<void()>& program) {
  program_ = &program;
  barriers_ = cluster_barriers_ = 0;
  ended_ = false;
  std::fill(cells_.begin(), cells_.end(), Cell{});
  const uintptr_t self = reinterpret_cast<uintptr_t>(this);
  for (Fiber& fiber : fibers_) {
    fiber.state = State::kRuns;
    fiber.error = nullptr;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler_;
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Block::enter), 2,
                static_cast<unsigned>(self), static_cast<unsigned>(self >> 32));
  }
}

Block::Stop Block::advance() {
  for (;;) {
    bool alive = false;
    for (size_t i = 0; i < fibers_.size(); ++i) {
      Fiber& fiber = fibers_[i];
      if (fiber.state == State::kRuns) {
        current_ = static_cast<int>(i);
        swapcontext(&scheduler_, &fiber.context);
        if (fiber.error) std::rethrow_exception(fiber.error);
      }
      alive |= fiber.state != State::kDone;
    }
    if (!alive) {
      ended_ = true;
      return Stop::kEnded;
    }
    if (all_at(State::kAtCluster)) return Stop::kAtCluster;
    bool released = false;
    for (int warp = 0; warp < threads() / kWarp; ++warp) released |= release_warp(warp);
    if (!released && !release_barrier())
      throw std::logic_error("threads of a block wait at different places, or some have ended");
  }
}

void Block::wait(State state) {
  Fiber& fiber = fibers_[static_cast<size_t>(current_)];
  fiber.state = state;
  swapcontext(&fiber.context, &scheduler_);
}

void Block::sync() { wait(State::kAtBarrier); }

void Block::cluster_sync() { wait(State::kAtCluster); }

void Block::pass_cluster_barrier() {
  ++barriers_;
  ++cluster_barriers_;
  for (Fiber& fiber : fibers_) fiber.state = State::kRuns;
}

bool Block::all_at(State state) const {
  return std::all_of(fibers_.begin(), fibers_.end(),
                     [state](const Fiber& fiber) { return fiber.state == state; });
}

float Block::warp_sum(float value) {
  Fiber& fiber = fibers_[static_cast<size_t>(current_)];
  fiber.value = value;
  wait(State::kAtWarp);
  return fiber.value;
}

bool Block::release_warp(int warp) {
  Fiber* lanes = fibers_.data() + warp * kWarp;
  if (!std::all_of(lanes, lanes + kWarp,
                   [](const Fiber& lane) { return lane.state == State::kAtWarp; }))
    return false;
  // The butterfly of the device's shuffles.
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    float next[kWarp];
    for (int lane = 0; lane < kWarp; ++lane)
      next[lane] = lanes[lane].value + lanes[lane ^ distance].value;
    for (int lane = 0; lane < kWarp; ++lane) lanes[lane].value = next[lane];
  }
  for (int lane = 0; lane < kWarp; ++lane) lanes[lane].state = State::kRuns;
  return true;
}

bool Block::release_barrier() {
  if (!all_at(State::kAtBarrier)) return false;
  ++barriers_;
  for (Fiber& fiber : fibers_) fiber.state = State::kRuns;
  return true;
}

void Block::fail(const std::string& what, int64_t offset) const {
  throw std::logic_error("thread " + std::to_string(current_) + ", shared memory at " +
                         std::to_string(offset) + ": " + what);
}

void Block::check(int64_t offset, int64_t bytes) const {
  if (offset < 0 || bytes < 2 || offset + bytes > static_cast<int64_t>(shared_.size()))
    fail("outside of its " + std::to_string(shared_.size()) + " bytes", offset);
  if (offset % std::min<int64_t>(bytes, 16) != 0) fail("not aligned", offset);
}

const unsigned char* Block::read(int64_t offset, int64_t bytes) {
  check(offset, bytes);
  for (int64_t i = offset / 2; i < (offset + bytes) / 2; ++i) {
    Cell& cell = cells_[static_cast<size_t>(i)];
    if (cell.written < 0) fail("read before anybody has written it", 2 * i);
    if (cell.written == barriers_ && cell.writer != current_)
      fail("read without a barrier after thread " + std::to_string(cell.writer) + " wrote it",
           2 * i);
    cell.reader = cell.read == barriers_ && cell.reader != current_ ? kMany : current_;
    cell.read = barriers_;
  }
  return shared_.data() + offset;
}

unsigned char* Block::write(int64_t offset, int64_t bytes) {
  check(offset, bytes);
  for (int64_t i = offset / 2; i < (offset + bytes) / 2; ++i) {
    Cell& cell = cells_[static_cast<size_t>(i)];
    if (cell.written == barriers_ && cell.writer != current_)
      fail("written without a barrier after thread " + std::to_string(cell.writer) + " wrote it",
           2 * i);
    if (cell.read == barriers_ && cell.reader != current_)
      fail("written without a barrier after another thread read it", 2 * i);
    if (cell.read_outside == cluster_barriers_)
      fail("written without a barrier of the cluster after another block read it", 2 * i);
    cell.written = barriers_;
    cell.written_cluster = cluster_barriers_;
    cell.writer = current_;
  }
  return shared_.data() + offset;
}

const unsigned char* Block::read_from_outside(int64_t offset, int64_t bytes) {
  check(offset, bytes);
  if (ended_) fail("read by another block after its own has ended", offset);
  for (int64_t i = offset / 2; i < (offset + bytes) / 2; ++i) {
    Cell& cell = cells_[static_cast<size_t>(i)];
    if (cell.written < 0) fail("read by another block before anybody has written it", 2 * i);
    if (cell.written_cluster == cluster_barriers_)
      fail("read by another block without a barrier of the cluster after it was written", 2 * i);
    cell.read_outside = cluster_barriers_;
  }
  return shared_.data() + offset;
}

Cluster::Cluster(int blocks, int threads, int64_t shared_bytes) {
  for (int rank = 0; rank < blocks; ++rank)
    blocks_.push_back(std::make_unique<Block>(threads, shared_bytes));
}

void Cluster::run(const std::function<void(int)>& program) {
  std::vector<std::function<void()>> programs;
  for (size_t rank = 0; rank < blocks_.size(); ++rank)
    programs.emplace_back([&program, rank] { program(static_cast<int>(rank)); });
  for (size_t rank = 0; rank < blocks_.size(); ++rank) blocks_[rank]->start(programs[rank]);
  for (;;) {
    size_t waiting = 0;
    for (const auto& block : blocks_)
      waiting += block->advance() == Block::Stop::kAtCluster ? 1 : 0;
    if (waiting == 0) return;
    if (waiting != blocks_.size())
      throw std::logic_error("blocks of a cluster have ended while others wait for them");
    for (const auto& block : blocks_) block->pass_cluster_barrier();
  }
}

}  // namespace fanin::cuda::emulation
