// Which threads call a rank's operations, for the search for deadlocks.
//
// A rank that sleeps can never go on only if none of its other threads may still make the call that its peers wait for. So
// each rank publishes which thread calls its operations, or that there are several. torch runs the backward pass in threads of
// its own; their calls count apart.
#pragma once

#include <atomic>

#include "layout.hpp"

namespace phalanx {

// note() needs the caller's lock (the GIL). Any thread may ask whether it is a caller.
class Callers {
 public:
  explicit Callers(Member& member) : member_(member) {}

  // This thread calls an operation.
  void note() noexcept {
    if (!is_one()) [[unlikely]]
      note_another();
  }
  bool is_one() const noexcept {
    const std::uint64_t self = own_serial();
    return self == forward_.load(std::memory_order_relaxed) || self == backward_.load(std::memory_order_relaxed);
  }

 private:
  // The number of this thread. It is never reused, unlike the kernel's thread ids.
  static std::uint64_t own_serial() noexcept;
  void note_another() noexcept;

  Member& member_;
  std::atomic<std::uint64_t> forward_{0}, backward_{0};  // the last threads noted
};

// While it lives, this thread waits for asynchronous collectives of its rank. In a thread that is not a caller, it does nothing.
class AwaitsWork {
 public:
  AwaitsWork(Member& member, const Callers& callers) : member_(callers.is_one() ? &member : nullptr) {
    if (member_ != nullptr) member_->awaits_work.fetch_add(1, std::memory_order_relaxed);
  }
  ~AwaitsWork() {
    if (member_ != nullptr) member_->awaits_work.fetch_sub(1, std::memory_order_relaxed);
  }
  AwaitsWork(const AwaitsWork&) = delete;
  AwaitsWork& operator=(const AwaitsWork&) = delete;

  // The collective is not done yet, and no handler of a signal runs in the middle of the wait.
  void look_in_vain() noexcept {
    if (member_ != nullptr) member_->work_looks.fetch_add(1, std::memory_order_release);
  }

 private:
  Member* const member_;
};

}  // namespace phalanx
