// Which bytes a tensor touches, and whether two tensors have none in common.
//
// A strided tensor consists of runs of bytes that repeat in levels: "4 bytes, 100 times, 400 bytes apart" is a column.
// Two tensors that repeat with the same period are disjoint if their remainders are: one stays in the gaps of the
// other.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

namespace phalanx::devices::races {

class Footprint {
 public:
  Footprint(std::uintptr_t lo, std::uintptr_t hi) : lo_(lo), extents_{static_cast<std::int64_t>(hi - lo)} {}

  // Sizes and strides count items. A tensor without elements has an empty footprint.
  Footprint(std::uintptr_t lo, std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
            std::int64_t item_bytes)
      : lo_(lo), extents_{item_bytes} {
    std::array<Level, kMostLevels> dims;
    std::size_t num_dims = 0;
    bool has_more = false;
    for (std::size_t at = 0; at < sizes.size(); ++at) {
      if (sizes[at] == 0) {
        extents_[0] = 0;
        return;
      }
      if (sizes[at] == 1 || strides[at] == 0) continue;
      if (num_dims == kMostLevels) {
        has_more = true;
        break;
      }
      dims[num_dims++] = {strides[at] * item_bytes, sizes[at]};
    }
    if (has_more) {
      take_whole_range(sizes, strides, item_bytes);
      return;
    }
    std::sort(dims.begin(), dims.begin() + num_dims, [](const Level& a, const Level& b) { return a.stride < b.stride; });
    for (std::size_t at = 0; at < num_dims; ++at) add(dims[at]);
  }

  std::uintptr_t lo() const { return lo_; }
  std::uintptr_t hi() const { return lo_ + static_cast<std::uintptr_t>(extents_[num_levels_]); }
  bool is_empty() const { return extents_[num_levels_] == 0; }
  bool has_gaps() const { return num_levels_ > 0; }

  bool operator==(const Footprint& other) const {
    return lo_ == other.lo_ && num_levels_ == other.num_levels_ && extents_[0] == other.extents_[0] &&
           std::equal(levels_.begin(), levels_.begin() + num_levels_, other.levels_.begin());
  }

  // May return false for disjoint footprints, but never true for footprints that have a byte in common.
  bool is_disjoint_from(const Footprint& other) const {
    if (hi() <= other.lo() || other.hi() <= lo()) return true;
    for (std::size_t cut = 0; cut <= num_levels_; ++cut)
      for (std::size_t other_cut = 0; other_cut <= other.num_levels_; ++other_cut)
        if (never_meets(cut, other, other_cut)) return true;
    return false;
  }

 private:
  static constexpr std::size_t kMostLevels = 8;

  struct Level {
    std::int64_t stride = 0, count = 0;
    bool operator==(const Level&) const = default;
  };

  // Call it for levels in the order of rising strides.
  void add(const Level& level) {
    if (num_levels_ == 0 && level.stride <= extents_[0]) {
      extents_[0] += level.stride * (level.count - 1);  // no gap
      return;
    }
    if (num_levels_ > 0 && level.stride == levels_[num_levels_ - 1].stride * levels_[num_levels_ - 1].count) {
      levels_[num_levels_ - 1].count *= level.count;  // continues with the same stride
      extents_[num_levels_] += level.stride * (level.count - 1);
      return;
    }
    levels_[num_levels_] = level;
    extents_[num_levels_ + 1] = extents_[num_levels_] + level.stride * (level.count - 1);
    ++num_levels_;
  }

  void take_whole_range(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides, std::int64_t item_bytes) {
    extents_[0] = item_bytes;
    for (std::size_t at = 0; at < sizes.size(); ++at) {
      if (sizes[at] == 0) {
        extents_[0] = 0;
        return;
      }
      extents_[0] += (sizes[at] - 1) * strides[at] * item_bytes;
    }
  }

  // Treat the levels below the cuts as solid. The rest repeats with strides whose greatest common divisor is the
  // period.
  bool never_meets(std::size_t cut, const Footprint& other, std::size_t other_cut) const {
    std::int64_t period = 0;
    for (std::size_t at = cut; at < num_levels_; ++at) period = std::gcd(period, levels_[at].stride);
    for (std::size_t at = other_cut; at < other.num_levels_; ++at) period = std::gcd(period, other.levels_[at].stride);
    if (period == 0) return false;
    std::int64_t shift = static_cast<std::int64_t>(other.lo_ - lo_) % period;
    if (shift < 0) shift += period;
    return shift >= extents_[cut] && shift + other.extents_[other_cut] <= period;
  }

  std::uintptr_t lo_;
  std::size_t num_levels_ = 0;
  std::array<Level, kMostLevels> levels_{};
  std::array<std::int64_t, kMostLevels + 1> extents_{};  // from the first byte to the last, for each number of levels
};

}  // namespace phalanx::devices::races
