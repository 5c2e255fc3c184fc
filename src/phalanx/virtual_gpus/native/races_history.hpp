// The latest accesses to a block of memory: for each part of it the last write and the reads since.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "races_footprint.hpp"
#include "races_clocks.hpp"

namespace phalanx::devices::races {

// Numbers of objects that are stored elsewhere (races_places.hpp), so that a Touch stays small.
using SiteId = std::uint32_t;
using TensorId = std::uint32_t;

// The earlier tensor of memory that is used again.
struct FormerLife {
  SiteId allocated = 0, freed = 0;
};

enum class TouchKind : std::uint8_t { kOperation, kAllocation, kCollective };

struct Touch {
  std::size_t stream = 0;
  std::uint64_t launch = 0;
  SiteId site = 0;
  TensorId tensor = 0;
  TouchKind kind = TouchKind::kOperation;
  bool is_write = false;
  std::shared_ptr<const Footprint> gaps{};          // null if it touches every byte of its part
  std::shared_ptr<const FormerLife> former_life{};  // set if it is a touch of the tensor that had this memory before
};

// Touches of whole ranges are stored by range; a new touch splits them where it begins and ends. Touches with gaps are
// few and are stored separately.
class BlockHistory {
 public:
  void take_in(const Footprint& footprint, Touch touch) {
    if (footprint.is_empty()) return;
    if (footprint.has_gaps()) {
      touch.gaps = std::make_shared<const Footprint>(footprint);
      remember_with_gaps(touch);
    } else {
      remember_range(footprint.lo(), footprint.hi(), touch);
    }
  }

  // Record touches of the whole range, without a check.
  void start_with(std::uintptr_t lo, std::uintptr_t hi, std::vector<Touch> touches) {
    parts_.clear();
    with_gaps_.clear();
    parts_.emplace(lo, Part{hi, std::move(touches)});
  }

  // Calls conflict(earlier touch) for each touch that the new one must wait for, unless is_ordered(earlier touch). It
  // checks the order first: on one stream everything is ordered, and comparing bytes is slow.
  template <typename IsOrdered, typename Conflict>
  void look(const Footprint& footprint, bool is_write, IsOrdered is_ordered, Conflict conflict) const {
    if (footprint.is_empty()) return;
    auto part = parts_.upper_bound(footprint.lo());
    if (part != parts_.begin()) --part;
    for (; part != parts_.end() && part->first < footprint.hi(); ++part) {
      const Footprint range(part->first, part->second.hi);
      look_at(part->second.touches, is_write, [&](const Touch& earlier) {
        if (!is_ordered(earlier) && !footprint.is_disjoint_from(range)) conflict(earlier);
      });
    }
    for (const Touch& earlier : with_gaps_)
      if ((is_write || earlier.is_write) && !is_ordered(earlier) && !footprint.is_disjoint_from(*earlier.gaps))
        conflict(earlier);
  }

  template <typename Visit>
  void each_touch(Visit visit) const {
    for (const auto& [lo, part] : parts_)
      for (const Touch& touch : part.touches) visit(touch);
    for (const Touch& touch : with_gaps_) visit(touch);
  }

  std::size_t num_parts() const { return parts_.size() + with_gaps_.size(); }

 private:
  // Limits: the history may miss races, but does not grow without end.
  static constexpr std::size_t kMostParts = 1 << 16, kMostWithGaps = 256;

  struct Part {
    std::uintptr_t hi;
    std::vector<Touch> touches;  // the last write, the latest read of each stream since, and the memory's former life
  };

  // Reads since the last write come after that write, so a new write needs to be compared only with these reads.
  // Touches of the memory's former life are not ordered with them.
  template <typename Conflict>
  static void look_at(const std::vector<Touch>& touches, bool is_write, Conflict conflict) {
    const bool has_reads = std::any_of(touches.begin(), touches.end(), [](const Touch& earlier) {
      return !earlier.is_write && earlier.former_life == nullptr;
    });
    for (const Touch& earlier : touches) {
      const bool matters = is_write ? !earlier.is_write || !has_reads || earlier.former_life != nullptr : earlier.is_write;
      if (matters) conflict(earlier);
    }
  }

  void remember_range(std::uintptr_t lo, std::uintptr_t hi, const Touch& touch) {
    split_at(lo);
    split_at(hi);
    if (touch.is_write) {
      parts_.erase(parts_.lower_bound(lo), parts_.lower_bound(hi));
      parts_.emplace(lo, Part{hi, {touch}});
      std::erase_if(with_gaps_, [&](const Touch& earlier) { return lo <= earlier.gaps->lo() && earlier.gaps->hi() <= hi; });
    } else {
      fill_holes(lo, hi);
      for (auto part = parts_.lower_bound(lo); part != parts_.end() && part->first < hi; ++part)
        remember_read(part->second.touches, touch);
    }
    if (parts_.size() > kMostParts) parts_.clear();
  }

  static void remember_read(std::vector<Touch>& touches, const Touch& touch) {
    for (Touch& earlier : touches) {
      if (earlier.is_write || earlier.stream != touch.stream || earlier.former_life != nullptr) continue;
      earlier = touch;
      return;
    }
    touches.push_back(touch);
  }

  void remember_with_gaps(const Touch& touch) {
    std::erase_if(with_gaps_, [&](const Touch& earlier) {
      const bool is_done_with = touch.is_write || (!earlier.is_write && earlier.stream == touch.stream);
      return is_done_with && *earlier.gaps == *touch.gaps;
    });
    if (with_gaps_.size() == kMostWithGaps) with_gaps_.pop_front();
    with_gaps_.push_back(touch);
  }

  void split_at(std::uintptr_t where) {
    auto after = parts_.upper_bound(where);
    if (after == parts_.begin()) return;
    auto part = std::prev(after);
    if (part->first == where || part->second.hi <= where) return;
    parts_.emplace_hint(after, where, Part{part->second.hi, part->second.touches});
    part->second.hi = where;
  }

  void fill_holes(std::uintptr_t lo, std::uintptr_t hi) {
    auto part = parts_.lower_bound(lo);
    while (lo < hi) {
      const std::uintptr_t end = part == parts_.end() ? hi : std::min(hi, part->first);
      if (lo < end) parts_.emplace_hint(part, lo, Part{end, {}});
      if (part == parts_.end()) return;
      lo = part->second.hi;
      ++part;
    }
  }

  std::map<std::uintptr_t, Part> parts_;  // by their first byte
  std::deque<Touch> with_gaps_;           // the oldest first
};

}  // namespace phalanx::devices::races
