// Copies from and to pinned memory that may still be under way.
#pragma once

#include "races_history.hpp"

namespace phalanx::devices::races {

// Not for several threads at a time.
class CopiesInFlight {
 public:
  bool is_empty() const { return blocks_.empty(); }

  // The copies that may touch this memory; null if there are none.
  const BlockHistory* find(const Footprint& footprint) const {
    auto after = blocks_.upper_bound(footprint.lo());
    if (footprint.is_empty() || after == blocks_.begin()) return nullptr;
    const Block& block = std::prev(after)->second;
    return footprint.lo() < block.hi ? &block.history : nullptr;
  }

  void add(const void* start, const Footprint& footprint, const Touch& touch, const Clocks& clocks) {
    if (blocks_.size() >= kMost) forget_settled(clocks);
    if (blocks_.size() >= kMost) forget_older_half();
    Block& block = blocks_[reinterpret_cast<std::uintptr_t>(start)];
    block.history.take_in(footprint, touch);
    block.hi = std::max(block.hi, footprint.hi());
    block.latest_launch = touch.launch;
  }

  // Removes copies that the host has waited for. It looks through them only if the host has waited since the last call.
  void forget_settled(const Clocks& clocks) {
    if (host_changes_seen_ == clocks.host_changes()) return;
    host_changes_seen_ = clocks.host_changes();
    std::erase_if(blocks_, [&](const auto& entry) {
      bool is_settled = true;
      entry.second.history.each_touch([&](const Touch& touch) { is_settled &= touch.launch <= clocks.host().of(touch.stream); });
      return is_settled;
    });
  }

  void freed(const void* start) { blocks_.erase(reinterpret_cast<std::uintptr_t>(start)); }

 private:
  static constexpr std::size_t kMost = 1 << 10;  // a limit: the detector may miss races, but does not grow without end

  struct Block {
    BlockHistory history;
    std::uintptr_t hi = 0;
    std::uint64_t latest_launch = 0;
  };

  // Removes half of them at once: one by one, it would search for the oldest at each copy.
  void forget_older_half() {
    std::vector<std::uint64_t> launches;
    for (const auto& [start, block] : blocks_) launches.push_back(block.latest_launch);
    const auto middle = launches.begin() + static_cast<std::ptrdiff_t>(launches.size() / 2);
    std::nth_element(launches.begin(), middle, launches.end());
    std::erase_if(blocks_, [&](const auto& entry) { return entry.second.latest_launch < *middle; });
  }

  std::map<std::uintptr_t, Block> blocks_;  // by their start
  std::uint64_t host_changes_seen_ = 0;
};

}  // namespace phalanx::devices::races
