// The buffers a rank reduces, one per rank, always in rank order.
#pragma once

#include <array>

#include "../endpoint.hpp"
#include "../kernels.hpp"

namespace phalanx {

class ReductionSources {
 public:
  // Reads the peers' factors from their posts, so make it only after their arrival.
  ReductionSources(const Endpoint& self, const Call& call)
      : how_{call.dtype, call.op, self.num_ranks(), nullptr}, num_ranks_(self.num_ranks()) {
    if (call.op != ReduceOp::kPremulSum) return;
    for (int peer = 0; peer < num_ranks_; ++peer)
      factors_[std::size_t(peer)] = self.layout().post(peer, self.seq()).factor;
    how_.factors = factors_.data();
  }
  ReductionSources(const ReductionSources&) = delete;

  void set(int peer, const std::byte* data) { sources_[std::size_t(peer)] = data; }
  void reduce_into(std::byte* destination, std::size_t count) {
    reduce(how_, destination, sources_.data(), num_ranks_, count);
  }

 private:
  Reduction how_;
  int num_ranks_;
  // Left uninitialised on purpose: only the first num_ranks_ are ever read.
  std::array<const std::byte*, kMaxRanks> sources_;
  std::array<double, kMaxRanks> factors_;
};

}  // namespace phalanx
