// Which threads call a rank's operations, for whoever looks for deadlocks.
//
// A rank that sleeps can never go on only if no other thread of it may come and make the call that its peers wait for. So each
// rank publishes which thread calls its operations, or that there are several. torch runs the backward pass in threads of its
// own, whose calls count for themselves.
#pragma once

#include <atomic>

#include "layout.hpp"

namespace phalanx {

// Noted under the caller's lock (the GIL). Any thread may ask whether it is a caller.
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
  // Of this thread. Never used again, unlike what the system calls threads.
  static std::uint64_t own_serial() noexcept;
  void note_another() noexcept;

  Member& member_;
  std::atomic<std::uint64_t> forward_{0}, backward_{0};  // the last ones
};

// While it lives, a thread waits for asynchronous collectives of this rank. Of other threads than callers that says nothing.
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

  // It is not done yet, and no handler of a signal runs in the middle of the wait.
  void look_in_vain() noexcept {
    if (member_ != nullptr) member_->work_looks.fetch_add(1, std::memory_order_release);
  }

 private:
  Member* const member_;
};

}  // namespace phalanx
