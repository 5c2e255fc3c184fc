// A list with one entry per rank that needs no allocation for the usual number of ranks.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace phalanx::python {

template <class T>
class PerRank {
 public:
  void push_back(T value) {
    if (size_ < kInline) {
      few_[size_] = value;
    } else {
      if (size_ == kInline) many_.assign(few_.begin(), few_.end());
      many_.push_back(value);
    }
    ++size_;
  }
  std::size_t size() const noexcept { return size_; }
  const T* data() const noexcept { return size_ <= kInline ? few_.data() : many_.data(); }
  const T* begin() const noexcept { return data(); }
  const T* end() const noexcept { return data() + size_; }
  T operator[](std::size_t at) const noexcept { return data()[at]; }

 private:
  static constexpr std::size_t kInline = 16;
  std::array<T, kInline> few_{};
  std::vector<T> many_;
  std::size_t size_ = 0;
};

}  // namespace phalanx::python
