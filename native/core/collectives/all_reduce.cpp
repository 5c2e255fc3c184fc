#include "collectives.hpp"
#include "pipeline.hpp"
#include "reduction_sources.hpp"

namespace phalanx {
namespace {

void all_reduce_one_shot(Endpoint& self, const Call& call, std::byte* data, std::size_t bytes) {
  self.publish(call, data, bytes);
  self.await_arrivals(call);
  ReductionSources sources(self, call);
  for (int peer = 0; peer < self.num_ranks(); ++peer)
    sources.set(peer, peer == self.rank() ? data : self.payload(peer, bytes));
  sources.reduce_into(data, call.count);
}

// For reduce too; then only the root collects the parts. Each rank reduces its part of every chunk. It writes only the
// parts that others reduce into its stage, and reads its own part directly from its tensor.
class StagedAllReduce {
 public:
  StagedAllReduce(Endpoint& self, const Call& call, std::byte* data)
      : self_(self),
        call_(call),
        data_(data),
        item_(item_bytes(call.dtype)),
        stride_(self.stage(StageUse::kHalf).part_bytes(self.num_ranks())),
        partition_(call.count, stride_ / item_ * std::size_t(self.num_ranks()), self.num_ranks()),
        stage_(self.claim_stage(call, StageUse::kHalf,
                                {std::size_t(self.num_ranks()), partition_.steps * partition_.part * item_, partition_.part * item_})),
        is_root_(call.operation == Operation::kAllReduce || self.rank() == call.root),
        is_streaming_(is_out_of_cache(call.count * item_, self.num_ranks())) {}

  std::size_t steps() const { return partition_.steps; }

  void produce(std::size_t step) {
    for (int part = 0; part < self_.num_ranks(); ++part) {
      if (part == self_.rank()) continue;
      self_.writer().write(staged(self_.rank(), step, part), data_ + partition_.begin(step, part) * item_,
                           partition_.length(step, part) * item_);
    }
  }

  void consume(std::size_t step) {
    const int me = self_.rank();
    std::byte* mine = data_ + partition_.begin(step, me) * item_;
    const std::size_t count = partition_.length(step, me);
    ReductionSources sources(self_, call_);
    for (int peer = 0; peer < self_.num_ranks(); ++peer)
      sources.set(peer, peer == me ? mine : staged(peer, step, me));
    std::byte* result = staged(me, step, me);
    sources.reduce_into(is_root_ ? mine : result, count);
    if (call_.operation == Operation::kAllReduce) self_.writer().write(result, mine, count * item_);
  }

  void finish(std::size_t step) {
    if (!is_root_) return;
    for (int part = 0; part < self_.num_ranks(); ++part) {
      if (part == self_.rank()) continue;
      copy_out(data_ + partition_.begin(step, part) * item_, staged(part, step, part),
               partition_.length(step, part) * item_, is_streaming_);
    }
  }

 private:
  std::byte* staged(int rank, std::size_t step, int part) const {
    return stage_.at(rank, step) + std::size_t(part) * stride_;
  }

