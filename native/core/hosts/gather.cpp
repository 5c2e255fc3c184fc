#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "collectives.hpp"

namespace phalanx {
namespace {

std::size_t total_of(const HostMap& map, int host, const std::size_t* bytes) {
  std::size_t total = 0;
  for (const int rank : map.ranks_of(host)) total += bytes[rank];
  return total;
}

std::size_t largest_row(const HostMap& map, const std::size_t* bytes) {
  std::size_t largest = 0;
  for (int host = 0; host < map.num_hosts(); ++host) largest = std::max(largest, total_of(map, host, bytes));
  return largest;
}

// The blocks of some ranks of a host, each given by one local rank, go to all ranks of this host. -1: this rank gives none.
void gather_locally(HostGroup& self, const Call& call, const std::byte* input, const std::vector<int>& ranks, std::byte* const* outputs,
                    const std::size_t* bytes) {
  std::vector<std::byte*> places;
  std::vector<std::size_t> sizes;
  std::uint64_t total = 0;
  for (int local = 0; local < self.map().num_local(); ++local) {
    const bool has_block = std::size_t(local) < ranks.size();
    places.push_back(has_block ? outputs[ranks[std::size_t(local)]] : nullptr);
    sizes.push_back(has_block ? bytes[ranks[std::size_t(local)]] : 0);
    total += sizes.back();
  }
  all_gather(self.inner(), self.byte_phase(call, Operation::kAllGather, total), input, places.data(), sizes.data());
}

// Rows of one host after another, without gaps.
void pack_row(const HostMap& map, int host, std::byte* const* blocks, const std::size_t* bytes, std::byte* to) {
  for (const int rank : map.ranks_of(host)) {
    if (bytes[rank] != 0) std::memcpy(to, blocks[rank], bytes[rank]);
    to += bytes[rank];
  }
}

void unpack_row(const HostMap& map, int host, std::byte* const* blocks, const std::size_t* bytes, const std::byte* from) {
  for (const int rank : map.ranks_of(host)) {
    if (bytes[rank] != 0) std::memcpy(blocks[rank], from, bytes[rank]);
    from += bytes[rank];
  }
}

void all_gather_bundled(HostGroup& self, const Call& call, const std::byte* input, std::byte* const* outputs,
                        const std::size_t* bytes) {
  const HostMap& map = self.map();
  gather_locally(self, call, input, map.ranks_here(), outputs, bytes);
  std::size_t total = 0;
  for (const int host : map.other_hosts()) total += total_of(map, host, bytes);
  std::byte* rows = self.room(0, total);
  if (self.is_leader()) {
    const std::size_t own = total_of(map, map.host(), bytes);
    std::byte* row = self.room(1, own);
    pack_row(map, map.host(), outputs, bytes, row);
    self.send_cards(call, [&](int) { return Payload{row, own}; });
    self.await_cards(call, [&](int host) { return total_of(map, host, bytes); });
    std::byte* to = rows;
    for (const int host : map.other_hosts()) {
      const std::size_t length = total_of(map, host, bytes);
      std::memcpy(to, self.payload_of(host), length);
      to += length;
    }
  }
  broadcast(self.inner(), self.byte_phase(call, Operation::kBroadcast, total), rows, total);
  for (const int host : map.other_hosts()) {
    unpack_row(map, host, outputs, bytes, rows);
    rows += total_of(map, host, bytes);
  }
}

// Every rank brings some blocks to its host, and its neighbours get them from there. If hosts have different numbers of ranks, a
// rank may bring several blocks of another host, or none.
void all_gather_direct(HostGroup& self, const Call& call, const std::byte* input, std::byte* const* outputs,
                       const std::size_t* bytes) {
  const HostMap& map = self.map();
  const int me = map.rank(), local = map.local(), here = map.num_local();
  Transfers sends(self, call);
  std::vector<std::vector<std::unique_ptr<Transfers>>> receives(std::size_t(map.num_hosts()));
  for (const int host : map.other_hosts()) {
    sends.send(map.ranks_of(host)[std::size_t(local % map.num_ranks_of(host))], input, bytes[me]);
    for (int number = local; number < map.num_ranks_of(host); number += here) {
      const int rank = map.ranks_of(host)[std::size_t(number)];
      auto& receive = receives[std::size_t(host)].emplace_back(std::make_unique<Transfers>(self, call));
      receive->receive(rank, outputs[rank], bytes[rank]);
      receive->start();
    }
  }
  sends.start();
  gather_locally(self, call, input, map.ranks_here(), outputs, bytes);  // meanwhile
  for (const int host : map.other_hosts()) {
    const std::vector<int>& ranks = map.ranks_of(host);
    for (int first = 0; first < int(ranks.size()); first += here) {
      const std::vector<int> some(ranks.begin() + first, ranks.begin() + std::min(first + here, int(ranks.size())));
      const bool has_one = std::size_t(local) < some.size();
      if (has_one) receives[std::size_t(host)][std::size_t(first / here)]->wait();
      if (here > 1) gather_locally(self, call, has_one ? outputs[some[std::size_t(local)]] : nullptr, some, outputs, bytes);
    }
  }
  sends.wait();
}

}  // namespace

void all_gather(HostGroup& self, const Call& call, const std::byte* input, std::byte* const* outputs, const std::size_t* bytes) {
  self.operate(call, [&] {
    const HostMap& map = self.map();
    if (is_bundled(call.operation, largest_row(map, bytes), map.num_hosts()))
      return all_gather_bundled(self, call, input, outputs, bytes);
    if (self.is_leader()) {
      self.send_cards(call);
      self.await_cards(call);
    }
    self.await_verdict(call);
    all_gather_direct(self, call, input, outputs, bytes);
  });
}

namespace {

void gather_bundled(HostGroup& self, const Call& call, const std::byte* input, std::byte* const* outputs, std::size_t bytes) {
  const HostMap& map = self.map();
  const int home = map.host_of(call.root);
  const bool is_home = map.host() == home;
  const auto row_bytes = [&](int host) { return bytes * std::size_t(map.num_ranks_of(host)); };
  std::byte* row = self.room(0, row_bytes(map.host()));
  std::vector<std::byte*> places;
  for (int local = 0; local < map.num_local(); ++local)
    places.push_back(self.rank() == call.root ? outputs[map.ranks_here()[std::size_t(local)]] : row + std::size_t(local) * bytes);
  const int local_root = is_home ? map.local_of(call.root) : 0;
  gather(self.inner(), self.byte_phase(call, Operation::kGather, bytes, local_root), input, places.data(), bytes);
  if (self.is_leader()) {
    self.send_cards(call, [&](int host) { return host == home ? Payload{row, row_bytes(map.host())} : Payload{}; });
    self.await_cards(call, [&](int host) { return is_home ? row_bytes(host) : 0; });
  }
  if (!is_home) return self.await_verdict(call);
  const std::size_t total = bytes * std::size_t(map.num_ranks() - map.num_local());
  std::byte* rows = self.room(1, total);
  if (self.is_leader()) {
    std::byte* to = rows;
    for (const int host : map.other_hosts()) {
      std::memcpy(to, self.payload_of(host), row_bytes(host));
      to += row_bytes(host);
    }
  }
  broadcast(self.inner(), self.byte_phase(call, Operation::kBroadcast, total), rows, total);
  for (const int host : self.rank() == call.root ? map.other_hosts() : std::vector<int>{}) {
    for (const int rank : map.ranks_of(host)) {
      if (bytes != 0) std::memcpy(outputs[rank], rows, bytes);
      rows += bytes;
    }
  }
}

void gather_direct(HostGroup& self, const Call& call, const std::byte* input, std::byte* const* outputs, std::size_t bytes) {
  const HostMap& map = self.map();
  Transfers transfers(self, call);
  if (!map.is_here(call.root)) {
    transfers.send(call.root, input, bytes);
    return transfers.wait();
  }
  std::vector<std::byte*> places;
  if (self.rank() == call.root) {
    for (const int host : map.other_hosts()) {
      for (const int rank : map.ranks_of(host)) transfers.receive(rank, outputs[rank], bytes);
    }
    for (const int rank : map.ranks_here()) places.push_back(outputs[rank]);
  }
  transfers.start();
  gather(self.inner(), self.byte_phase(call, Operation::kGather, bytes, map.local_of(call.root)), input, places.data(), bytes);
  transfers.wait();
}

void scatter_bundled(HostGroup& self, const Call& call, const std::byte* const* inputs, std::byte* output, std::size_t bytes) {
  const HostMap& map = self.map();
  const int home = map.host_of(call.root);
  const bool is_home = map.host() == home;
  const auto row_bytes = [&](int host) { return bytes * std::size_t(map.num_ranks_of(host)); };
  std::vector<const std::byte*> places;
  if (!is_home) {
    if (self.is_leader()) {
      self.send_cards(call);
      self.await_cards(call, [&](int host) { return host == home ? row_bytes(map.host()) : 0; });
      for (int local = 0; local < map.num_local(); ++local) places.push_back(self.payload_of(home) + std::size_t(local) * bytes);
    }
    self.await_verdict(call);
    return scatter(self.inner(), self.byte_phase(call, Operation::kScatter, bytes), places.data(), output, bytes);
  }
  const std::size_t total = bytes * std::size_t(map.num_ranks() - map.num_local());
  std::byte* rows = self.room(0, total);
  if (self.rank() == call.root) {
    std::byte* to = rows;
    for (int host = 0; host < map.num_hosts(); ++host) {
      for (const int rank : map.ranks_of(host)) {
        if (host == home || bytes == 0) continue;
        std::memcpy(to, inputs[rank], bytes);
        to += bytes;
      }
    }
    for (const int rank : map.ranks_here()) places.push_back(inputs[rank]);
  }
  const int root = map.local_of(call.root);
  broadcast(self.inner(), self.byte_phase(call, Operation::kBroadcast, total, root), rows, total);
  scatter(self.inner(), self.byte_phase(call, Operation::kScatter, bytes, root), places.data(), output, bytes);
  if (self.is_leader()) {
    std::vector<std::byte*> row(std::size_t(map.num_hosts()));
    for (int host = 0; host < map.num_hosts(); ++host) {
      row[std::size_t(host)] = rows;
      if (host != home) rows += row_bytes(host);
    }
    self.send_cards(call, [&](int host) { return Payload{row[std::size_t(host)], row_bytes(host)}; });
    self.await_cards(call);
  }
  self.await_verdict(call);
}

void scatter_direct(HostGroup& self, const Call& call, const std::byte* const* inputs, std::byte* output, std::size_t bytes) {
  const HostMap& map = self.map();
  Transfers transfers(self, call);
  if (!map.is_here(call.root)) {
    transfers.receive(call.root, output, bytes);
    return transfers.wait();
  }
  std::vector<const std::byte*> places;
  if (self.rank() == call.root) {
    for (const int host : map.other_hosts()) {
      for (const int rank : map.ranks_of(host)) transfers.send(rank, inputs[rank], bytes);
    }
    for (const int rank : map.ranks_here()) places.push_back(inputs[rank]);
  }
  transfers.start();
  scatter(self.inner(), self.byte_phase(call, Operation::kScatter, bytes, map.local_of(call.root)), places.data(), output, bytes);
  transfers.wait();
}

std::size_t largest_host(const HostMap& map) {
  int largest = 0;
  for (int host = 0; host < map.num_hosts(); ++host) largest = std::max(largest, map.num_ranks_of(host));
  return std::size_t(largest);
}

}  // namespace

void gather(HostGroup& self, const Call& call, const std::byte* input, std::byte* const* outputs, std::size_t bytes) {
  self.operate(call, [&] {
    if (is_bundled(call.operation, bytes * largest_host(self.map()), self.map().num_hosts()))
      return gather_bundled(self, call, input, outputs, bytes);
    if (self.is_leader()) {
      self.send_cards(call);
      self.await_cards(call);
    }
    self.await_verdict(call);
    gather_direct(self, call, input, outputs, bytes);
  });
}

void scatter(HostGroup& self, const Call& call, const std::byte* const* inputs, std::byte* output, std::size_t bytes) {
  self.operate(call, [&] {
    if (is_bundled(call.operation, bytes * largest_host(self.map()), self.map().num_hosts()))
      return scatter_bundled(self, call, inputs, output, bytes);
    if (self.is_leader()) {
      self.send_cards(call);
      self.await_cards(call);
    }
    self.await_verdict(call);
    scatter_direct(self, call, inputs, output, bytes);
  });
}

}  // namespace phalanx
