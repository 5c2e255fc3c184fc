#include <algorithm>
#include <cstring>
#include <vector>

#include "collectives.hpp"

namespace phalanx {
namespace {

// Above this, what a host sends to another one goes from rank to rank, without a copy. Below, each rank collects what its
// neighbours send to one rank, so that there are fewer messages.
constexpr std::size_t kMostCollected = 256u << 10;
// If no rank of a host gives more, its data goes with the sizes, and the ranks meet less often.
constexpr std::size_t kTiny = 2048;

enum class Way {
  kBehindCards,  // all of it in one message, between the leaders
  kCollected,    // one message to each rank of the other host
  kDirect,       // one message for each pair of ranks
};

// Only senders know how much they send, so the leaders exchange the sizes behind their cards. Row i has what rank i sends.
class Sizes {
 public:
  Sizes(const HostMap& map, const std::uint64_t* table) : map_(map), table_(table) {}

  std::uint64_t operator()(int from, int to) const {
    return table_[std::size_t(from) * std::size_t(map_.num_ranks()) + std::size_t(to)];
  }
  // From all ranks of a host to one rank.
  std::size_t to_rank(int host, int to) const {
    std::size_t total = 0;
    for (const int from : map_.ranks_of(host)) total += (*this)(from, to);
    return total;
  }
  // From one rank to all ranks of a host.
  std::size_t from_rank(int from, int host) const {
    std::size_t total = 0;
    for (const int to : map_.ranks_of(host)) total += (*this)(from, to);
    return total;
  }
  std::size_t between(int from, int to) const {
    std::size_t total = 0;
    for (const int rank : map_.ranks_of(from)) total += from_rank(rank, to);
    return total;
  }

 private:
  const HostMap& map_;
  const std::uint64_t* table_;
};

class AllToAll {
 public:
  AllToAll(HostGroup& self, const Call& call, const std::byte* const* inputs, const std::size_t* input_bytes,
           std::byte* const* outputs, const std::size_t* output_bytes)
      : self_(self), call_(call), map_(self.map()), inputs_(inputs), input_bytes_(input_bytes), outputs_(outputs),
        output_bytes_(output_bytes), row_bytes_(std::size_t(map_.num_ranks()) * sizeof(std::uint64_t)),
        table_(std::size_t(map_.num_ranks()) * std::size_t(map_.num_ranks())), sizes_(map_, table_.data()) {}

  void run() {
    share_sizes_here();
    exchange();
    check_sizes();
    Transfers transfers(self_, call_);
    receive(transfers);
    send(transfers);
    here();
    transfers.wait();
    unpack();
  }

 private:
  Way way(int from, int to) const {
    const std::size_t total = sizes_.between(from, to);
    if (table_bytes(from) + total <= kMostBundledBytes) return Way::kBehindCards;
    return total <= kMostCollected ? Way::kCollected : Way::kDirect;
  }
  std::size_t table_bytes(int host) const { return row_bytes_ * std::size_t(map_.num_ranks_of(host)); }
  std::byte* row(int rank) { return reinterpret_cast<std::byte*>(table_.data()) + std::size_t(rank) * row_bytes_; }

  // Every rank of this host gets what each of them gives.
  void gather_here(const std::byte* input, const std::vector<std::byte*>& places, const std::vector<std::size_t>& bytes) {
    std::uint64_t total = 0;
    for (const std::size_t each : bytes) total += each;
    all_gather(self_.inner(), self_.byte_phase(call_, Operation::kAllGather, total), input, places.data(), bytes.data());
  }

