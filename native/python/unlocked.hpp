// Letting go of the GIL for an operation: at once, or only when it has to wait.
//
// To let go and take it again costs as much as all the rest of a small operation whose peers are there already. So a small
// one keeps the GIL until the engine says that it waits. Ranks that are threads let go at once: their peers need the GIL to
// come.
#pragma once

#include <Python.h>

#include <atomic>

#include "../core/endpoint.hpp"

namespace phalanx::python {

// Whether a handler of a pending signal (Ctrl-C) has raised. Takes the GIL.
bool python_signal_arrived();

// How many threads of this process have waited for more than a second. When one of them begins to count, a function of Python
// is called.
class LongWaits {
 public:
  static int count() noexcept { return count_.load(); }
  static void set_listener(PyObject* listener);
  // In a child made by fork, nobody waits. What is still counted when it unwinds was counted in the parent.
  static void forget() noexcept {
    count_.store(0);
    epoch_.fetch_add(1);
  }

  ~LongWaits() {
    if (is_counted_ && counted_in_ == epoch_.load()) count_.fetch_sub(1);
  }
  // The thread still waits. False if the listener has raised. Takes the GIL when the wait has become long.
  bool go_on();

 private:
  static std::atomic<int> count_, epoch_;
  std::int64_t start_ns_ = 0;
  int counted_in_ = 0;
  bool is_counted_ = false;
};

class Unlocked final : public Waiter {
 public:
  enum class When { kAtOnce, kWhenWaiting };

  explicit Unlocked(When when) noexcept : outer_(Endpoint::waiter) {
    Endpoint::waiter = this;
    if (when == When::kAtOnce) begin_waiting();
  }
  ~Unlocked() {
    Endpoint::waiter = outer_;
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

  void begin_waiting() noexcept override {
    if (state_ == nullptr) state_ = PyEval_SaveThread();
  }
  bool is_interrupted() override { return python_signal_arrived() || !long_wait_.go_on(); }

 private:
  LongWaits long_wait_;
  Waiter* const outer_;  // a finalizer may call an operation in the middle of another
  PyThreadState* state_ = nullptr;
};

}  // namespace phalanx::python