  Endpoint& self_;
  const Call& call_;
  std::byte* data_;
  std::size_t item_;
  std::size_t stride_;
  Partition partition_;
  Stage stage_;
  bool is_root_;
  bool is_streaming_;
};

// Every rank reduces its part directly in the memory of all ranks.
void reduce_in_place(Endpoint& self, const Call& call, const SymmetricPlace& place) {
  const std::size_t item = item_bytes(call.dtype);
  const std::size_t block = 128 * 1024 / item;  // a block's results are still in the cache when they are copied to the peers
  const Partition partition(call.count, call.count, self.num_ranks());
  const std::size_t begin = partition.begin(0, self.rank());
  const std::size_t end = begin + partition.length(0, self.rank());
  ReductionSources sources(self, call);
  for (std::size_t at = begin; at < end; at += block) {
    const std::size_t count = std::min(block, end - at);
    for (int peer = 0; peer < self.num_ranks(); ++peer) sources.set(peer, place.at(peer) + at * item);
    std::byte* mine = place.at(self.rank()) + at * item;
    sources.reduce_into(mine, count);
    for (int peer = 0; peer < self.num_ranks(); ++peer) {
      if (peer != self.rank()) std::memcpy(place.at(peer) + at * item, mine, count * item);
    }
  }
  meet(self, call, meet_all(self), 1);  // nobody's tensor may change while others still read it
}

enum class Symmetry { kNone, kSome, kAll };

Symmetry symmetry_of_arrivals(const Endpoint& self) {
  const auto offset_of = [&](int peer) {
    std::uint64_t offset = 0;
    std::memcpy(&offset, self.payload(peer, sizeof offset), sizeof offset);
    return offset;
  };
  const std::uint64_t first = self.layout().post(0, self.seq()).extra;
  bool is_any = first != 0, is_same = true;
  for (int peer = 1; peer < self.num_ranks(); ++peer) {
    const std::uint64_t number = self.layout().post(peer, self.seq()).extra;
    is_any |= number != 0;
    is_same = is_same && number == first && offset_of(peer) == offset_of(0);
  }
  return !is_any ? Symmetry::kNone : is_same ? Symmetry::kAll : Symmetry::kSome;
}

// A rank whose tensor is symmetric writes nothing into its stage before it knows that another rank's is not.
void all_reduce_large(Endpoint& self, const Call& call, std::byte* data, const SymmetricPlace& place) {
  StagedAllReduce staged(self, call, data);
  if (!place.block) staged.produce(0);
  self.publish(call, reinterpret_cast<const std::byte*>(&place.offset), sizeof place.offset, place.number());
  self.await_arrivals(call);
  const Symmetry symmetry = symmetry_of_arrivals(self);
  if (symmetry == Symmetry::kAll) return reduce_in_place(self, call, place);
  std::size_t met = 0;
  if (symmetry == Symmetry::kSome) {
    if (place.block) staged.produce(0);
    meet(self, call, meet_all(self), ++met);
  }
  run_steps(
      self, call, meet_all(self), staged.steps(), [&](std::size_t s) { staged.produce(s); },
      [&](std::size_t s) { staged.consume(s); }, [&](std::size_t s) { staged.finish(s); }, met);
}

// Only the root needs the others' data, so the others go on at once.
void reduce_one_shot(Endpoint& self, const Call& call, std::byte* data, std::size_t bytes) {
  const bool is_root = self.rank() == call.root;
  self.publish(call, data, is_root ? 0 : bytes);
  if (!is_root) return self.leave_unseen();
  self.await_arrivals(call);
  ReductionSources sources(self, call);
  for (int peer = 0; peer < self.num_ranks(); ++peer)
    sources.set(peer, peer == self.rank() ? data : self.payload(peer, bytes));
  sources.reduce_into(data, call.count);
}

}  // namespace

void all_reduce(Endpoint& self, const Call& call, std::byte* data, const SymmetricPlace& place) {
  const std::size_t bytes = call.count * item_bytes(call.dtype);
  self.begin(call);
  if (choose_algorithm(call.operation, bytes, self.num_ranks()) == Algorithm::kOneShot) {
    all_reduce_one_shot(self, call, data, bytes);
  } else {
    all_reduce_large(self, call, data, place);
  }
  self.end();
}

void reduce_to_root(Endpoint& self, const Call& call, std::byte* data) {
  const std::size_t bytes = call.count * item_bytes(call.dtype);
  self.begin(call);
  if (choose_algorithm(call.operation, bytes, self.num_ranks()) == Algorithm::kOneShot) {
    reduce_one_shot(self, call, data, bytes);
  } else {
    all_reduce_large(self, call, data, {});
  }
  self.end();
}

}  // namespace phalanx
