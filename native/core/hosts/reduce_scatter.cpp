#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "collectives.hpp"
#include "host_reduction.hpp"

namespace phalanx {
namespace {

struct Row {
  std::size_t at, bytes;
};

// Where the blocks of a host lie if those of all hosts lie one after another.
std::vector<Row> rows_of(const HostMap& map, const std::size_t* bytes) {
  std::vector<Row> rows;
  std::size_t at = 0;
  for (int host = 0; host < map.num_hosts(); ++host) {
    Row row{at, 0};
    for (const int rank : map.ranks_of(host)) row.bytes += bytes[rank];
    at += row.bytes;
    rows.push_back(row);
  }
  return rows;
}

// The leader gets the sums of this host for all ranks, and sends each host its row.
void reduce_scatter_bundled(HostGroup& self, const Call& call, const std::byte* const* inputs, std::byte* output,
                            const std::size_t* bytes) {
  const HostMap& map = self.map();
  const HostReduction how(map, call);
  const std::vector<Row> rows = rows_of(map, bytes);
  const std::size_t total = rows.back().at + rows.back().bytes, item = item_bytes(call.dtype);
  std::byte* sums = self.room(0, total);
  std::byte* to = sums;
  for (int host = 0; host < map.num_hosts(); ++host) {
    for (const int rank : map.ranks_of(host)) {
      if (bytes[rank] != 0) std::memcpy(to, inputs[rank], bytes[rank]);
      to += bytes[rank];
    }
  }
  Call phase = self.phase(call, Operation::kReduce, total / item);
  phase.op = how.inside();
  reduce_to_root(self.inner(), phase, sums);
  const Row own = rows[std::size_t(map.host())];
  std::byte* row = sums + own.at;
  if (self.is_leader()) {
    self.send_cards(call, [&](int host) { return Payload{sums + rows[std::size_t(host)].at, rows[std::size_t(host)].bytes}; });
    self.await_cards(call, [&](int) { return own.bytes; });
    std::vector<const std::byte*> sources(std::size_t(map.num_hosts()), row);
    for (const int host : map.other_hosts()) sources[std::size_t(host)] = self.payload_of(host);
    how.over_hosts(row, sources.data(), own.bytes / item);
  }
  broadcast(self.inner(), self.byte_phase(call, Operation::kBroadcast, own.bytes), row, own.bytes);
  for (const int rank : map.ranks_here()) {
    if (rank == self.rank() && bytes[rank] != 0) std::memcpy(output, row, bytes[rank]);
    row += bytes[rank];
  }
}

// The ranks of this host add the blocks of some ranks, at most one for each of them: local rank i gets the sum of block i.
void add_locally(HostGroup& self, const Call& call, const HostReduction& how, const std::vector<int>& ranks,
                 const std::byte* const* inputs, std::byte* sum, const std::size_t* bytes) {
  std::vector<const std::byte*> blocks;
  std::vector<std::size_t> sizes;
  std::uint64_t total = 0;
  for (int local = 0; local < self.map().num_local(); ++local) {
    const bool has_block = std::size_t(local) < ranks.size();
    blocks.push_back(has_block ? inputs[ranks[std::size_t(local)]] : nullptr);
    sizes.push_back(has_block ? bytes[ranks[std::size_t(local)]] : 0);
    total += sizes.back();
  }
  Call phase = self.phase(call, Operation::kReduceScatter, total);
  phase.op = how.inside();
  reduce_scatter(self.inner(), phase, blocks.data(), sum, sizes.data());
}

// Every host adds the row of each other host, and the sums go straight to the ranks that need them.
void reduce_scatter_direct(HostGroup& self, const Call& call, const std::byte* const* inputs, std::byte* output,
                           const std::size_t* bytes) {
  const HostMap& map = self.map();
  const HostReduction how(map, call);
  const std::size_t own = bytes[self.rank()], hosts = std::size_t(map.num_hosts()), here = std::size_t(map.num_local());
  std::byte* received = self.room(0, own * hosts);
  std::vector<const std::byte*> sources;
  Transfers transfers(self, call);
  for (std::size_t host = 0; host < hosts; ++host) {
    sources.push_back(received + host * own);
    const std::vector<int>& ranks = map.ranks_of(int(host));
    const int sender = ranks[std::size_t(map.local()) % ranks.size()];
    if (int(host) != map.host()) transfers.receive(sender, received + host * own, own);
  }
  transfers.start();
  std::size_t largest = 0, num_sums = 0;
  for (int rank = 0; rank < map.num_ranks(); ++rank) largest = std::max(largest, bytes[rank]);
  for (const int host : map.other_hosts()) num_sums += (std::size_t(map.num_ranks_of(host)) + here - 1) / here;
  std::byte* sums = self.room(1, largest * num_sums);
  for (const int host : map.other_hosts()) {
    const std::vector<int>& ranks = map.ranks_of(host);
    for (std::size_t first = 0; first < ranks.size(); first += here, sums += largest) {
      const std::vector<int> some(ranks.begin() + std::ptrdiff_t(first), ranks.begin() + std::ptrdiff_t(std::min(first + here, ranks.size())));
      add_locally(self, call, how, some, inputs, sums, bytes);
      const std::size_t local = std::size_t(map.local());
      if (local < some.size()) transfers.send(some[local], sums, bytes[some[local]]);
      transfers.start();
    }
  }
  add_locally(self, call, how, map.ranks_here(), inputs, received + std::size_t(map.host()) * own, bytes);
  transfers.wait();
  how.over_hosts(output, sources.data(), own / item_bytes(call.dtype));
}

}  // namespace

void reduce_scatter(HostGroup& self, const Call& call, const std::byte* const* inputs, std::byte* output, const std::size_t* bytes) {
  self.operate(call, [&] {
    std::size_t largest = 0;
    for (const Row& row : rows_of(self.map(), bytes)) largest = std::max(largest, row.bytes);
    if (is_bundled(call.operation, largest, self.map().num_hosts()))
      return reduce_scatter_bundled(self, call, inputs, output, bytes);
    if (self.is_leader()) {
      self.send_cards(call);
      self.await_cards(call);
    }
    self.await_verdict(call);
    reduce_scatter_direct(self, call, inputs, output, bytes);
  });
}

}  // namespace phalanx
