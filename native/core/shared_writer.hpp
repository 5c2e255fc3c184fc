// Writing bytes that another core will read next.
//
// There are two ways. Plain stores leave the lines in this core's cache, but must first fetch them from the core that read them
// last. That is the fastest way if the two cores share a cache, and if the buffers are so large that lines leave the smaller
// caches. If the cores share no cache, it can be several times slower than memory itself. Streaming stores bypass the caches. How
// far apart the cores are depends on where the system runs the ranks, and changes when it moves them; what streaming costs
// depends on the processor. So SharedWriter measures both while it writes, believes the result for a while, and measures again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels.hpp"
#include "platform.hpp"

namespace phalanx {

// About the size of a cache that only one core uses.
inline constexpr std::size_t kTurningBytes = 1024 * 1024;

// Whether the lines to overwrite have left the cache of the core that read them.
enum class Place {
  kHot,      // they have not: there are few places, soon written again
  kTurning,  // they have: there are more places than such a cache can hold, and they take turns
};

// One thread at a time.
class SharedWriter {
 public:
  SharedWriter(bool is_crowded, Place place) noexcept
      : is_crowded_(is_crowded), is_known_slow_(!is_crowded && place == Place::kHot && is_slow_between_caches()) {}

  void write(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept {
    if (bytes == 0) return;
    if (bytes < (is_crowded_ ? kManyBytes : kTellingBytes)) {
      std::memcpy(destination, source, bytes);
    } else if (is_known_slow_ && bytes >= kSlowBytes) {
      copy_streaming(destination, source, bytes);
    } else if (bytes < kManyBytes && state_ != State::kStreaming && ++num_untimed_ % kUntimed != 0) {
      std::memcpy(destination, source, bytes);
    } else {
      write_and_learn(destination, source, bytes);
    }
  }

 private:
  enum class State {
    kPlain,      // until many plain stores are slow
    kTrying,     // some streaming stores, to see whether they are quicker (for the reader they are, if that is known)
    kStreaming,  // for a while
    kResigned,   // plain for a while: streaming is no better
  };
  struct Rate {
    double bytes = 0, ns = 0;
    int num = 0;
    void add(std::size_t more_bytes, std::int64_t more_ns) noexcept {
      bytes += double(more_bytes), ns += double(more_ns), ++num;
    }
    double value() const noexcept { return bytes / std::max(ns, 1.0); }
  };
  static constexpr std::size_t kTellingBytes = 2 * 1024;  // a smaller write says nothing, and is fast in any case
  static constexpr std::size_t kSlowBytes = 4 * 1024;     // on some processors, known to be slow from here on
  static constexpr std::size_t kManyBytes = 8 * 1024;     // smaller writes are timed only now and then: the clock costs as much
  static constexpr std::uint32_t kUntimed = 16;
  static constexpr double kSlowRate = 4.5;  // bytes per nanosecond: 10 and more in a shared cache, 2 to 3 without
  static constexpr double kBetter = 1.1;    // times the other rate
  static constexpr int kEnough = 3;         // a single write may have been interrupted
  // A slow write counts two, a fast one takes one away: where ranks share cores, some peers are near and others far.
  static constexpr int kSlow = 2, kQuick = 1, kMany = kEnough * kSlow;
  static constexpr std::int64_t kShortestNs = 5'000'000, kLongestNs = 300'000'000;

  void write_and_learn(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept {
    const std::int64_t start = monotonic_ns();
    if ((state_ == State::kStreaming || state_ == State::kResigned) && start > until_ns_) {
      num_slow_ = state_ == State::kStreaming ? kMany - kSlow : 0;  // one more slow write confirms that the cores are still apart
      state_ = State::kPlain;
    }
    if (state_ == State::kStreaming) return copy_streaming(destination, source, bytes);
    if (state_ == State::kTrying) {
      copy_streaming(destination, source, bytes);
    } else {
      std::memcpy(destination, source, bytes);
    }
    learn(bytes, start, monotonic_ns());
  }
  void learn(std::size_t bytes, std::int64_t start, std::int64_t now) noexcept {
    if (state_ == State::kPlain) {
      if (double(bytes) >= kSlowRate * double(now - start)) {
        num_slow_ = std::max(0, num_slow_ - kQuick);
        if (num_slow_ == 0) plain_ = {}, believed_ns_ = kShortestNs;
        return;
      }
      plain_.add(bytes, now - start);
      if ((num_slow_ += kSlow) < kMany) return;
      if (is_slow_between_caches()) return believe(State::kStreaming, now + kLongestNs);
      state_ = State::kTrying, streaming_ = {};
    } else if (state_ == State::kTrying) {
      streaming_.add(bytes, now - start);
      if (streaming_.num < kEnough) return;
      const bool is_better = streaming_.value() > kBetter * plain_.value();
      believe(is_better ? State::kStreaming : State::kResigned, now + believed_ns_);
      believed_ns_ = std::min(2 * believed_ns_, kLongestNs);
    }
  }
  void believe(State state, std::int64_t until_ns) noexcept {
    state_ = state, until_ns_ = until_ns, plain_ = {};
  }

  const bool is_crowded_;
  const bool is_known_slow_;  // plain stores of kSlowBytes or more are slow: no need to measure
  std::uint32_t num_untimed_ = 0;
  State state_ = State::kPlain;
  int num_slow_ = 0;
  Rate plain_, streaming_;
  std::int64_t until_ns_ = 0;             // until when the last result is believed
  std::int64_t believed_ns_ = kShortestNs;  // for how long; doubled with each result
};

}  // namespace phalanx
