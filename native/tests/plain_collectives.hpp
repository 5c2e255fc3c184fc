// Every collective on made-up numbers, compared with what plain loops say.
//
// All numbers are small integers, so sums are exact in every type and can be computed in any order.
#pragma once

#include <random>

#include "../core/collectives/collectives.hpp"
#include "ranks.hpp"

namespace ranks {

template <class T> struct DTypeOf;
template <> struct DTypeOf<std::int32_t> { static constexpr DType value = DType::kInt32; };
template <> struct DTypeOf<float> { static constexpr DType value = DType::kFloat32; };
template <> struct DTypeOf<double> { static constexpr DType value = DType::kFloat64; };
template <> struct DTypeOf<std::uint8_t> { static constexpr DType value = DType::kUInt8; };

// One rank's view of a series of collectives. All ranks call the same methods with the same numbers. Group: an Endpoint, or what has
// the same collectives.
template <class T, class Group = Endpoint>
class PlainCollectives {
 public:
  PlainCollectives(Group& group, std::uint64_t series) : self_(group), id_(series * 1000) {}

  // Every collective with tensors of this size.
  void each(std::size_t count) {
    const auto n = std::size_t(self_.num_ranks());
    all_reduce(count);
    barrier();
    for (int root = 0; root < int(n); ++root) {
      reduce(count, root);
      broadcast(count, root);
      gather(count, root);
      scatter(count, root);
    }
    all_gather(std::vector<std::size_t>(n, count));
    all_gather(std::vector<std::size_t>(n, count), true);
    reduce_scatter(std::vector<std::size_t>(n, count));
    all_to_all([&](int, int) { return count; });
    all_to_all([&](int from, int to) { return from > to ? count : 0; });
  }

  void all_reduce(std::size_t count, ReduceOp op = ReduceOp::kSum) {
    ++id_;
    std::vector<T> data = filled(me(), count);
    const Call call = start(Operation::kAllReduce, count, op);
    phalanx::all_reduce(self_, call, bytes(data), {});
    check_reduced(data, 0, op);
  }

  // In memory that all ranks map; where `is_symmetric` is false this rank uses memory of its own.
  void all_reduce_symmetric(const std::shared_ptr<SymmetricBlock>& block, std::size_t count, bool is_symmetric) {
    ++id_;
    std::vector<T> data = filled(me(), count);
    SymmetricPlace place;
    if (is_symmetric) {
      place = {block, 0};
      std::memcpy(block->own(), data.data(), count * sizeof(T));
    }
    const Call call = start(Operation::kAllReduce, count);
    phalanx::all_reduce(self_, call, is_symmetric ? block->own() : bytes(data), place);
    if (is_symmetric) std::memcpy(data.data(), block->own(), count * sizeof(T));
    check_reduced(data, 0);
  }

  void reduce(std::size_t count, int root) {
    ++id_;
    std::vector<T> data = filled(me(), count);
    const Call call = start(Operation::kReduce, count, ReduceOp::kSum, root);
    reduce_to_root(self_, call, bytes(data));
    if (me() == root) return check_reduced(data, 0);
    CHECK(data == filled(me(), count));
  }

  void broadcast(std::size_t count, int root) {
    ++id_;
    std::vector<T> data = filled(me(), count);
    const Call call = start(Operation::kBroadcast, count, ReduceOp::kSum, root);
    phalanx::broadcast(self_, call, bytes(data), count * sizeof(T));
    CHECK(data == filled(root, count));
  }

  // counts: one per rank.
  void all_gather(const std::vector<std::size_t>& counts, bool is_in_place = false) {
    ++id_;
    const std::vector<T> input = filled(me(), counts[index(me())]);
    auto outputs = rows(counts);
    if (is_in_place) outputs[index(me())] = input;
    const Call call = start(Operation::kAllGather, digest(counts));
    const auto pointers = pointers_of(outputs);
    phalanx::all_gather(self_, call, is_in_place ? pointers[index(me())] : bytes(input), pointers.data(),
                        sizes(counts).data());
    for (int peer = 0; peer < n(); ++peer) CHECK(outputs[index(peer)] == filled(peer, counts[index(peer)]));
  }

