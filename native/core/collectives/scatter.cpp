#include "collectives.hpp"
#include "pipeline.hpp"

namespace phalanx {
namespace {

void scatter_one_shot(Endpoint& self, const Call& call, const std::byte* const* inputs, std::byte* output,
                      std::size_t bytes) {
  const int me = self.rank();
  const bool is_root = me == call.root;
  if (is_root && bytes != 0) {
    std::byte* slot = self.layout().slot(me, self.seq());
    for (int peer = 0; peer < self.num_ranks(); ++peer)
      self.slot_writer().write(slot + std::size_t(peer) * bytes, inputs[peer], bytes);
    std::memmove(output, inputs[me], bytes);
  }
  self.publish(call, nullptr, 0);
  self.leave_unseen();
  if (is_root) return;
  self.await_arrival(call, call.root);
  if (bytes != 0) std::memcpy(output, self.layout().slot(call.root, self.seq()) + std::size_t(me) * bytes, bytes);
}

}  // namespace

void scatter(Endpoint& self, const Call& call, const std::byte* const* inputs, std::byte* output, std::size_t bytes) {
  self.begin(call);
  const int n = self.num_ranks(), me = self.rank();
  const bool is_root = me == call.root;
  if (choose_algorithm(call.operation, bytes * std::size_t(n), n) == Algorithm::kOneShot) {
    scatter_one_shot(self, call, inputs, output, bytes);
  } else {
    const StageUse use = stage_use(self, bytes * std::size_t(n));
    Stage stage = self.stage(use);
    const std::size_t stride = stage.part_bytes(n);
    const auto claim = [&] {
      if (is_root) stage = self.claim_stage(call, use, {std::size_t(n), bytes, stride});
    };
    const bool is_streaming = bytes >= kStreamingBytes;
    const auto staged = [&](std::size_t step, int peer) {
      return stage.at(call.root, step) + std::size_t(peer) * stride;
    };
    const auto produce = [&](std::size_t step) {
      for (int peer = 0; is_root && peer < n; ++peer) {
        if (peer != me)
          self.writer().write(staged(step, peer), inputs[peer] + step * stride, chunk_length(bytes, step, stride));
      }
    };
    const auto consume = [&](std::size_t step) {
      const std::byte* from = is_root ? inputs[me] + step * stride : staged(step, me);
      if (output + step * stride != from)
        copy_out(output + step * stride, from, chunk_length(bytes, step, stride), is_streaming);
    };
    run_rooted(self, call, use, steps_for(bytes, stride), claim, produce, consume);
  }
  self.end();
}

}  // namespace phalanx
