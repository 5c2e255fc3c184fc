#include <algorithm>
#include <cstring>
#include <vector>

#include "collectives.hpp"

namespace phalanx {
namespace {

// Only senders know how much they send. The leaders exchange the sizes behind their cards; row i is that of rank i.
class SizeTable {
 public:
  SizeTable(HostGroup& self, const Call& call, const std::size_t* input_bytes)
      : map_(self.map()), size_(std::size_t(map_.num_ranks())), row_bytes_(size_ * sizeof(std::uint64_t)) {
    std::byte* own = self.room(0, row_bytes_ * std::size_t(map_.num_local()));
    std::vector<std::uint64_t> row(input_bytes, input_bytes + size_);
    std::vector<std::byte*> places;
    for (int local = 0; local < map_.num_local(); ++local) places.push_back(own + std::size_t(local) * row_bytes_);
    const std::vector<std::size_t> sizes(places.size(), row_bytes_);
    all_gather(self.inner(), self.byte_phase(call, Operation::kAllGather, row_bytes_), reinterpret_cast<std::byte*>(row.data()),
               places.data(), sizes.data());
    const std::size_t total = row_bytes_ * std::size_t(map_.num_ranks() - map_.num_local());
    rows_ = self.room(1, total);
    if (self.is_leader()) {
      self.send_cards(call, [&](int) { return HostGroup::Payload{own, bytes_of(map_.host())}; });
      self.await_cards(call, [&](int host) { return bytes_of(host); });
      std::byte* to = rows_;
      for (const int host : map_.other_hosts()) {
        std::memcpy(to, self.payload_of(host), bytes_of(host));
        to += bytes_of(host);
      }
    }
    broadcast(self.inner(), self.byte_phase(call, Operation::kBroadcast, total), rows_, total);
  }

  // How much a rank of another host sends to this rank.
  std::size_t sent_by(int rank) const {
    const std::byte* at = rows_;
    for (const int host : map_.other_hosts()) {
      if (host == map_.host_of(rank)) break;
      at += bytes_of(host);
    }
    std::uint64_t sent = 0;
    std::memcpy(&sent, at + std::size_t(map_.local_of(rank)) * row_bytes_ + std::size_t(map_.rank()) * sizeof sent, sizeof sent);
    return sent;
  }

 private:
  std::size_t bytes_of(int host) const { return row_bytes_ * std::size_t(map_.num_ranks_of(host)); }

  const HostMap& map_;
  std::size_t size_, row_bytes_;
  std::byte* rows_;
};

void check_sizes(HostGroup& self, const SizeTable& table, const std::size_t* output_bytes) {
  const HostMap& map = self.map();
  for (int rank = 0; rank < map.num_ranks(); ++rank) {
    if (map.is_here(rank) || table.sent_by(rank) == output_bytes[rank]) continue;
    self.outer().fail(FaultKind::kMismatch, kElsewhere,
                      {"rank " + std::to_string(rank) + " on host " + std::to_string(map.host_of(rank)) + " sends " +
                       std::to_string(table.sent_by(rank)) + " bytes, rank " + std::to_string(self.rank()) + " has room for " +
                       std::to_string(output_bytes[rank])});
  }
}

}  // namespace

void all_to_all(HostGroup& self, const Call& call, const std::byte* const* inputs, const std::size_t* input_bytes,
                std::byte* const* outputs, const std::size_t* output_bytes) {
  self.operate(call, [&] {
    const HostMap& map = self.map();
    const SizeTable table(self, call, input_bytes);
    check_sizes(self, table, output_bytes);
    Transfers transfers(self, call);
    std::vector<int> others;  // those of the next host first, and not everybody to the same rank first
    for (const int host : map.other_hosts()) {
      for (int i = 0; i < map.num_ranks_of(host); ++i)
        others.push_back(map.ranks_of(host)[std::size_t((map.local() + i) % map.num_ranks_of(host))]);
    }
    for (const int rank : others) transfers.receive(rank, outputs[rank], output_bytes[rank]);
    for (const int rank : others) transfers.send(rank, inputs[rank], input_bytes[rank]);
    transfers.start();
    std::vector<const std::byte*> in;
    std::vector<std::byte*> out;
    std::vector<std::size_t> in_bytes, out_bytes;
    for (const int rank : map.ranks_here()) {
      in.push_back(inputs[rank]);
      out.push_back(outputs[rank]);
      in_bytes.push_back(input_bytes[rank]);
      out_bytes.push_back(output_bytes[rank]);
    }
    all_to_all(self.inner(), self.byte_phase(call, Operation::kAllToAll, 0), in.data(), in_bytes.data(), out.data(), out_bytes.data());
    transfers.wait();
  });
}

}  // namespace phalanx
