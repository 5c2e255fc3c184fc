#include "collectives.hpp"
#include "pipeline.hpp"
#include "reduction_sources.hpp"

namespace phalanx {
namespace {

std::size_t total_of(const std::size_t* bytes, int num_ranks) {
  std::size_t total = 0;
  for (int peer = 0; peer < num_ranks; ++peer) total += bytes[peer];
  return total;
}

void reduce_scatter_one_shot(Endpoint& self, const Call& call, const std::byte* const* inputs, std::byte* output,
                             const std::size_t* bytes) {
  const int me = self.rank();
  std::byte* slot = self.layout().slot(me, self.seq());
  std::size_t own_offset = 0;
  for (int peer = 0; peer < self.num_ranks(); ++peer) {
    if (peer == me) own_offset = static_cast<std::size_t>(slot - self.layout().slot(me, self.seq()));
    self.slot_writer().write(slot, inputs[peer], bytes[peer]);
    slot += bytes[peer];
  }
  self.publish(call, nullptr, 0);
  self.await_arrivals(call);
  ReductionSources sources(self, call);
  for (int peer = 0; peer < self.num_ranks(); ++peer)
    sources.set(peer, self.layout().slot(peer, self.seq()) + own_offset);
  sources.reduce_into(output, bytes[me] / item_bytes(call.dtype));
}

}  // namespace

void reduce_scatter(Endpoint& self, const Call& call, const std::byte* const* inputs, std::byte* output,
                    const std::size_t* bytes) {
  self.begin(call);
  const int n = self.num_ranks(), me = self.rank();
  const std::size_t total = total_of(bytes, n);
  if (choose_algorithm(call.operation, total, n) == Algorithm::kOneShot) {
    reduce_scatter_one_shot(self, call, inputs, output, bytes);
  } else {
    const std::size_t stride = self.stage(StageUse::kHalf).part_bytes(n);
    const std::size_t largest = *std::max_element(bytes, bytes + n);
    const Stage stage = self.claim_stage(call, StageUse::kHalf, {std::size_t(n), largest, stride});
    const auto staged = [&](int rank, std::size_t step, int part) {
      return stage.at(rank, step) + std::size_t(part) * stride;
    };
    run_pipeline(
        self, call, meet_all(self), steps_for(largest, stride),
        [&](std::size_t step) {
          for (int peer = 0; peer < n; ++peer) {
            if (peer == me) continue;
            const std::size_t length = chunk_length(bytes[peer], step, stride);
            self.writer().write(staged(me, step, peer), inputs[peer] + step * stride, length);
          }
        },
        [&](std::size_t step) {
          const std::size_t length = chunk_length(bytes[me], step, stride);
          if (length == 0) return;
          ReductionSources sources(self, call);
          for (int peer = 0; peer < n; ++peer)
            sources.set(peer, peer == me ? inputs[me] + step * stride : staged(peer, step, me));
          sources.reduce_into(output + step * stride, length / item_bytes(call.dtype));
        });
  }
  self.end();
}

}  // namespace phalanx
