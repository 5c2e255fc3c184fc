// Streams and events in virtual time.
//
// Operations run when they are called, in program order, so the data is always there. A stream only has a time until
// which it is busy: a sleep on the stream adds to it, waiting for an event may raise it, and synchronizing sleeps until
// then.
#pragma once

#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "face.hpp"

namespace phalanx::devices {

using c10::Stream;
using c10::StreamId;

// As in CUDA, new streams come from pools of 32 for each priority, so the 33rd is the first one again.
constexpr StreamId kDefaultStream = 0;
constexpr int kPoolSize = 32;
constexpr int kPriorities = 4;  // 0, -1, -2, -3; a smaller number comes first
constexpr int kMostStreams = 1 + kPoolSize * kPriorities;

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void sleep_until(double time_s) {
  const double left_s = time_s - now_s();
  if (left_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left_s));
}

struct Event {
  double at_s = 0;
  DeviceIndex device = -1;
};

// Threads may share it.
class Streams {
 public:
  StreamId take(DeviceIndex device, int priority) {
    const int pool = std::min(std::max(-priority, 0), kPriorities - 1);
    const unsigned number = next_[device][pool].fetch_add(1, std::memory_order_relaxed) % kPoolSize;
    return 1 + pool * kPoolSize + number;
  }

  static bool exists(StreamId stream) { return stream >= 0 && stream < kMostStreams; }
  static int priority(StreamId stream) { return stream == kDefaultStream ? 0 : -static_cast<int>((stream - 1) / kPoolSize); }

  double busy_until(DeviceIndex device, StreamId stream) {
    std::lock_guard guard(lock_);
    return busy_until_[device][stream];
  }

  double device_busy_until(DeviceIndex device) {
    std::lock_guard guard(lock_);
    return *std::max_element(busy_until_[device].begin(), busy_until_[device].end());
  }

  void raise(DeviceIndex device, StreamId stream, double until_s) {
    std::lock_guard guard(lock_);
    double& busy = busy_until_[device][stream];
    busy = std::max(busy, until_s);
  }

  void push(DeviceIndex device, StreamId stream, double seconds) {
    std::lock_guard guard(lock_);
    double& busy = busy_until_[device][stream];
    busy = std::max(busy, now_s()) + seconds;
  }

  // Both streams continue when both have come to this point; returns that time.
  double join(DeviceIndex a, StreamId stream_a, DeviceIndex b, StreamId stream_b) {
    std::lock_guard guard(lock_);
    double &first = busy_until_[a][stream_a], &second = busy_until_[b][stream_b];
    return first = second = std::max(first, second);
  }

  void record(Event& event, DeviceIndex device, StreamId stream) {
    std::lock_guard guard(lock_);
    event.device = device;
    event.at_s = std::max(now_s(), busy_until_[device][stream]);
  }

  double time_of(const Event& event) {
    std::lock_guard guard(lock_);
    return event.at_s;
  }

 private:
  std::mutex lock_;  // guards busy_until_ and what events hold
  std::array<std::array<double, kMostStreams>, kMostDevices> busy_until_{};
  std::array<std::array<std::atomic<unsigned>, kPriorities>, kMostDevices> next_{};
};

// Never destroyed: threads of torch may still ask at the end of the process.
inline Streams& streams = *new Streams;
inline thread_local std::array<StreamId, kMostDevices> current_streams{};

inline void synchronize_stream(DeviceIndex device, StreamId stream) { sleep_until(streams.busy_until(device, stream)); }

}  // namespace phalanx::devices
