#include "host_reduction.hpp"

namespace phalanx {
namespace {

// Types in which the sum of a few ranks may not fit, though their average does.
bool overflows_soon(DType dtype) {
  return dtype == DType::kFloat16 || (dtype >= DType::kFloat8E4M3 && dtype <= DType::kFloat8E5M2Z);
}

}  // namespace

HostReduction::HostReduction(const HostMap& map, const Call& call)
    : num_hosts_(map.num_hosts()), inside_(call.op), across_{call.dtype, call.op, map.num_ranks(), nullptr} {
  if (call.op == ReduceOp::kPremulSum) {  // each rank has its own factor
    across_.op = ReduceOp::kSum;
  } else if (call.op == ReduceOp::kAvg && overflows_soon(call.dtype)) {
    for (int host = 0; host < num_hosts_; ++host)
      factors_.push_back(double(map.num_ranks_of(host)) / double(map.num_ranks()));
    across_.op = ReduceOp::kPremulSum;
    across_.factors = factors_.data();
  } else if (call.op == ReduceOp::kAvg) {
    inside_ = ReduceOp::kSum;
  }
}

}  // namespace phalanx
