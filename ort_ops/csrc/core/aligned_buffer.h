// Memory of packed weights: aligned to a cache line, filled once, then only read.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace fanin {

// A cache line, and the width of the widest vector.
inline constexpr size_t kAlignment = 64;

template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;

  // `count` elements, all bits zero. Throws std::bad_alloc, also for a size that overflows.
  explicit AlignedBuffer(size_t count) : size_(count) {
    if (count > (~size_t{0} - kAlignment) / sizeof(T)) throw std::bad_alloc();
    const size_t bytes = (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    if (bytes == 0) return;
    data_.reset(static_cast<T*>(std::aligned_alloc(kAlignment, bytes)));
    if (!data_) throw std::bad_alloc();
    std::memset(static_cast<void*>(data_.get()), 0, bytes);
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }

 private:
  struct Free {
    void operator()(T* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

}  // namespace fanin
