// Memory of packed weights: aligned to a cache line, filled once, then only read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "core/huge_slabs.h"

namespace fanin {

// A cache line, and the width of the widest vector.
inline constexpr size_t kAlignment = 64;

// Zeroed memory. Blocks of at least kMappedBytes are separate mappings: they grow without being
// copied, pages that are never written take no memory, and freed memory returns to the system at
// once. Throw std::bad_alloc; 0 bytes give null.
inline constexpr size_t kMappedBytes = 256 * 1024;
void* allocate_block(size_t bytes);
void* resize_block(void* block, size_t from, size_t to);
void free_block(void* block, size_t bytes) noexcept;

template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;

  // `count` elements, all bits zero. Throws std::bad_alloc, also for a size that overflows.
  explicit AlignedBuffer(size_t count)
      : data_(static_cast<T*>(allocate_block(bytes_of(count))), Free{bytes_of(count), false}),
        size_(count) {}

  // A long-lived copy of `count` elements; a large one is placed in huge pages.
  static AlignedBuffer kept(const T* elements, size_t count) {
    const size_t bytes = bytes_of(count);
    if (bytes < kMappedBytes) {
      AlignedBuffer small(count);
      if (count > 0) std::memcpy(small.data(), elements, count * sizeof(T));
      return small;
    }
    AlignedBuffer large;
    large.data_ =
        std::unique_ptr<T, Free>(static_cast<T*>(allocate_in_slab(bytes)), Free{bytes, true});
    large.size_ = count;
    std::memcpy(large.data(), elements, count * sizeof(T));
    return large;
  }

  // Not for a kept buffer. Preserves existing elements; new ones have all bits zero.
  void resize(size_t count) {
    const size_t to = bytes_of(count), from = data_.get_deleter().bytes;
    T* moved = static_cast<T*>(resize_block(data_.get(), from, to));
    data_.release();
    data_ = std::unique_ptr<T, Free>(moved, Free{to, false});
    size_ = count;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }

 private:
  struct Free {
    size_t bytes = 0;
    bool in_slab = false;
    void operator()(T* pointer) const {
      if (in_slab)
        free_in_slab(pointer, bytes);
      else
        free_block(pointer, bytes);
    }
  };

  static size_t bytes_of(size_t count) {
    if (count > (~size_t{0} - kAlignment) / sizeof(T)) throw std::bad_alloc();
    return (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }

  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

// Collects elements whose number is not known in advance.
template <typename T>
class GrowingBuffer {
 public:
  // Reserves room for about `count`. Too high an estimate costs no memory, see kMappedBytes.
  void reserve(size_t count) { buffer_.resize(std::max(count, used_)); }

  // `count` new elements, all bits zero; valid until the next call.
  T* extend(size_t count) {
    if (count > buffer_.size() - used_)
      buffer_.resize(std::max(used_ + count, used_ + used_ / 2 + kAlignment));
    T* added = buffer_.data() + used_;
    used_ += count;
    return added;
  }

  size_t size() const { return used_; }
  T* data() { return buffer_.data(); }

  // Moves the elements into a kept buffer; this one is empty afterwards.
  AlignedBuffer<T> take() {
    AlignedBuffer<T> kept = AlignedBuffer<T>::kept(buffer_.data(), used_);
    buffer_ = AlignedBuffer<T>();
    used_ = 0;
    return kept;
  }

 private:
  AlignedBuffer<T> buffer_;
  size_t used_ = 0;
};

}  // namespace fanin