  // Each rank's row of the table, with its data behind it if that is tiny.
  void share_sizes_here() {
    const std::size_t block = row_bytes_ + kTiny, here = std::size_t(map_.num_local());
    blocks_.resize(here * block);
    std::vector<std::byte*> places;
    for (std::size_t i = 0; i < here; ++i) places.push_back(blocks_.data() + i * block);
    std::byte* own = places[std::size_t(map_.local())];
    const std::vector<std::uint64_t> sizes(input_bytes_, input_bytes_ + map_.num_ranks());
    std::memcpy(own, sizes.data(), row_bytes_);
    std::size_t total = 0;
    for (const std::uint64_t size : sizes) total += size;
    std::byte* to = own + row_bytes_;
    for (int rank = 0; total <= kTiny && rank < map_.num_ranks(); ++rank) {
      if (input_bytes_[rank] != 0) std::memcpy(to, inputs_[rank], input_bytes_[rank]);
      to += input_bytes_[rank];
    }
    gather_here(own, places, std::vector<std::size_t>(here, block));
    for (std::size_t i = 0; i < here; ++i) {
      const int rank = map_.ranks_here()[i];
      std::memcpy(row(rank), places[i], row_bytes_);
      total = 0;
      for (int host = 0; host < map_.num_hosts(); ++host) total += sizes_.from_rank(rank, host);
      is_tiny_ = is_tiny_ && total <= kTiny;
    }
  }

  // The block from one rank of this host to any rank, if all are tiny.
  const std::byte* tiny_block(int from, int to) const {
    const std::byte* at = blocks_.data() + std::size_t(map_.local_of(from)) * (row_bytes_ + kTiny) + row_bytes_;
    for (int rank = 0; rank < to; ++rank) at += sizes_(from, rank);
    return at;
  }

  // What this host's ranks send to another host, rank after rank, for the leader.
  std::vector<std::byte> pack_here(int host) {
    std::vector<std::byte> all(sizes_.between(map_.host(), host)), own(sizes_.from_rank(map_.rank(), host));
    std::byte* to = all.data();
    for (const int from : is_tiny_ ? map_.ranks_here() : std::vector<int>{}) {
      for (const int rank : map_.ranks_of(host)) {
        const std::size_t bytes = sizes_(from, rank);
        if (bytes != 0) std::memcpy(to, tiny_block(from, rank), bytes);
        to += bytes;
      }
    }
    if (is_tiny_) return all;
    to = own.data();
    for (const int rank : map_.ranks_of(host)) {
      if (input_bytes_[rank] != 0) std::memcpy(to, inputs_[rank], input_bytes_[rank]);
      to += input_bytes_[rank];
    }
    std::vector<std::byte*> places;
    std::vector<std::size_t> bytes;
    to = all.data();
    for (const int rank : map_.ranks_here()) {
      places.push_back(to);
      bytes.push_back(sizes_.from_rank(rank, host));
      to += bytes.back();
    }
    gather_here(own.data(), places, bytes);
    return all;
  }

  void exchange() {
    std::vector<std::vector<std::byte>> payloads(std::size_t(map_.num_hosts()));
    for (const int host : map_.other_hosts()) {
      std::vector<std::byte>& payload = payloads[std::size_t(host)];
      for (const int rank : map_.ranks_here()) payload.insert(payload.end(), row(rank), row(rank) + row_bytes_);
      if (way(map_.host(), host) != Way::kBehindCards) continue;
      const std::vector<std::byte> data = pack_here(host);
      payload.insert(payload.end(), data.begin(), data.end());
    }
    std::vector<std::byte> come;  // what came behind the cards, host after host
    if (self_.is_leader()) {
      self_.send_cards(call_, [&](int host) {
        const std::vector<std::byte>& payload = payloads[std::size_t(host)];
        return Payload{payload.data(), payload.size()};
      });
      // Only the sizes in front say how much follows them.
      self_.await_cards(call_, [&](int host) {
        const std::byte* from = self_.payload_of(host);
        for (const int rank : map_.ranks_of(host)) {
          std::memcpy(row(rank), from, row_bytes_);
          from += row_bytes_;
        }
        return table_bytes(host) + behind_cards_from(host);
      });
      for (const int host : map_.other_hosts()) {
        const std::byte* from = self_.payload_of(host) + table_bytes(host);
        come.insert(come.end(), from, from + behind_cards_from(host));
      }
    }
    // The table goes to all ranks of this host, and with it what has come, if that is tiny.
    const std::size_t table_bytes = table_.size() * sizeof(std::uint64_t);
    std::vector<std::byte> both(table_bytes + kTiny);
    std::memcpy(both.data(), table_.data(), table_bytes);
    if (!come.empty() && come.size() <= kTiny) std::memcpy(both.data() + table_bytes, come.data(), come.size());
    broadcast(self_.inner(), self_.byte_phase(call_, Operation::kBroadcast, both.size()), both.data(), both.size());
    std::memcpy(table_.data(), both.data(), table_bytes);
    std::size_t total = 0;
    for (const int host : map_.other_hosts()) total += behind_cards_from(host);
    come.resize(total);
    if (total != 0 && total <= kTiny) std::memcpy(come.data(), both.data() + table_bytes, total);
    if (total > kTiny) broadcast(self_.inner(), self_.byte_phase(call_, Operation::kBroadcast, total), come.data(), total);
    come_ = std::move(come);
  }
  std::size_t behind_cards_from(int host) const {
    return way(host, map_.host()) == Way::kBehindCards ? sizes_.between(host, map_.host()) : 0;
  }

