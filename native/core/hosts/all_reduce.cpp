#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "collectives.hpp"
#include "host_reduction.hpp"

namespace phalanx {
namespace {

// The sum of this host's ranks goes to its leader's data. The data of the others stays as it is.
void combine(HostGroup& self, const Call& call, const HostReduction& how, std::byte* data, std::size_t count) {
  if (self.map().num_local() == 1 && !how.changes_one()) return;
  Call phase = self.phase(call, Operation::kReduce, count);
  phase.op = how.inside();
  reduce_to_root(self.inner(), phase, data);
}

void spread(HostGroup& self, const Call& call, std::byte* data, std::size_t bytes) {
  broadcast(self.inner(), self.byte_phase(call, Operation::kBroadcast, bytes), data, bytes);
}

void all_reduce_bundled(HostGroup& self, const Call& call, std::byte* data) {
  const HostMap& map = self.map();
  const HostReduction how(map, call);
  const std::size_t bytes = call.count * item_bytes(call.dtype);
  combine(self, call, how, data, call.count);
  if (self.is_leader()) {
    self.send_cards(call, [&](int) { return Payload{data, bytes}; });
    self.await_cards(call, [&](int) { return bytes; });
    std::vector<const std::byte*> sources(std::size_t(map.num_hosts()), data);
    for (const int host : map.other_hosts()) sources[std::size_t(host)] = self.payload_of(host);
    how.over_hosts(data, sources.data(), call.count);
  }
  spread(self, call, data, bytes);
}

// Chunks, several under way. Two hosts exchange a chunk as a whole. With more, each leader adds one part of it, and then the
// parts are exchanged, which sends fewer bytes.
class ChunkedAllReduce {
 public:
  ChunkedAllReduce(HostGroup& self, const Call& call, std::byte* data)
      : self_(self), call_(call), map_(self.map()), how_(map_, call), item_(item_bytes(call.dtype)), data_(data),
        chunk_(kHostChunkBytes / item_), steps_((call.count + chunk_ - 1) / chunk_), is_whole_(map_.num_hosts() == 2),
        parts_(is_whole_ ? 1 : std::size_t(map_.num_hosts())), given_(steps_), results_(steps_) {}

  void run() {
    if (self_.is_leader()) self_.send_cards(call_);
    combine_chunk(0);
    if (self_.is_leader()) self_.await_cards(call_);
    self_.await_verdict(call_);
    constexpr std::size_t kLag = kHostChunks - 1;
    for (std::size_t step = 0; step < steps_ + kLag + 1; ++step) {
      if (step != 0 && step < steps_) combine_chunk(step);
      if (self_.is_leader() && step < steps_) give(step);
      if (self_.is_leader() && step >= kLag && step - kLag < steps_) add(step - kLag);
      const std::size_t lag = is_whole_ ? kLag : kLag + 1;
      if (step >= lag && step - lag < steps_) finish(step - lag);
    }
  }

 private:
  std::size_t count_of(std::size_t step) const { return std::min(chunk_, call_.count - step * chunk_); }
  std::byte* chunk(std::size_t step) const { return data_ + step * chunk_ * item_; }
  std::size_t part_begin(std::size_t step, int host) const {
    return is_whole_ ? 0 : count_of(step) * std::size_t(host) / parts_;
  }
  std::size_t part_count(std::size_t step, int host) const {
    return is_whole_ ? count_of(step) : part_begin(step, host + 1) - part_begin(step, host);
  }
  std::byte* part(std::size_t step, int host) const { return chunk(step) + part_begin(step, host) * item_; }
  std::byte* received(std::size_t step, int host) const {
    const std::size_t part_bytes = (chunk_ / parts_ + 1) * item_, hosts = std::size_t(map_.num_hosts());
    return self_.room(0, kHostChunks * hosts * part_bytes) + (step % kHostChunks * hosts + std::size_t(host)) * part_bytes;
  }

  void combine_chunk(std::size_t step) { combine(self_, call_, how_, chunk(step), count_of(step)); }

  void give(std::size_t step) {
    given_[step] = std::make_unique<Transfers>(self_, call_);
    for (const int host : map_.other_hosts()) {
      given_[step]->receive(map_.leader_of(host), received(step, host), part_count(step, map_.host()) * item_);
      given_[step]->send(map_.leader_of(host), part(step, host), part_count(step, host) * item_);
    }
    given_[step]->start();
  }

  void add(std::size_t step) {
    given_[step]->wait();
    given_[step].reset();
    std::byte* mine = part(step, map_.host());
    std::vector<const std::byte*> sources(std::size_t(map_.num_hosts()), mine);
    for (const int host : map_.other_hosts()) sources[std::size_t(host)] = received(step, host);
    how_.over_hosts(mine, sources.data(), part_count(step, map_.host()));
    if (is_whole_) return;
    results_[step] = std::make_unique<Transfers>(self_, call_);
    for (const int host : map_.other_hosts()) {
      results_[step]->receive(map_.leader_of(host), part(step, host), part_count(step, host) * item_);
      results_[step]->send(map_.leader_of(host), mine, part_count(step, map_.host()) * item_);
    }
    results_[step]->start();
  }

  void finish(std::size_t step) {
    if (results_[step]) results_[step]->wait();
    results_[step].reset();
    if (map_.num_local() > 1) spread(self_, call_, chunk(step), count_of(step) * item_);
  }

