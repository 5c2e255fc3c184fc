#include "collectives.hpp"
#include "pipeline.hpp"

namespace phalanx {
namespace {

void gather_one_shot(Endpoint& self, const Call& call, const std::byte* input, std::byte* const* outputs,
                     std::size_t bytes) {
  const bool is_root = self.rank() == call.root;
  self.publish(call, input, is_root ? 0 : bytes);
  if (!is_root) return self.leave_unseen();
  self.await_arrivals(call);
  for (int peer = 0; peer < self.num_ranks() && bytes != 0; ++peer)
    std::memmove(outputs[peer], peer == self.rank() ? input : self.payload(peer, bytes), bytes);
}

}  // namespace

void gather(Endpoint& self, const Call& call, const std::byte* input, std::byte* const* outputs, std::size_t bytes) {
  self.begin(call);
  const int n = self.num_ranks(), me = self.rank();
  const bool is_root = me == call.root;
  if (choose_algorithm(call.operation, bytes, n) == Algorithm::kOneShot) {
    gather_one_shot(self, call, input, outputs, bytes);
  } else {
    const std::size_t stride = self.layout().chunk_bytes();
    const Stage stage = self.claim_stage(call, StageUse::kHalf, {1, bytes, stride});
    const bool is_streaming = bytes * std::size_t(n) >= kStreamingBytes;
    run_pipeline(
        self, call, meet_through(self, call.root), steps_for(bytes, stride),
        [&](std::size_t step) {
          if (!is_root)
            self.writer().write(stage.at(me, step), input + step * stride, chunk_length(bytes, step, stride));
        },
        [&](std::size_t step) {
          for (int peer = 0; is_root && peer < n; ++peer) {
            const std::byte* from = peer == me ? input + step * stride : stage.at(peer, step);
            std::byte* output = outputs[peer] + step * stride;
            if (output != from) copy_out(output, from, chunk_length(bytes, step, stride), is_streaming);
          }
        });
  }
  self.end();
}

}  // namespace phalanx
