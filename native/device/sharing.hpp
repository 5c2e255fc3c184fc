// Device memory between processes: what a rank shows of its own, and what it has opened of others'.
//
// A rank publishes a card with each operation: which pieces of which allocations it gives or takes. Whoever needs them
// opens an allocation once and keeps it open; the owner says on a later card that it has freed it.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpu.hpp"

namespace phalanx::device {

// Device memory of this process, in one piece.
struct Region {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

enum class Sharing : std::uint32_t {
  kPointers,     // this rank is a thread, and takes the others for threads of the same process
  kHandles,
  kNotPossible,  // this rank can't show its memory, or can't open that of others
};

struct CardHeader {
  std::uint64_t gpu;      // tells GPUs apart, alike in all processes
  std::uint64_t process;  // tells processes apart
  std::uint64_t ready;    // the event after which the memory is ready; 0: it is
  std::uint64_t retired;  // an allocation that is no more, or 0
  std::uint32_t num_buffers;
  std::uint32_t num_regions;
  Sharing sharing;
  std::uint32_t form;
  std::int32_t ordinal;   // of the GPU in that process
  std::uint32_t unused;
};
struct CardBuffer {
  std::uint64_t id;  // no other allocation of the process ever has it
  std::uint64_t base;
  IpcHandle handle;
};
struct CardRegion {
  std::uint64_t offset;  // in its buffer; with plain pointers the address
  std::uint64_t bytes;
  std::uint64_t buffer;
};

// What a rank publishes. Plain memory, so that it can be copied into a segment or a message.
class Card {
 public:
  CardHeader header{};
  std::vector<CardBuffer> buffers;
  std::vector<CardRegion> regions;

  std::size_t bytes() const noexcept {
    return sizeof header + buffers.size() * sizeof(CardBuffer) + regions.size() * sizeof(CardRegion);
  }
  std::vector<std::byte> pack() const;
  static Card unpack(const std::byte* data, std::size_t bytes);
};

// This rank's allocations that others may have open. One thread at a time.
class Exports {
 public:
  // Adds regions to a card. False when memory can't be shown to other processes; why() says why then.
  bool add(Card& card, std::span<const Region> regions);
  const std::string& why() const noexcept { return why_; }
  // An allocation that was shown and is no more; 0 when there is none to tell of.
  std::uint64_t take_retired();

 private:
  struct Allocation {
    std::uint64_t base;
    std::size_t bytes;
    IpcHandle handle;
  };
  const Allocation* find(std::uint64_t id, CudaPointer address);
  void look_for_freed();

  std::map<std::uint64_t, Allocation> allocations_;  // by id
  std::uint64_t last_looked_at_ = 0;                 // an id
  std::vector<std::uint64_t> retired_;
  std::string why_;
};

// Others' allocations that are open here. One thread at a time; needs Current.
class Imports {
 public:
  explicit Imports(Gpu& gpu) : gpu_(gpu) {}
  ~Imports() { close_all(); }
  Imports(const Imports&) = delete;

  // Throws DeviceProblem: it can't be opened.
  CudaPointer open(int rank, const CardBuffer& buffer);
  void forget(int rank, std::uint64_t id);
  // Close those that were not used for longest, between operations.
  void trim() noexcept;
  void close_all() noexcept;
  std::size_t size() const noexcept { return open_.size(); }

 private:
  using Key = std::pair<int, std::uint64_t>;
  struct Mapping {
    CudaPointer address;
    std::list<Key>::iterator use;
  };
  void close(std::map<Key, Mapping>::iterator mapping) noexcept;

  Gpu& gpu_;
  std::map<Key, Mapping> open_;
  std::list<Key> uses_;  // the last used first
};

}  // namespace phalanx::device
