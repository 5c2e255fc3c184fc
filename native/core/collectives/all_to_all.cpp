#include "collectives.hpp"
#include "pipeline.hpp"

namespace phalanx {
namespace {

// Only the sender knows how much it sends. It writes that into its row of the size table, and receivers check it.
std::size_t agree_on_steps(Endpoint& self, std::size_t set, const std::size_t* output_bytes) {
  std::uint64_t steps = 0;
  for (int peer = 0; peer < self.num_ranks(); ++peer) {
    steps = std::max(steps, self.layout().post(peer, self.seq()).extra);
    const std::uint64_t sent = self.layout().sizes(peer, set)[self.rank()];
    if (sent != output_bytes[peer])
      self.fail(FaultKind::kMismatch, peer, {.wanted_bytes = output_bytes[peer], .found_bytes = sent});
  }
  return steps;
}

}  // namespace

void all_to_all(Endpoint& self, const Call& call, const std::byte* const* inputs, const std::size_t* input_bytes,
                std::byte* const* outputs, const std::size_t* output_bytes) {
  self.begin(call);
  const int n = self.num_ranks(), me = self.rank();
  const std::size_t stride = self.stage(StageUse::kHalf).part_bytes(n);
  const std::size_t largest = std::max(*std::max_element(input_bytes, input_bytes + n), *std::max_element(output_bytes, output_bytes + n));
  const Stage stage = self.claim_stage(call, StageUse::kHalf, {std::size_t(n), largest, stride});
  std::size_t total_out = 0;
  for (int peer = 0; peer < n; ++peer) {
    self.layout().sizes(me, stage.set)[peer] = input_bytes[peer];
    total_out += output_bytes[peer];
  }
  const bool is_streaming = total_out >= kStreamingBytes;
  const auto staged = [&](int rank, std::size_t step, int part) {
    return stage.at(rank, step) + std::size_t(part) * stride;
  };
  const auto produce = [&](std::size_t step) {
    for (int peer = 0; peer < n; ++peer) {
      const std::size_t length = chunk_length(input_bytes[peer], step, stride);
      if (peer != me) self.writer().write(staged(me, step, peer), inputs[peer] + step * stride, length);
    }
  };
  const auto consume = [&](std::size_t step) {
    for (int turn = 0; turn < n; ++turn) {
      const int peer = (me + turn) % n;
      const std::byte* from = peer == me ? inputs[me] + step * stride : staged(peer, step, me);
      const std::size_t length = chunk_length(output_bytes[peer], step, stride);
      if (length != 0 && outputs[peer] + step * stride != from)
        copy_out(outputs[peer] + step * stride, from, length, is_streaming);
    }
  };
  produce(0);
  self.publish(call, nullptr, 0, steps_for(largest, stride));
  self.await_arrivals(call);
  run_steps(self, call, meet_all(self), agree_on_steps(self, stage.set, output_bytes), produce, consume);
  self.end();
}

}  // namespace phalanx
