// How a reduction over all ranks becomes one inside each host and one over the hosts.
#pragma once

#include <vector>

#include "../call.hpp"
#include "../kernels.hpp"
#include "host_map.hpp"

namespace phalanx {

class HostReduction {
 public:
  HostReduction(const HostMap& map, const Call& call);
  HostReduction(const HostReduction&) = delete;

  ReduceOp inside() const noexcept { return inside_; }
  // Whether the reduction inside a host of one rank changes anything.
  bool changes_one() const noexcept { return inside_ == ReduceOp::kPremulSum; }
  // destination = sources of all hosts, in host order. The destination may be one of them.
  void over_hosts(std::byte* destination, const std::byte* const* sources, std::size_t count) const {
    reduce(across_, destination, sources, num_hosts_, count);
  }

 private:
  int num_hosts_;
  ReduceOp inside_;
  Reduction across_;
  std::vector<double> factors_;
};

}  // namespace phalanx