  // The rank that sends other sizes than more than half of all ranks; -1 if nobody can tell.
  int odd_one_out() const {
    const auto sends_alike = [&](int a, int b) {
      for (int to = 0; to < map_.num_ranks(); ++to) {
        if (sizes_(a, to) != sizes_(b, to)) return false;
      }
      return true;
    };
    int odd = -1;
    for (int rank = 0; rank < map_.num_ranks(); ++rank) {
      int num_alike = 0;
      for (int other = 0; other < map_.num_ranks(); ++other) num_alike += sends_alike(rank, other) ? 1 : 0;
      if (2 * num_alike > map_.num_ranks()) continue;
      if (odd >= 0) return -1;
      odd = rank;
    }
    return odd;
  }

  void check_sizes() {
    for (int rank = 0; rank < map_.num_ranks(); ++rank) {
      const std::size_t sent = sizes_(rank, map_.rank());
      if (map_.is_here(rank) || sent == output_bytes_[rank]) continue;
      const int odd = odd_one_out();
      if (odd == map_.rank()) self_.outer().fail(FaultKind::kMismatch, map_.local());
      if (odd >= 0) self_.await_word(map_.host_of(odd));  // where its call is known
      self_.outer().fail(FaultKind::kMismatch, kElsewhere,
                         {"rank " + std::to_string(rank) + " on host " + std::to_string(map_.host_of(rank)) + " sends " +
                          std::to_string(sent) + " bytes, rank " + std::to_string(map_.rank()) + " has room for " +
                          std::to_string(output_bytes_[rank])});
    }
  }

  // The rank of a host that collects what the host sends to a rank of another host.
  int collector(int host, int rank) const {
    return map_.ranks_of(host)[std::size_t(map_.local_of(rank) % map_.num_ranks_of(host))];
  }

  void receive(Transfers& transfers) {
    received_.resize(std::size_t(map_.num_hosts()));
    for (const int host : map_.other_hosts()) {
      if (way(host, map_.host()) == Way::kCollected) {
        std::vector<std::byte>& memory = received_[std::size_t(host)];
        memory.resize(sizes_.to_rank(host, map_.rank()));
        transfers.receive(collector(host, map_.rank()), memory.data(), memory.size());
      } else if (way(host, map_.host()) == Way::kDirect) {
        for (const int rank : map_.ranks_of(host)) transfers.receive(rank, outputs_[rank], output_bytes_[rank]);
      }
    }
    transfers.start();
  }

  void send(Transfers& transfers) {
    for (const int host : map_.other_hosts()) {
      if (way(map_.host(), host) == Way::kCollected) {
        collect(transfers, host);
      } else if (way(map_.host(), host) == Way::kDirect) {
        for (int i = 0; i < map_.num_ranks_of(host); ++i) {  // not everybody to the same rank first
          const int rank = map_.ranks_of(host)[std::size_t((map_.local() + i) % map_.num_ranks_of(host))];
          transfers.send(rank, inputs_[rank], input_bytes_[rank]);
        }
      }
      transfers.start();
    }
  }

