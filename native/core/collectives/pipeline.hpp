// The shape all chunked collectives share: produce a chunk, meet, consume the peers' chunks, go on.
//
//   produce(0) | arrive, meet all | consume(0) produce(1) | post 1, meet | finish(0) consume(1) produce(2) | ...
//
// There is one meeting per chunk. Two stage buffers suffice: chunk s+1 goes where chunk s-1 was, and a peer posts step s
// only after it has consumed s-1. finish(s) reads results that peers made in consume(s). A peer's results lie where its
// own input would have been, a place that produce() never writes.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "../algorithm.hpp"
#include "../endpoint.hpp"
#include "../kernels.hpp"

namespace phalanx {

// A run of elements cut into chunks, each chunk into one part per rank. Parts have fixed places in a stage buffer.
struct Partition {
  Partition(std::size_t total_items, std::size_t items_per_chunk, int num_ranks)
      : total(total_items),
        ranks(std::size_t(num_ranks)),
        steps(std::max<std::size_t>(1, (total_items + items_per_chunk - 1) / items_per_chunk)),
        chunk((total_items + steps - 1) / steps) {
    part = std::max<std::size_t>(1, (chunk + ranks - 1) / ranks);
    chunk = part * ranks;
    steps = std::max<std::size_t>(1, (total + chunk - 1) / chunk);
  }
  std::size_t begin(std::size_t step, int rank) const { return std::min(total, step * chunk + part * std::size_t(rank)); }
  std::size_t length(std::size_t step, int rank) const { return begin_next(step, rank) - begin(step, rank); }

  std::size_t total, ranks, steps, chunk;
  std::size_t part;

 private:
  std::size_t begin_next(std::size_t step, int rank) const {
    return std::min(total, step * chunk + part * std::size_t(rank + 1));
  }
};

// The ranks that a rank waits for between chunks: all, or, if only the root has data for it or needs its data, only the root.
struct Meeting {
  int first;
  int last;
};

inline Meeting meet_all(const Endpoint& self) { return {0, self.num_ranks()}; }
inline Meeting meet_through(const Endpoint& self, int root) {
  return self.rank() == root ? meet_all(self) : Meeting{root, root + 1};
}

struct NoFinish {
  void operator()(std::size_t) const {}
};

inline void meet(Endpoint& self, const Call& call, Meeting meeting, std::size_t step) {
  self.post_step(step);
  self.await_step(call, step, meeting.first, meeting.last);
}

// Everything after the first meeting, which was step `met`.
template <class Produce, class Consume, class Finish = NoFinish>
void run_steps(Endpoint& self, const Call& call, Meeting meeting, std::size_t steps, Produce produce, Consume consume,
               Finish finish = {}, std::size_t met = 0) {
  constexpr bool has_finish = !std::is_same_v<Finish, NoFinish>;
  for (std::size_t step = 0; step < steps; ++step) {
    consume(step);
    const bool is_last = step + 1 == steps;
    if (!is_last) produce(step + 1);
    if (!is_last || has_finish) meet(self, call, meeting, met + step + 1);
    finish(step);
  }
}

template <class Produce, class Consume, class Finish = NoFinish>
void run_pipeline(Endpoint& self, const Call& call, Meeting meeting, std::size_t steps, Produce produce,
                  Consume consume, Finish finish = {}) {
  if (steps > 0) produce(0);
  self.publish(call, nullptr, 0);
  self.await_arrivals(call);
  run_steps(self, call, meeting, steps, produce, consume, finish);
}

// For the whole stage. If a root waited for all ranks before it published, it could not learn that another rank also
// calls itself the root. So all ranks meet first, and chunk 0 gets a step of its own.
template <class Prepare, class Produce, class Consume>
void run_whole_pipeline(Endpoint& self, const Call& call, Meeting meeting, std::size_t steps, Prepare prepare,
                        Produce produce, Consume consume) {
  self.publish(call, nullptr, 0);
  self.await_arrivals(call);
  prepare();
  produce(0);
  meet(self, call, meeting, 1);
  run_steps(self, call, meeting, steps, produce, consume, NoFinish{}, 1);
}

// A rooted operation, in halves or with the whole stage. `claim` makes the root's part of it writable.
template <class Claim, class Produce, class Consume>
void run_rooted(Endpoint& self, const Call& call, StageUse use, std::size_t steps, Claim claim, Produce produce,
                Consume consume) {
  const Meeting meeting = meet_through(self, call.root);
  if (use == StageUse::kWhole) return run_whole_pipeline(self, call, meeting, steps, claim, produce, consume);
  claim();
  run_pipeline(self, call, meeting, steps, produce, consume);
}

inline void copy_out(std::byte* destination, const std::byte* source, std::size_t bytes, bool is_streaming) {
  if (bytes == 0) return;
  if (is_streaming) {
    copy_streaming(destination, source, bytes);
  } else {
    std::memcpy(destination, source, bytes);
  }
}

// The size of chunk number `step` of a block of `total` bytes that is cut into chunks of `stride` bytes.
inline std::size_t chunk_length(std::size_t total, std::size_t step, std::size_t stride) {
  const std::size_t start = step * stride;
  return start >= total ? 0 : std::min(stride, total - start);
}

inline std::size_t steps_for(std::size_t bytes, std::size_t stride) { return (bytes + stride - 1) / stride; }

// Large chunks pay off once an operation has several: they leave the producer's own cache before they are read.
inline StageUse stage_use(const Endpoint& self, std::size_t bytes) {
  return bytes > 4 * self.layout().chunk_bytes() ? StageUse::kWhole : StageUse::kHalf;
}

// How much of a buffer to fill before a meeting. If every rank has a core, smaller chunks let the ranks work at the same
// time on what would fit into one chunk. If not, one more meeting costs more time than it saves.
inline std::size_t chunk_stride(const Endpoint& self, std::size_t room, std::size_t bytes) {
  constexpr std::size_t kPieces = 2;
  const std::size_t least = is_slow_between_caches() ? 16 * 1024 : 64 * 1024;
  if (self.is_crowded()) return room;
  const std::size_t piece = (bytes / kPieces + kCacheLine - 1) / kCacheLine * kCacheLine;
  return std::min(room, std::max(least, piece));
}

}  // namespace phalanx
