// Another process that this one watches: one descriptor for it, however many groups the two share.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>

namespace phalanx {

// Thread-safe. The descriptor is closed when the last group lets go of it.
class WatchedProcess {
 public:
  enum class Found { kWatched, kGone, kUnknown };
  struct Answer {
    Found found;
    std::shared_ptr<const WatchedProcess> process;  // when it is watched
  };
  // Finds the process that had this id and, unless `start_ticks` is 0, started then. kUnknown: no descriptor is free, ask again
  // later.
  static Answer find(int pid, std::uint64_t start_ticks);

  ~WatchedProcess();
  WatchedProcess(const WatchedProcess&) = delete;

  // Becomes readable when the process ends.
  int descriptor() const noexcept { return descriptor_; }

 private:
  struct Key {
    int pid;
    std::uint64_t start_ticks;
    auto operator<=>(const Key&) const = default;
  };
  struct Registry;
  static Registry& registry();
  WatchedProcess(const Key& key, int descriptor) noexcept : key_(key), descriptor_(descriptor) {}

  const Key key_;
  const int descriptor_;
};

}  // namespace phalanx
