// The order of events: a vector clock for each stream, each event and the host.
//
// Launches are numbered. A stream's clock holds, for every stream, the number of the last launch that it has waited
// for. The host launches all work, so everything that the host has waited for is before every later launch, of any
// thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

namespace phalanx::devices::races {

struct StreamKey {
  int device = 0;
  std::int64_t stream = 0;  // 0 is the default stream; negative numbers are streams of collectives
  bool operator==(const StreamKey&) const = default;
};

struct HashOfStreamKey {
  std::size_t operator()(const StreamKey& key) const {
    return std::hash<std::int64_t>()(key.stream * 1024 + key.device);
  }
};

class Clock {
 public:
  std::uint64_t of(std::size_t stream) const { return stream < launches_.size() ? launches_[stream] : 0; }

  void set(std::size_t stream, std::uint64_t launch) {
    if (stream >= launches_.size()) launches_.resize(stream + 1);
    launches_[stream] = launch;
  }

  void wait_for(const Clock& other) {
    if (other.launches_.size() > launches_.size()) launches_.resize(other.launches_.size());
    for (std::size_t at = 0; at < other.launches_.size(); ++at) launches_[at] = std::max(launches_[at], other.launches_[at]);
  }

 private:
  std::vector<std::uint64_t> launches_;
};

// Not for several threads at a time.
class Clocks {
 public:
  // The index of a stream in clocks.
  std::size_t index_of(StreamKey key) {
    const auto [found, is_new] = indices_.try_emplace(key, streams_.size());
    if (is_new) streams_.push_back({key, {}, 0});
    return found->second;
  }

  StreamKey key_of(std::size_t stream) const { return streams_[stream].key; }

  // The next launch of a stream.
  std::uint64_t launch(std::size_t stream) {
    of(stream).set(stream, ++num_launches_);
    return num_launches_;
  }

  // The clock of a stream, which includes all that the host has waited for.
  Clock& of(std::size_t stream) {
    Stream& wanted = streams_[stream];
    if (wanted.seen_of_host != host_changes_) {
      wanted.clock.wait_for(host_);
      wanted.seen_of_host = host_changes_;
    }
    return wanted.clock;
  }

  const Clock& host() const { return host_; }
  std::uint64_t host_changes() const { return host_changes_; }  // how often the host has waited

  void host_waits_for(const Clock& clock) {
    host_.wait_for(clock);
    ++host_changes_;
  }

  void host_waits_for_device(int device) {
    for (const Stream& stream : streams_)
      if (stream.key.device == device) host_.wait_for(stream.clock);
    ++host_changes_;
  }

  void record(const void* event, std::size_t stream) { events_[event] = of(stream); }
  void forget_event(const void* event) { events_.erase(event); }

  // Null when it was never recorded.
  const Clock* of_event(const void* event) const {
    const auto found = events_.find(event);
    return found == events_.end() ? nullptr : &found->second;
  }

 private:
  struct Stream {
    StreamKey key;
    Clock clock;
    std::uint64_t seen_of_host;
  };

  std::unordered_map<StreamKey, std::size_t, HashOfStreamKey> indices_;
  std::deque<Stream> streams_;  // references to clocks stay valid
  std::unordered_map<const void*, Clock> events_;
  Clock host_;
  std::uint64_t host_changes_ = 0;
  std::uint64_t num_launches_ = 0;
};

}  // namespace phalanx::devices::races
