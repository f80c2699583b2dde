#include "cuda/emulation/block.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace fanin::cuda::emulation {
namespace {

constexpr size_t kStackBytes = 32 << 10;
constexpr int kWarp = 32;

}  // namespace

Block::Block(int threads, int64_t shared_bytes)
    : fibers_(static_cast<size_t>(threads)),
      shared_(static_cast<size_t>(shared_bytes)),
      cells_(static_cast<size_t>((shared_bytes + 1) / 2)),
      collectives_(static_cast<size_t>(threads / kWarp)) {
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
    if (fiber.copies.size() > 1 || !fiber.copies.back().empty())
      throw std::logic_error("a thread ends while its copies are in flight");
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
    fiber.copies.assign(1, {});
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

void Block::warp_collective(WarpOperation operation, void* lane) {
  Fiber& fiber = fibers_[static_cast<size_t>(current_)];
  fiber.operation = operation;
  fiber.lane = lane;
  wait(State::kAtWarp);
}

bool Block::release_warp(int warp) {
  Fiber* lanes = fibers_.data() + warp * kWarp;
  if (!std::all_of(lanes, lanes + kWarp,
                   [](const Fiber& lane) { return lane.state == State::kAtWarp; }))
    return false;
  if (!std::all_of(lanes, lanes + kWarp,
                   [&](const Fiber& lane) { return lane.operation == lanes->operation; }))
    throw std::logic_error("lanes of a warp are at different operations");
  void* passed[kWarp];
  for (int lane = 0; lane < kWarp; ++lane) passed[lane] = lanes[lane].lane;
  lanes->operation(passed);
  ++collectives_[static_cast<size_t>(warp)];
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

bool Block::ordered_after_write(const Cell& cell) const {
  if (cell.written != barriers_ || cell.writer == current_) return true;
  const int warp = current_ / kWarp;
  return cell.writer / kWarp == warp &&
         cell.written_in_warp < collectives_[static_cast<size_t>(warp)];
}

bool Block::ordered_after_reads(const Cell& cell) const {
  if (cell.read != barriers_ || cell.reader == current_) return true;
  const int warp = current_ / kWarp;
  return cell.reading_warp == warp && cell.read_in_warp < collectives_[static_cast<size_t>(warp)];
}

const unsigned char* Block::read(int64_t offset, int64_t bytes) {
  check(offset, bytes);
  const int warp = current_ / kWarp;
  for (int64_t i = offset / 2; i < (offset + bytes) / 2; ++i) {
    Cell& cell = cells_[static_cast<size_t>(i)];
    if (cell.in_flight) fail("read while a copy to it is in flight", 2 * i);
    if (cell.written < 0) fail("read before anybody has written it", 2 * i);
    if (!ordered_after_write(cell))
      fail("read without a barrier after thread " + std::to_string(cell.writer) + " wrote it",
           2 * i);
    const bool again = cell.read == barriers_;
    cell.reader = again && cell.reader != current_ ? kMany : current_;
    cell.reading_warp = again && cell.reading_warp != warp ? kMany : warp;
    cell.read = barriers_;
    cell.read_in_warp = collectives_[static_cast<size_t>(warp)];
  }
  return shared_.data() + offset;
}

unsigned char* Block::write(int64_t offset, int64_t bytes) {
  check(offset, bytes);
  for (int64_t i = offset / 2; i < (offset + bytes) / 2; ++i) {
    Cell& cell = cells_[static_cast<size_t>(i)];
    if (cell.in_flight) fail("written while a copy to it is in flight", 2 * i);
    if (!ordered_after_write(cell))
      fail("written without a barrier after thread " + std::to_string(cell.writer) + " wrote it",
           2 * i);
    if (!ordered_after_reads(cell))
      fail("written without a barrier after another thread read it", 2 * i);
    if (cell.read_outside == cluster_barriers_)
      fail("written without a barrier of the cluster after another block read it", 2 * i);
    cell.written = barriers_;
    cell.written_cluster = cluster_barriers_;
    cell.written_in_warp = collectives_[static_cast<size_t>(current_ / kWarp)];
    cell.writer = current_;
  }
  return shared_.data() + offset;
}

void Block::copy_async(int64_t offset, int64_t bytes, const void* from, int64_t there) {
  write(offset, bytes);
  for (int64_t i = offset / 2; i < (offset + bytes) / 2; ++i)
    cells_[static_cast<size_t>(i)].in_flight = true;
  Copy copy{offset, std::vector<unsigned char>(static_cast<size_t>(bytes))};
  if (there > 0) std::memcpy(copy.bytes.data(), from, static_cast<size_t>(there));
  fibers_[static_cast<size_t>(current_)].copies.back().push_back(std::move(copy));
}

void Block::copy_commit() { fibers_[static_cast<size_t>(current_)].copies.emplace_back(); }

void Block::copy_wait(int pending) {
  auto& groups = fibers_[static_cast<size_t>(current_)].copies;
  while (groups.size() > static_cast<size_t>(pending) + 1) {
    for (const Copy& copy : groups.front()) {
      const auto bytes = static_cast<int64_t>(copy.bytes.size());
      for (int64_t i = copy.offset / 2; i < (copy.offset + bytes) / 2; ++i)
        cells_[static_cast<size_t>(i)].in_flight = false;
      std::memcpy(write(copy.offset, bytes), copy.bytes.data(), copy.bytes.size());
    }
    groups.pop_front();
  }
}

const unsigned char* Block::read_from_outside(int64_t offset, int64_t bytes) {
  check(offset, bytes);
  if (ended_) fail("read by another block after its own has ended", offset);
  for (int64_t i = offset / 2; i < (offset + bytes) / 2; ++i) {
    Cell& cell = cells_[static_cast<size_t>(i)];
    if (cell.in_flight) fail("read by another block while a copy to it is in flight", 2 * i);
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
