// The memory of devices: host memory, counted against a capacity.
//
// A device's storage holds a Block as the context of its data pointer; the block holds a storage of the CPU over the same
// memory. Operations run on that one (host_view.hpp), so nothing is copied and nothing has to be wrapped again.
#pragma once

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>

#include <mutex>

#include "autograd_threads.hpp"
#include "driver_memory.hpp"
#include "races.hpp"
#include "streams.hpp"

namespace phalanx::devices {

using c10::DataPtr;
using c10::StorageImpl;
using StoragePtr = c10::intrusive_ptr<StorageImpl>;
using Stats = c10::CachingDeviceAllocator::DeviceStats;

constexpr std::size_t kRounding = 512, kSmallBytes = 1 << 20;

inline std::size_t rounded(std::size_t size_bytes) { return (size_bytes + kRounding - 1) / kRounding * kRounding; }

struct Block {
  DeviceIndex device;
  StreamId stream;  // the stream that was current
  std::size_t size_bytes;
  StoragePtr host;
  const void* start;  // of its memory; an operation may give the host's storage other memory
  Block *previous = nullptr, *next = nullptr;  // among the device's
};

// Threads may share it.
class DeviceMemory {
 public:
  // Throws torch's OutOfMemoryError if the device is full.
  void check_room(std::size_t size_bytes, DeviceIndex device) {
    std::lock_guard guard(lock_);
    require_room(size_bytes, device);
  }

  void add(Block* block) {
    std::lock_guard guard(lock_);
    require_room(block->size_bytes, block->device);
    count(*block, [](auto& stat, std::size_t amount) { stat.increase(amount); });
    stats_.num_device_alloc++;
    block->next = blocks_;
    if (blocks_ != nullptr) blocks_->previous = block;
    blocks_ = block;
  }

  void remove(Block* block) {
    std::lock_guard guard(lock_);
    count(*block, [](auto& stat, std::size_t amount) { stat.decrease(amount); });
    stats_.num_device_free++;
    (block->previous != nullptr ? block->previous->next : blocks_) = block->next;
    if (block->next != nullptr) block->next->previous = block->previous;
  }

  Stats stats() {
    std::lock_guard guard(lock_);
    return stats_;
  }

  // {free, total}
  std::pair<std::size_t, std::size_t> room() {
    std::lock_guard guard(lock_);
    return {static_cast<std::size_t>(free_bytes()), static_cast<std::size_t>(capacity_)};
  }

  void set_capacity(std::int64_t size_bytes) {
    std::lock_guard guard(lock_);
    capacity_ = limit_ = size_bytes;
  }

  // How much of it this process may use.
  void set_limit(std::int64_t size_bytes) {
    std::lock_guard guard(lock_);
    limit_ = std::min(size_bytes, capacity_);
  }

  void note_synchronized() {
    std::lock_guard guard(lock_);
    stats_.num_sync_all_streams++;
  }

  template <typename Change>
  void change_stats(Change change) {
    std::lock_guard guard(lock_);
    for (auto* kind : {&stats_.allocation, &stats_.segment, &stats_.active, &stats_.inactive_split, &stats_.allocated_bytes,
                       &stats_.reserved_bytes, &stats_.active_bytes, &stats_.inactive_split_bytes, &stats_.requested_bytes})
      for (auto& stat : *kind) change(stat);
  }

  template <typename Visit>
  void each_block(Visit visit) {
    std::lock_guard guard(lock_);
    for (const Block* block = blocks_; block != nullptr; block = block->next) visit(*block);
  }

 private:
  std::int64_t allocated() const { return stats_.allocated_bytes[0].current; }
  std::int64_t free_bytes() const { return std::max<std::int64_t>(capacity_ - allocated(), 0); }

  void require_room(std::size_t size_bytes, DeviceIndex device) {
    if (size_bytes <= static_cast<std::size_t>(limit_) &&
        allocated() + static_cast<std::int64_t>(rounded(size_bytes)) <= limit_)
      return;
    stats_.num_ooms++;
    const std::string allowed = limit_ < capacity_ ? "; " + in_words(limit_) + " allowed" : "";
    TORCH_CHECK_WITH(OutOfMemoryError, false, face.is_cuda() ? "CUDA out of memory" : "virtual device out of memory",
                     ". Tried to allocate ", in_words(size_bytes), ". GPU ", static_cast<int>(device),
                     " (virtual) has a total capacity of ", in_words(capacity_), " of which ", in_words(free_bytes()), " is free",
                     allowed, ". Of the allocated memory ", in_words(allocated()), " is allocated by PyTorch. Give "
                     "virtual_devices more memory if the real device has more.");
  }

  static std::string in_words(std::uint64_t size_bytes) {
    static constexpr const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double size = static_cast<double>(size_bytes);
    std::size_t unit = 0;
    for (; size >= 1024 && unit + 1 < std::size(units); ++unit) size /= 1024;
    char text[64];
    std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", size, units[unit]);
    return text;
  }

  template <typename Change>
  void count(const Block& block, Change change) {
    const std::size_t whole = rounded(block.size_bytes);
    for (const int pool : {0, block.size_bytes < kSmallBytes ? 1 : 2}) {
      change(stats_.allocation[pool], 1);
      change(stats_.active[pool], 1);
      change(stats_.segment[pool], 1);
      change(stats_.allocated_bytes[pool], whole);
      change(stats_.active_bytes[pool], whole);
      change(stats_.reserved_bytes[pool], whole);
      change(stats_.requested_bytes[pool], block.size_bytes);
    }
  }