  void gather(std::size_t count, int root) {
    ++id_;
    const std::vector<T> input = filled(me(), count);
    auto outputs = rows(std::vector<std::size_t>(me() == root ? index(n()) : 0, count));
    const Call call = start(Operation::kGather, count, ReduceOp::kSum, root);
    phalanx::gather(self_, call, bytes(input), pointers_of(outputs).data(), count * sizeof(T));
    for (int peer = 0; peer < n() && me() == root; ++peer) CHECK(outputs[index(peer)] == filled(peer, count));
  }

  void scatter(std::size_t count, int root) {
    ++id_;
    std::vector<std::vector<T>> inputs;
    for (int peer = 0; peer < n() && me() == root; ++peer) inputs.push_back(filled(root * 1000 + peer, count));
    std::vector<T> output(count);
    const Call call = start(Operation::kScatter, count, ReduceOp::kSum, root);
    const auto pointers = pointers_of(inputs);
    phalanx::scatter(self_, call, pointers.data(), bytes(output), count * sizeof(T));
    CHECK(output == filled(root * 1000 + me(), count));
  }

  void reduce_scatter(const std::vector<std::size_t>& counts) {
    ++id_;
    std::vector<std::vector<T>> inputs;
    std::size_t offset = 0, own_offset = 0;
    for (int peer = 0; peer < n(); ++peer) {
      if (peer == me()) own_offset = offset;
      inputs.push_back(filled(me(), counts[index(peer)], offset));
      offset += counts[index(peer)];
    }
    std::vector<T> output(counts[index(me())]);
    const Call call = start(Operation::kReduceScatter, digest(counts));
    const auto pointers = pointers_of(inputs);
    phalanx::reduce_scatter(self_, call, pointers.data(), bytes(output), sizes(counts).data());
    check_reduced(output, own_offset);
  }

  // counts(from, to)
  template <class Counts>
  void all_to_all(const Counts& counts) {
    ++id_;
    std::vector<std::vector<T>> inputs;
    std::vector<std::size_t> in_counts, out_counts;
    for (int peer = 0; peer < n(); ++peer) {
      in_counts.push_back(counts(me(), peer));
      out_counts.push_back(counts(peer, me()));
      inputs.push_back(filled(me() * 1000 + peer, in_counts.back()));
    }
    auto outputs = rows(out_counts);
    const Call call = start(Operation::kAllToAll, 0);
    const auto in = pointers_of(inputs), out = pointers_of(outputs);
    phalanx::all_to_all(self_, call, in.data(), sizes(in_counts).data(), out.data(), sizes(out_counts).data());
    for (int peer = 0; peer < n(); ++peer)
      CHECK(outputs[index(peer)] == filled(peer * 1000 + me(), out_counts[index(peer)]));
  }

  void barrier() {
    const Call call = start(Operation::kBarrier, 0);
    phalanx::barrier(self_, call);
  }