  // Local rank i collects what the ranks of this host send to the other host's rank i; to more of its ranks in further rounds.
  void collect(Transfers& transfers, int host) {
    const std::vector<int>& ranks = map_.ranks_of(host);
    const std::size_t here = std::size_t(map_.num_local());
    for (std::size_t first = 0; first < ranks.size(); first += here) {
      std::vector<const std::byte*> in(here, nullptr);
      std::vector<std::byte*> out(here, nullptr);
      std::vector<std::size_t> in_bytes(here, 0), out_bytes(here, 0);
      for (std::size_t i = 0; i < here && first + i < ranks.size(); ++i) {
        in[i] = inputs_[ranks[first + i]];
        in_bytes[i] = input_bytes_[ranks[first + i]];
      }
      const std::size_t own = first + std::size_t(map_.local());
      if (own < ranks.size()) {
        collected_.emplace_back(sizes_.to_rank(map_.host(), ranks[own]));
        std::byte* to = collected_.back().data();
        for (std::size_t i = 0; i < here; ++i) {
          out[i] = to;
          out_bytes[i] = sizes_(map_.ranks_here()[i], ranks[own]);
          to += out_bytes[i];
        }
      }
      all_to_all(self_.inner(), self_.byte_phase(call_, Operation::kAllToAll, 0), in.data(), in_bytes.data(), out.data(), out_bytes.data());
      if (own < ranks.size()) transfers.send(ranks[own], collected_.back().data(), collected_.back().size());
      transfers.start();
    }
  }

  void here() {
    if (is_tiny_) return copy_here();
    std::vector<const std::byte*> in;
    std::vector<std::byte*> out;
    std::vector<std::size_t> in_bytes, out_bytes;
    for (const int rank : map_.ranks_here()) {
      in.push_back(inputs_[rank]);
      out.push_back(outputs_[rank]);
      in_bytes.push_back(input_bytes_[rank]);
      out_bytes.push_back(output_bytes_[rank]);
    }
    all_to_all(self_.inner(), self_.byte_phase(call_, Operation::kAllToAll, 0), in.data(), in_bytes.data(), out.data(), out_bytes.data());
  }

  void copy_here() {
    for (const int from : map_.ranks_here()) {
      const std::size_t sent = sizes_(from, map_.rank());
      if (sent != output_bytes_[from])
        self_.outer().fail(FaultKind::kMismatch, map_.local_of(from), {.wanted_bytes = output_bytes_[from], .found_bytes = sent});
      if (sent != 0) std::memcpy(outputs_[from], tiny_block(from, map_.rank()), sent);
    }
  }

  void unpack() {
    const std::byte* behind_cards = come_.data();
    for (const int host : map_.other_hosts()) {
      const std::byte* collected = received_[std::size_t(host)].data();
      for (const int from : map_.ranks_of(host)) {
        for (const int to : map_.ranks_here()) {
          const std::size_t bytes = sizes_(from, to);
          if (way(host, map_.host()) == Way::kBehindCards) {
            if (to == map_.rank() && bytes != 0) std::memcpy(outputs_[from], behind_cards, bytes);
            behind_cards += bytes;
          } else if (way(host, map_.host()) == Way::kCollected && to == map_.rank()) {
            if (bytes != 0) std::memcpy(outputs_[from], collected, bytes);
            collected += bytes;
          }
        }
      }
    }
  }

  HostGroup& self_;
  const Call& call_;
  const HostMap& map_;
  const std::byte* const* inputs_;
  const std::size_t* input_bytes_;
  std::byte* const* outputs_;
  const std::size_t* output_bytes_;
  const std::size_t row_bytes_;
  std::vector<std::uint64_t> table_;
  const Sizes sizes_;
  bool is_tiny_ = true;             // what each rank of this host gives
  std::vector<std::byte> blocks_;   // of this host's ranks: sizes and tiny data
  std::vector<std::byte> come_;     // what came behind the cards, host after host
  std::vector<std::vector<std::byte>> received_, collected_;
};

}  // namespace

void all_to_all(HostGroup& self, const Call& call, const std::byte* const* inputs, const std::size_t* input_bytes,
                std::byte* const* outputs, const std::size_t* output_bytes) {
  self.operate(call, [&] { AllToAll(self, call, inputs, input_bytes, outputs, output_bytes).run(); });
}

}  // namespace phalanx
