#include "collectives.hpp"
#include "pipeline.hpp"

namespace phalanx {
namespace {

// The root goes on at once: it may run kPosts operations ahead of its readers.
void broadcast_one_shot(Endpoint& self, const Call& call, std::byte* data, std::size_t bytes) {
  const bool is_root = self.rank() == call.root;
  self.publish(call, data, is_root ? bytes : 0);
  self.leave_unseen();
  if (is_root) return;
  self.await_arrival(call, call.root);
  if (bytes != 0) std::memcpy(data, self.payload(call.root, bytes), bytes);
}

}  // namespace

void broadcast(Endpoint& self, const Call& call, std::byte* data, std::size_t bytes) {
  self.begin(call);
  if (choose_algorithm(call.operation, bytes, self.num_ranks()) == Algorithm::kOneShot) {
    broadcast_one_shot(self, call, data, bytes);
  } else {
    const bool is_root = self.rank() == call.root;
    const StageUse use = stage_use(self, bytes);
    Stage stage = self.stage(use);
    const std::size_t stride = chunk_stride(self, stage.chunk_bytes, bytes);
    const auto claim = [&] {
      if (is_root) stage = self.claim_stage(call, use, {1, bytes, stride});
    };
    const bool is_streaming = bytes >= kStreamingBytes;
    const auto buffer = [&](std::size_t step) { return stage.at(call.root, step); };
    const auto produce = [&](std::size_t step) {
      if (is_root) self.writer().write(buffer(step), data + step * stride, chunk_length(bytes, step, stride));
    };
    const auto consume = [&](std::size_t step) {
      if (!is_root) copy_out(data + step * stride, buffer(step), chunk_length(bytes, step, stride), is_streaming);
    };
    run_rooted(self, call, use, steps_for(bytes, stride), claim, produce, consume);
  }
  self.end();
}

}  // namespace phalanx
