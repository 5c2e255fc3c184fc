#include "watcher.hpp"

#include <chrono>

namespace phalanx {
namespace {

constexpr auto kSlice = std::chrono::milliseconds(50);
constexpr int kIdleSlices = 40;  // the thread goes on looking for so long after a wait: to wake it costs more

}  // namespace

void Watcher::begin() {
  const std::lock_guard lock(mutex_);
  ++num_waiting_;
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  if (is_idle_) condition_.notify_one();
}

void Watcher::end() {
  const std::lock_guard lock(mutex_);
  --num_waiting_;
}

void Watcher::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  condition_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watcher::forget() noexcept {
  if (thread_.joinable()) thread_.detach();
}

void Watcher::work() {
  std::unique_lock lock(mutex_);
  for (int idle = 0; !is_closing_;) {
    is_idle_ = idle >= kIdleSlices;
    if (is_idle_) {
      condition_.wait(lock, [this] { return is_closing_ || num_waiting_ > 0; });
      idle = 0;
    }
    is_idle_ = false;
    condition_.wait_for(lock, kSlice, [this] { return is_closing_; });
    idle = num_waiting_ > 0 ? 0 : idle + 1;
    if (num_waiting_ == 0 || is_closing_) continue;
    lock.unlock();
    look_();
    lock.lock();
  }
}

}  // namespace phalanx
