#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "collectives.hpp"

namespace phalanx {

void barrier(HostGroup& self, const Call& call) {
  self.operate(call, [&] {
    if (self.is_leader()) {
      self.send_cards(call);
      self.await_cards(call);
    }
    self.await_verdict(call);
  });
}

namespace {

// The root's leader has the data before it sends its card, so its host needs no more than the verdict.
void broadcast_bundled(HostGroup& self, const Call& call, std::byte* data, std::size_t bytes) {
  const HostMap& map = self.map();
  const int home = map.host_of(call.root);
  const bool is_home = map.host() == home;
  if (is_home && map.num_local() > 1)
    broadcast(self.inner(), self.byte_phase(call, Operation::kBroadcast, bytes, map.local_of(call.root)), data, bytes);
  if (self.is_leader()) {
    self.send_cards(call, [&](int) { return is_home ? Payload{data, bytes} : Payload{}; });
    self.await_cards(call, [&](int host) { return host == home ? bytes : 0; });
    if (!is_home && bytes != 0) std::memcpy(data, self.payload_of(home), bytes);
  }
  if (is_home) return self.await_verdict(call);
  broadcast(self.inner(), self.byte_phase(call, Operation::kBroadcast, bytes), data, bytes);
}

// From the root to the leader of the next host, from there to the next: no host sends the data more than once.
void broadcast_chain(HostGroup& self, const Call& call, std::byte* data, std::size_t bytes) {
  const HostMap& map = self.map();
  const int home = map.host_of(call.root), place = (map.host() - home + map.num_hosts()) % map.num_hosts();
  const int next = place + 1 == map.num_hosts() ? -1 : map.leader_of((map.host() + 1) % map.num_hosts());
  const int before = place <= 1 ? call.root : map.leader_of((map.host() - 1 + map.num_hosts()) % map.num_hosts());
  const auto chunk_bytes = [&](std::size_t at) { return std::min(kHostChunkBytes, bytes - at); };
  Transfers sends(self, call);
  if (place == 0) {
    for (std::size_t at = 0; self.rank() == call.root && at < bytes; at += kHostChunkBytes) sends.send(next, data + at, chunk_bytes(at));
    sends.start();
    if (map.num_local() > 1)
      broadcast(self.inner(), self.byte_phase(call, Operation::kBroadcast, bytes, map.local_of(call.root)), data, bytes);
    return sends.wait();
  }
  std::vector<std::unique_ptr<Transfers>> receives;
  for (std::size_t at = 0; self.is_leader() && at < bytes; at += kHostChunkBytes) {
    receives.push_back(std::make_unique<Transfers>(self, call));
    receives.back()->receive(before, data + at, chunk_bytes(at));
    receives.back()->start();
  }
  for (std::size_t at = 0, i = 0; at < bytes; at += kHostChunkBytes, ++i) {
    if (self.is_leader()) {
      receives[i]->wait();
      if (next >= 0) sends.send(next, data + at, chunk_bytes(at));
      sends.start();
    }
    if (map.num_local() > 1)
      broadcast(self.inner(), self.byte_phase(call, Operation::kBroadcast, chunk_bytes(at)), data + at, chunk_bytes(at));
  }
  sends.wait();
}

}  // namespace

void broadcast(HostGroup& self, const Call& call, std::byte* data, std::size_t bytes) {
  self.operate(call, [&] {
    if (is_bundled(call.operation, bytes, self.map().num_hosts())) return broadcast_bundled(self, call, data, bytes);
    if (self.is_leader()) {
      self.send_cards(call);
      self.await_cards(call);
    }
    self.await_verdict(call);
    broadcast_chain(self, call, data, bytes);
  });
}

}  // namespace phalanx
