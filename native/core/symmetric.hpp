// Memory that every rank of a group maps: tensors in it are reduced in place, without a copy in or out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "segment.hpp"

namespace phalanx {

// One allocation: a region per rank, all in one segment. Each rank has its own mapping, so one rank may drop it early.
class SymmetricBlock {
 public:
  SymmetricBlock(Segment segment, int rank, int num_ranks, std::uint64_t id)
      : segment_(std::move(segment)), rank_(rank), stride_(segment_.size() / std::size_t(num_ranks)), id_(id) {}

  std::byte* region(int rank) const noexcept { return segment_.data() + stride_ * std::size_t(rank); }
  std::byte* own() const noexcept { return region(rank_); }
  std::size_t stride() const noexcept { return stride_; }
  std::uint64_t id() const noexcept { return id_; }
  Segment& segment() noexcept { return segment_; }

 private:
  Segment segment_;
  int rank_;
  std::size_t stride_;
  std::uint64_t id_;  // running number of the allocation from 1, the same on every rank
};

// A place in symmetric memory. Ranks have the same one if the numbers of the allocation and the offsets are the same.
struct SymmetricPlace {
  std::shared_ptr<SymmetricBlock> block;
  std::uint64_t offset = 0;

  // Of the allocation; 0 for ordinary memory.
  std::uint64_t number() const noexcept { return block ? block->id() : 0; }
  std::byte* at(int rank) const noexcept { return block->region(rank) + offset; }
};

// The living allocations of one rank. Thread-safe.
class SymmetricMemory {
 public:
  void add(const std::shared_ptr<SymmetricBlock>& block);
  SymmetricPlace find(const std::byte* data, std::size_t bytes) const {
    return is_used_.load(std::memory_order_relaxed) ? search(data, bytes) : SymmetricPlace{};
  }

 private:
  SymmetricPlace search(const std::byte* data, std::size_t bytes) const;

  std::atomic<bool> is_used_{false};
  mutable std::mutex mutex_;  // guards blocks_
  std::vector<std::weak_ptr<SymmetricBlock>> blocks_;
};

}  // namespace phalanx
