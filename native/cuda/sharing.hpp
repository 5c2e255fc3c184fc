// Device memory between processes: what a rank shares of its own, and what it has opened of its peers.
//
// A rank that needs an allocation of a peer opens it once and keeps it open. The owner says in a later manifest that it has freed it.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "manifest.hpp"
#include "gpu.hpp"

namespace phalanx::cuda {

// Device memory of this process, in one piece.
struct Region {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// This rank's allocations that others may have open. One thread at a time.
class Exports {
 public:
  struct Allocation {
    ManifestBuffer buffer;
    std::size_t bytes;
    IpcHandle handle;
  };
  // The one that a region lies in; good until the next call. Null when it can't be shown to other processes; why() says why
  // then. Throws DeviceProblem: there is none.
  const Allocation* show(const Region& region);
  // Adds a region to a manifest. False as above.
  bool add(Manifest& manifest, const Region& region);
  const std::string& why() const noexcept { return why_; }
  // Call it once for each operation, or more often.
  void look_for_freed();
  // An allocation that was shown and is no more; 0 when there is none to tell of.
  std::uint64_t retired() const noexcept { return retired_.empty() ? 0 : retired_.back(); }
  // The same, and it has been told.
  std::uint64_t take_retired();

 private:
  const Allocation* last_on(const Manifest& manifest, const Region& region) const;

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
  CudaPointer open(int rank, const ManifestBuffer& buffer, const IpcHandle& handle);
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

}  // namespace phalanx::cuda
