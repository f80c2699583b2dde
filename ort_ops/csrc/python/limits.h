// Measured limits of one core of this machine, with which kernel benchmarks compare.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fanin {

// Cycles per second now: a chain of dependent additions takes one cycle each.
double clock_hertz();

// Float32 multiply-adds per second, lanes counted, with the widest vectors of this CPU.
double peak_macs_per_second();

// Reads all `bytes` at `data` once, in order, with the widest vectors of this CPU; returns a value
// that depends on them, so that the compiler cannot remove the reads.
uint64_t read_once(const void* data, size_t bytes);

}  // namespace fanin
