// Letting go of the GIL for an operation: at once, or only when it has to wait.
//
// To let go and take it again costs as much as all the rest of a small operation whose peers are there already. So a small
// one keeps the GIL until the engine says that it waits. Ranks that are threads let go at once: their peers need the GIL to
// come.
#pragma once

#include <Python.h>

#include "../core/endpoint.hpp"

namespace phalanx::python {

// Whether a handler of a pending signal (Ctrl-C) has raised. Takes the GIL.
bool python_signal_arrived();

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
  bool is_interrupted() override { return python_signal_arrived(); }

 private:
  Waiter* const outer_;  // a finalizer may call an operation in the middle of another
  PyThreadState* state_ = nullptr;
};

}  // namespace phalanx::python