  HostGroup& self_;
  const Call& call_;
  const HostMap& map_;
  const HostReduction how_;
  const std::size_t item_;
  std::byte* const data_;
  const std::size_t chunk_, steps_;
  const bool is_whole_;
  const std::size_t parts_;
  std::vector<std::unique_ptr<Transfers>> given_, results_;
};

// The data of leaders that are not the root must stay as it was, so they add in memory of their own.
void combine_apart(HostGroup& self, const Call& call, const HostReduction& how, const std::byte* data, std::byte* sum,
                   std::size_t count) {
  std::memcpy(sum, data, count * item_bytes(call.dtype));
  combine(self, call, how, sum, count);
}

void reduce_bundled(HostGroup& self, const Call& call, std::byte* data) {
  const HostMap& map = self.map();
  const HostReduction how(map, call);
  const std::size_t bytes = call.count * item_bytes(call.dtype);
  const int home = map.host_of(call.root);
  std::byte* sum = self.room(1, bytes);
  combine_apart(self, call, how, data, sum, call.count);
  if (self.is_leader()) {
    self.send_cards(call, [&](int host) { return host == home ? Payload{sum, bytes} : Payload{}; });
    self.await_cards(call, [&](int) { return map.host() == home ? bytes : 0; });
  }
  if (map.host() != home) return self.await_verdict(call);
  if (self.is_leader()) {
    std::vector<const std::byte*> sources(std::size_t(map.num_hosts()), sum);
    for (const int host : map.other_hosts()) sources[std::size_t(host)] = self.payload_of(host);
    how.over_hosts(sum, sources.data(), call.count);
  }
  spread(self, call, sum, bytes);  // only the root needs it, but it is small
  if (self.rank() == call.root && bytes != 0) std::memcpy(data, sum, bytes);
}

// Each leader sends its host's sum to the root, in chunks.
void reduce_chunked(HostGroup& self, const Call& call, std::byte* data) {
  const HostMap& map = self.map();
  const HostReduction how(map, call);
  const std::size_t item = item_bytes(call.dtype), chunk = kHostChunkBytes / item;
  const int home = map.host_of(call.root);
  const bool is_root = self.rank() == call.root, is_home = map.host() == home;
  const std::size_t hosts = std::size_t(map.num_hosts());
  std::vector<std::unique_ptr<Transfers>> under_way;
  const auto received = [&](std::size_t step, int host) {
    return self.room(0, kHostChunks * hosts * kHostChunkBytes) + (step % kHostChunks * hosts + std::size_t(host)) * kHostChunkBytes;
  };
  const auto add = [&](std::size_t step) {
    under_way[step]->wait();
    if (!is_root) return;
    std::byte* mine = data + step * chunk * item;
    std::vector<const std::byte*> sources(hosts, mine);
    for (const int host : map.other_hosts()) sources[std::size_t(host)] = received(step, host);
    how.over_hosts(mine, sources.data(), std::min(chunk, call.count - step * chunk));
  };
  for (std::size_t at = 0, step = 0; at < call.count; at += chunk, ++step) {
    const std::size_t count = std::min(chunk, call.count - at);
    if (step >= kHostChunks) add(step - kHostChunks);  // its memory is needed again
    under_way.push_back(std::make_unique<Transfers>(self, call));
    for (const int host : is_root ? map.other_hosts() : std::vector<int>{})
      under_way[step]->receive(map.leader_of(host), received(step, host), count * item);
    under_way[step]->start();
    if (is_home) {
      if (map.num_local() > 1 || how.changes_one()) {
        Call phase = self.phase(call, Operation::kReduce, count, map.local_of(call.root));
        phase.op = how.inside();
        reduce_to_root(self.inner(), phase, data + at * item);
      }
    } else {
      std::byte* sum = self.is_leader() ? self.room(1, kHostChunks * kHostChunkBytes) + step % kHostChunks * kHostChunkBytes : data + at * item;
      self.is_leader() ? combine_apart(self, call, how, data + at * item, sum, count) : combine(self, call, how, sum, count);
      if (self.is_leader()) under_way[step]->send(call.root, sum, count * item);
      under_way[step]->start();
    }
  }
  for (std::size_t step = under_way.size() < kHostChunks ? 0 : under_way.size() - kHostChunks; step < under_way.size(); ++step) add(step);
}

}  // namespace

void all_reduce(HostGroup& self, const Call& call, std::byte* data, const SymmetricPlace&) {
  self.operate(call, [&] {
    const std::size_t bytes = call.count * item_bytes(call.dtype);
    if (is_bundled(call.operation, bytes, self.map().num_hosts())) return all_reduce_bundled(self, call, data);
    ChunkedAllReduce(self, call, data).run();
  });
}

void reduce_to_root(HostGroup& self, const Call& call, std::byte* data) {
  self.operate(call, [&] {
    const std::size_t bytes = call.count * item_bytes(call.dtype);
    if (is_bundled(call.operation, bytes, self.map().num_hosts())) return reduce_bundled(self, call, data);
    if (self.is_leader()) {
      self.send_cards(call);
      self.await_cards(call);
    }
    self.await_verdict(call);
    reduce_chunked(self, call, data);
  });
}

}  // namespace phalanx
