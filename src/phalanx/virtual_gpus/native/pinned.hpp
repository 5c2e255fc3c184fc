// Pinned host memory. A freed block is not handed out again before the streams that copied from or to it are done.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <deque>
#include <map>
#include <mutex>

#include "races.hpp"
#include "streams.hpp"

namespace phalanx::devices {

// Threads may share it.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size_bytes) override {
    std::lock_guard guard(lock_);
    while (!held_back_.empty() && held_back_.front()->busy_until_s <= now_s()) held_back_.pop_front();
    auto memory = c10::GetCPUAllocator()->allocate(std::max<std::size_t>(size_bytes, 1));
    auto* start = static_cast<char*>(memory.get());
    auto* block = new PinnedBlock{std::move(memory), start, size_bytes};
    blocks_[start] = block;
    return {start, block, &PinnedAllocator::free, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t size_bytes) const override { std::memcpy(to, from, size_bytes); }

  bool contains(const void* pointer) {
    std::lock_guard guard(lock_);
    return find(pointer) != nullptr;
  }

  void note_use(const void* pointer, double until_s) {
    std::lock_guard guard(lock_);
    if (PinnedBlock* block = find(pointer)) block->busy_until_s = std::max(block->busy_until_s, until_s);
  }

 private:
  struct PinnedBlock {
    c10::DataPtr memory;
    const char* start;
    std::size_t size_bytes;
    double busy_until_s = 0;
  };

  static void free(void* context);

  PinnedBlock* find(const void* pointer) {
    auto after = blocks_.upper_bound(static_cast<const char*>(pointer));
    if (after == blocks_.begin()) return nullptr;
    PinnedBlock* block = std::prev(after)->second;
    const auto* end = block->start + std::max<std::size_t>(block->size_bytes, 1);
    return static_cast<const char*>(pointer) < end ? block : nullptr;
  }

  std::mutex lock_;  // guards everything below
  std::map<const char*, PinnedBlock*> blocks_;
  std::deque<std::unique_ptr<PinnedBlock>> held_back_;
};

inline PinnedAllocator& pinned = *new PinnedAllocator;

inline void PinnedAllocator::free(void* context) {
  std::unique_ptr<PinnedBlock> block(static_cast<PinnedBlock*>(context));
  races::freed(block->start);
  std::lock_guard guard(pinned.lock_);
  pinned.blocks_.erase(block->start);
  if (block->busy_until_s > now_s()) pinned.held_back_.push_back(std::move(block));
}

}  // namespace phalanx::devices