  std::mutex lock_;  // guards everything below
  Stats stats_;
  std::int64_t capacity_ = 0, limit_ = 0;
  Block* blocks_ = nullptr;
};

inline std::array<DeviceMemory, kMostDevices>& memory = *new std::array<DeviceMemory, kMostDevices>;

inline void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  if (block->size_bytes > 0) {
    races::freed(block->start);
    memory[block->device].remove(block);
  }
  delete block;
}

inline void start_autograd_threads_once() {
  static std::once_flag once;
  std::call_once(once, &start_autograd_threads);
}

// Count host memory as memory of a device until the returned pointer is released.
inline DataPtr own(DeviceIndex device, StoragePtr host) {
  start_autograd_threads_once();
  const std::size_t size_bytes = host->nbytes();
  void* data = host->mutable_data();
  auto block = std::make_unique<Block>(Block{device, current_streams[device], size_bytes, std::move(host), data});
  if (size_bytes > 0) {
    memory[device].add(block.get());
    races::allocated(data, size_bytes, {device, block->stream});
  }
  return DataPtr(data, block.release(), &free_block, face.device(device));
}

inline StoragePtr host_storage(std::size_t size_bytes) {
  auto* allocator = c10::GetCPUAllocator();
  DataPtr data = size_bytes > 0 ? allocator->allocate(size_bytes) : DataPtr(nullptr, c10::kCPU);
  return c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), size_bytes, std::move(data), allocator, true);
}

// The CPU's allocator during operations of a device: their memory must fit into the device. Other callers have no
// limit.
inline thread_local DeviceIndex allocating_for = -1;

class AllocatingFor {
 public:
  explicit AllocatingFor(DeviceIndex device) : before_(allocating_for) { allocating_for = device; }
  ~AllocatingFor() { allocating_for = before_; }
  AllocatingFor(const AllocatingFor&) = delete;
  AllocatingFor& operator=(const AllocatingFor&) = delete;

 private:
  DeviceIndex before_;
};

class CheckedHostAllocator final : public c10::Allocator {
 public:
  explicit CheckedHostAllocator(c10::Allocator& inner) : inner_(inner) {}

  DataPtr allocate(std::size_t size_bytes) override {
    if (allocating_for < 0) return inner_.allocate(size_bytes);
    memory[allocating_for].check_room(size_bytes, allocating_for);
    if (driver_memory != nullptr && size_bytes > 0) {
      void* block = driver_memory->allocate(allocating_for, size_bytes);
      return DataPtr(block, block, [](void* given) { driver_memory->release(given); }, c10::kCPU);
    }
    try {
      return inner_.allocate(size_bytes);
    } catch (const c10::Error& error) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "the machine has no memory for virtual device ",
                       static_cast<int>(allocating_for), ": ", error.what_without_backtrace());
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t size_bytes) const override { std::memcpy(to, from, size_bytes); }

 private:
  c10::Allocator& inner_;
};

inline void check_host_allocations() {
  c10::SetCPUAllocator(new CheckedHostAllocator(*c10::GetCPUAllocator()), 10);
}

inline DataPtr allocate_on(DeviceIndex device, std::size_t size_bytes) {
  const AllocatingFor guard(device);
  return own(device, host_storage(size_bytes));
}

// The block behind a storage; null for memory that was not allocated here.
inline Block* block_of(const StorageImpl& storage) {
  const DataPtr& data = storage.data_ptr();
  return data.get_deleter() == &free_block ? static_cast<Block*>(data.get_context()) : nullptr;
}

// The contents that fit are copied, on the current stream.
inline void resize_storage(StorageImpl& storage, std::size_t size_bytes) {
  const DeviceIndex device = storage.device().index();
  const races::Operation one_line;
  DataPtr data = allocate_on(device, size_bytes);
  if (const std::size_t kept = std::min(size_bytes, storage.nbytes())) {
    const auto access_of = [&](const void* start, bool is_write) {
      const auto lo = reinterpret_cast<std::uintptr_t>(start);
      return races::Access{start, lo, lo + kept, is_write};
    };
    races::launch({device, current_streams[device]}, std::array{access_of(storage.data(), false), access_of(data.get(), true)},
                  "aten::resize_");
    std::memcpy(data.get(), storage.data(), kept);
  }
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(size_bytes);
}

struct DeviceAllocator final : c10::DeviceAllocator {
  DataPtr allocate(std::size_t size_bytes) override { return allocate_on(current_device, size_bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t size_bytes) const override { std::memcpy(to, from, size_bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {
    for (int device = 0; device < face.count; ++device) memory[device].note_synchronized();
    races::emptied_cache();
  }
  void recordStream(const DataPtr& data, Stream stream) override {
    races::record_stream(data.get(), {stream.device_index(), stream.id()});
  }
  Stats getDeviceStats(DeviceIndex device) override { return memory[checked_index(device)].stats(); }
  void resetAccumulatedStats(DeviceIndex device) override {
    memory[checked_index(device)].change_stats([](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(DeviceIndex device) override {
    memory[checked_index(device)].change_stats([](auto& stat) { stat.reset_peak(); });
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(DeviceIndex device) override {
    return memory[checked_index(device)].room();
  }
};

inline DeviceAllocator& allocator = *new DeviceAllocator;

}  // namespace phalanx::devices