  // One rank's arguments are bad; all others, in a large all_reduce, must hear of it and go on.
  void refusal(std::size_t count, int refuser) {
    ++id_;
    const Call call = start(Operation::kAllReduce, count);
    if (me() == refuser) return self_.refuse(call, "bad " + std::to_string(id_));
    std::vector<T> data = filled(me(), count);
    const Trouble trouble = trouble_of([&] { phalanx::all_reduce(self_, call, bytes(data), {}); }, 20);
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kPeerFailed));
    CHECK(!trouble.is_fatal);
    const std::string expected = "bad " + std::to_string(id_), text = trouble.detail.text;
    if (trouble.culprit == kElsewhere) {
      CHECK(text.ends_with(expected) && text.starts_with("rank " + std::to_string(refuser)));
    } else {
      CHECK_EQUAL(text, expected);
      if constexpr (std::is_same_v<Group, Endpoint>) CHECK_EQUAL(trouble.culprit, refuser);
    }
  }

  // The next operation, any of them, drawn from numbers that all ranks share.
  void random_one(std::mt19937& random, std::size_t most) {
    const auto below = [&](std::size_t limit) { return std::size_t(random() % limit); };
    const std::size_t kind = below(13);
    const std::size_t limit = below(2) == 0 ? 64 : most;
    const std::size_t count = below(limit);
    const int root = int(below(index(n())));
    std::vector<std::size_t> uneven;
    for (int peer = 0; peer < n(); ++peer) uneven.push_back(below(limit));
    switch (kind) {
      case 0: return all_reduce(count, below(2) == 0 ? ReduceOp::kSum : ReduceOp::kMax);
      case 1: return reduce(count, root);
      case 2: case 3: return broadcast(count, root);
      case 4: return all_gather(std::vector<std::size_t>(index(n()), count), below(2) == 0);
      case 5: return all_gather(uneven);
      case 6: return gather(count, root);
      case 7: case 8: return scatter(count, root);
      case 9: return reduce_scatter(std::vector<std::size_t>(index(n()), count));
      case 10: return reduce_scatter(uneven);
      case 11: return below(4) == 0 ? refusal(count, root) : barrier();
      default:
        const std::size_t salt = below(1000);
        return all_to_all([&](int from, int to) { return (salt + index(from) * 31 + index(to) * 17) % (limit / 2); });
    }
  }

 private:
  static std::size_t index(int rank) { return std::size_t(rank); }
  int me() const { return self_.rank(); }
  int n() const { return self_.num_ranks(); }

  T value(int rank, std::size_t at) const { return T((id_ * 31 + std::uint64_t(rank) * 7 + at * 13) % 11); }
  std::vector<T> filled(int rank, std::size_t count, std::size_t offset = 0) const {
    std::vector<T> data(count);
    for (std::size_t i = 0; i < count; ++i) data[i] = value(rank, i + offset);
    return data;
  }
  void check_reduced(const std::vector<T>& data, std::size_t offset, ReduceOp op = ReduceOp::kSum) const {
    for (std::size_t i = 0; i < data.size(); ++i) {
      T result = value(0, i + offset);
      for (int rank = 1; rank < n(); ++rank) {
        const T next = value(rank, i + offset);
        result = op == ReduceOp::kMax ? std::max(result, next) : T(result + next);
      }
      CHECK(data[i] == result);
    }
  }

  static Call start(Operation operation, std::uint64_t count, ReduceOp op = ReduceOp::kSum, int root = 0) {
    Call call = call_of(operation, count, DTypeOf<T>::value, root);
    call.op = op;
    return call;
  }
  static std::uint64_t digest(const std::vector<std::size_t>& counts) {
    std::uint64_t result = 17;
    for (const std::size_t count : counts) result = result * 1099511628211u + count;
    return result;
  }
  static std::byte* bytes(const std::vector<T>& data) {
    return const_cast<std::byte*>(reinterpret_cast<const std::byte*>(data.data()));
  }
  static std::vector<std::vector<T>> rows(const std::vector<std::size_t>& counts) {
    std::vector<std::vector<T>> all;
    for (const std::size_t count : counts) all.emplace_back(count);
    return all;
  }
  static std::vector<std::byte*> pointers_of(const std::vector<std::vector<T>>& all) {
    std::vector<std::byte*> pointers;
    for (const auto& row : all) pointers.push_back(bytes(row));
    return pointers;
  }
  static std::vector<std::size_t> sizes(const std::vector<std::size_t>& counts) {
    std::vector<std::size_t> all;
    for (const std::size_t count : counts) all.push_back(count * sizeof(T));
    return all;
  }

  Group& self_;
  std::uint64_t id_;
};

// The same random collectives on every rank, of two types, with pauses that differ between ranks.
template <class Group>
void run_random_series(Group& group, std::uint32_t seed, int operations, std::size_t most) {
  std::mt19937 shared(seed), own(seed * 100 + std::uint32_t(group.rank()));
  PlainCollectives<float, Group> floats(group, seed);
  PlainCollectives<std::uint8_t, Group> bytes(group, seed + 1);
  for (int i = 0; i < operations; ++i) {
    for (auto pauses = own() % 8 == 0 ? own() % 64 : 0; pauses > 0; --pauses) sched_yield();
    if (shared() % 2 == 0) floats.random_one(shared, most); else bytes.random_one(shared, most * 4);
  }
}

}  // namespace ranks
