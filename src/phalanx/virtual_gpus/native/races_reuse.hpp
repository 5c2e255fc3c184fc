// Freed memory that another stream may still be using.
//
// torch's caching allocator returns a freed block to the stream it was allocated on at once, because later work of that
// stream runs after its earlier work. It waits for other streams that use the block only if record_stream() has named
// them. So the next tensor that fits may be written while they still read the old one.
#pragma once

#include <unordered_map>
#include <vector>

#include "races_history.hpp"

namespace phalanx::devices::races {

struct FreedMemory {
  std::size_t size_bytes = 0;
  std::vector<Touch> touches;  // of other streams than the owner, with the block's former life
};

class ReusePools {
 public:
  void add(StreamKey owner, FreedMemory freed) {
    auto& pool = pools_[owner];
    if (pool.size() >= kMostFreed) pool.erase(pool.begin());
    freed.size_bytes = rounded(freed.size_bytes);
    pool.push_back(std::move(freed));
  }

  // Returns the touches of the memory that a new tensor of this size may get; empty if all are ordered by now.
  std::vector<Touch> take(StreamKey owner, std::size_t size_bytes, const Clock& clock) {
    const auto found = pools_.find(owner);
    if (found == pools_.end()) return {};
    auto& pool = found->second;
    std::erase_if(pool, [&](const FreedMemory& freed) { return is_safe(freed, clock); });
    const std::size_t wanted = rounded(size_bytes);
    auto best = pool.end();
    for (auto freed = pool.begin(); freed != pool.end(); ++freed)
      if (fits(wanted, freed->size_bytes) && (best == pool.end() || freed->size_bytes < best->size_bytes)) best = freed;
    std::vector<Touch> touches;
    if (best != pool.end()) {
      touches = std::move(best->touches);
      pool.erase(best);
    }
    if (pool.empty()) pools_.erase(found);
    return touches;
  }

  void clear() { pools_.clear(); }
  bool is_empty() const { return pools_.empty(); }

 private:
  static constexpr std::size_t kMostFreed = 1024;
  static constexpr std::size_t kRounding = 512, kSmallBytes = 1 << 20;  // the allocator's own numbers

  static std::size_t rounded(std::size_t size_bytes) { return (size_bytes + kRounding - 1) / kRounding * kRounding; }

  // Small and large tensors never share memory. It is not known which of the fitting blocks the allocator takes.
  static bool fits(std::size_t wanted, std::size_t there) {
    return wanted <= there && (wanted <= kSmallBytes) == (there <= kSmallBytes);
  }

  static bool is_safe(const FreedMemory& freed, const Clock& clock) {
    return std::all_of(freed.touches.begin(), freed.touches.end(),
                       [&](const Touch& touch) { return touch.launch <= clock.of(touch.stream); });
  }

  std::unordered_map<StreamKey, std::vector<FreedMemory>, HashOfStreamKey> pools_;
};

}  // namespace phalanx::devices::races
