#include "symmetric.hpp"

#include <algorithm>

namespace phalanx {

void SymmetricMemory::add(const std::shared_ptr<SymmetricBlock>& block) {
  const std::lock_guard lock(mutex_);
  blocks_.erase(std::remove_if(blocks_.begin(), blocks_.end(), [](const auto& b) { return b.expired(); }),
                blocks_.end());
  blocks_.push_back(block);
  is_used_.store(true, std::memory_order_relaxed);
}

SymmetricPlace SymmetricMemory::search(const std::byte* data, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  for (const auto& candidate : blocks_) {
    const auto block = candidate.lock();
    if (block && data >= block->own() && data + bytes <= block->own() + block->stride())
      return {block, static_cast<std::size_t>(data - block->own())};
  }
  return {};
}

}  // namespace phalanx
