// A group as it is after very many operations, without running them.
#pragma once

#include "../core/collectives/collectives.hpp"
#include "ranks.hpp"

namespace ranks {

struct EndpointSeq {
  using Pointer = std::atomic<Seq> Endpoint::*;
  friend Pointer member(EndpointSeq);
};
template struct Opened<EndpointSeq, &Endpoint::seq_>;

// Numbers of operations after which a count of 31 or 32 bits has wrapped, or is about to.
inline constexpr Seq kVeryMany[] = {(1ull << 31) - 20, 1ull << 31, (1ull << 31) + (1ull << 30), (1ull << 32) - 9, 1ull << 32,
                                    1ull << 33, 1ull << 45};

// As if every rank had run so many small operations. All ranks must call it at the same place.
inline void skip_operations(const EndpointPtr& endpoint, Seq count) {
  for (int i = 0; i < 2; ++i) barrier(*endpoint, call_of(Operation::kBarrier));  // nobody still waits for words of the first one
  ((*endpoint).*member(EndpointSeq{})).fetch_add(count);
  Progress& progress = endpoint->layout().progress(endpoint->rank());
  progress.arrived.fetch_add(count);
  progress.finished.fetch_add(count);
  for (int peer = 0; peer < endpoint->num_ranks(); ++peer)
    wait_until([&] { return endpoint->layout().progress(peer).arrived.load() >= endpoint->seq(); });
}

}  // namespace ranks
