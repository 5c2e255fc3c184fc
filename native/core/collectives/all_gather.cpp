#include "collectives.hpp"
#include "pipeline.hpp"

namespace phalanx {
namespace {

void all_gather_one_shot(Endpoint& self, const Call& call, const std::byte* input, std::byte* const* outputs,
                         const std::size_t* bytes) {
  const std::size_t own = bytes[self.rank()];
  self.publish(call, input, own);
  if (own != 0 && outputs[self.rank()] != input) std::memcpy(outputs[self.rank()], input, own);
  self.await_arrivals(call);
  for (int peer = 0; peer < self.num_ranks(); ++peer) {
    if (peer != self.rank() && bytes[peer] != 0) std::memcpy(outputs[peer], self.payload(peer, bytes[peer]), bytes[peer]);
  }
}

}  // namespace

void all_gather(Endpoint& self, const Call& call, const std::byte* input, std::byte* const* outputs,
                const std::size_t* bytes) {
  self.begin(call);
  const int n = self.num_ranks(), me = self.rank();
  const std::size_t largest = *std::max_element(bytes, bytes + n);
  if (choose_algorithm(call.operation, largest, n) == Algorithm::kOneShot) {
    all_gather_one_shot(self, call, input, outputs, bytes);
  } else {
    const std::size_t stride = self.layout().chunk_bytes();
    const Stage stage = self.claim_stage(call, StageUse::kHalf, {1, largest, stride});
    const bool is_streaming = largest * std::size_t(n) >= kStreamingBytes;
    run_pipeline(
        self, call, meet_all(self), steps_for(largest, stride),
        [&](std::size_t step) {
          const std::size_t length = chunk_length(bytes[me], step, stride);
          self.writer().write(stage.at(me, step), input + step * stride, length);
        },
        [&](std::size_t step) {
          for (int turn = 0; turn < n; ++turn) {
            const int peer = (me + turn) % n;  // so that not all ranks read the same peer's memory at once
            std::byte* output = outputs[peer] + step * stride;
            const std::byte* from = peer == me ? input + step * stride : stage.at(peer, step);
            if (output != from) copy_out(output, from, chunk_length(bytes[peer], step, stride), is_streaming);
          }
        });
  }
  self.end();
}

}  // namespace phalanx
