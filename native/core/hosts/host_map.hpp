// Which ranks of a group are on which host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace phalanx {

class HostMap {
 public:
  // For each host its ranks in ascending order; the hosts in the order of their lowest ranks.
  HostMap(std::vector<std::vector<int>> hosts, int rank) : hosts_(std::move(hosts)), rank_(rank) {
    std::size_t size = 0;
    for (const auto& ranks : hosts_) size += ranks.size();
    places_.resize(size, Place{-1, -1});
    for (std::size_t host = 0; host < hosts_.size(); ++host) {
      for (std::size_t local = 0; local < hosts_[host].size(); ++local) {
        const int member = hosts_[host][local];
        if (member < 0 || std::size_t(member) >= size || places_[std::size_t(member)].host >= 0)
          throw std::runtime_error("a table of hosts needs each rank once");
        places_[std::size_t(member)] = {int(host), int(local)};
      }
    }
    if (rank < 0 || std::size_t(rank) >= size) throw std::runtime_error("rank outside the table of hosts");
  }

  int rank() const { return rank_; }
  int num_ranks() const { return int(places_.size()); }
  int num_hosts() const { return int(hosts_.size()); }
  // The host of this rank, and its number there.
  int host() const { return host_of(rank_); }
  int local() const { return local_of(rank_); }
  int num_local() const { return int(ranks_of(host()).size()); }
  int host_of(int rank) const { return places_[std::size_t(rank)].host; }
  int local_of(int rank) const { return places_[std::size_t(rank)].local; }
  bool is_here(int rank) const { return host_of(rank) == host(); }
  const std::vector<int>& ranks_of(int host) const { return hosts_[std::size_t(host)]; }
  const std::vector<int>& ranks_here() const { return ranks_of(host()); }
  int num_ranks_of(int host) const { return int(ranks_of(host).size()); }
  int leader_of(int host) const { return ranks_of(host).front(); }
  // The other hosts, the next one first, so that not all hosts begin with the same one.
  std::vector<int> other_hosts() const {
    std::vector<int> others;
    for (int i = 1; i < num_hosts(); ++i) others.push_back((host() + i) % num_hosts());
    return others;
  }
  std::string name_of(int host) const {
    const std::vector<int>& ranks = ranks_of(host);
    std::string text = "host " + std::to_string(host) + (ranks.size() == 1 ? " (rank " : " (ranks ");
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (i == kShown) return text + ", ...)";
      text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    }
    return text + ")";
  }

 private:
  static constexpr std::size_t kShown = 8;
  struct Place {
    int host, local;
  };
  std::vector<std::vector<int>> hosts_;
  std::vector<Place> places_;
  int rank_;
};

}  // namespace phalanx
