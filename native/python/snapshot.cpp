// The journal as Python sees it: plain dictionaries for phalanx.diagnosis.
#include <nanobind/stl/string.h>

#include <cstring>

#include "rank_endpoint.hpp"

namespace phalanx::python {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

std::string location_text(const Layout& layout, int rank, std::uint64_t index) {
  if (index == 0) return "";
  char text[kLocationWords * 8 + 1] = {};
  const Location& location = layout.location(rank, index);
  for (std::size_t i = 0; i < kLocationWords; ++i) {
    const std::uint64_t word = location.words[i].load(kRelaxed);
    std::memcpy(text + i * 8, &word, 8);
  }
  return text;
}

nb::object entry_of(const Layout& layout, int rank, const JournalEntry& entry) {
  const std::uint64_t seq = entry.seq.load(std::memory_order_acquire);
  if (seq == 0) return nb::none();
  const std::uint64_t what = entry.what.load(kRelaxed);
  const auto num_dims = std::min<std::size_t>((what >> 24) & 0xff, kShapeDims);
  nb::dict result;
  result["seq"] = seq;
  result["operation"] = operation_name(static_cast<Operation>(what & 0xff));
  result["dtype"] = dtype_name(static_cast<DType>((what >> 8) & 0xff));
  result["op"] = reduce_op_name(static_cast<ReduceOp>((what >> 16) & 0xff));
  result["root"] = static_cast<std::int32_t>(what >> 32);
  result["count"] = entry.count.load(kRelaxed);
  result["location"] = location_text(layout, rank, entry.location.load(kRelaxed));
  result["seconds_ago"] = static_cast<double>(monotonic_ns() - entry.start_ns.load(kRelaxed)) * 1e-9;
  nb::list shape;
  for (std::size_t i = 0; i < num_dims; ++i) shape.append(entry.shape[i].load(kRelaxed));
  result["shape"] = nb::tuple(shape);
  // Overwritten while we read: better nothing than a mixture.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.seq.load(std::memory_order_relaxed) != seq) return nb::none();
  return result;
}

nb::object entry_with(const Layout& layout, int rank, Seq seq) {
  const JournalEntry& found = layout.journal(rank, seq);
  if (found.seq.load(std::memory_order_acquire) != seq) return nb::none();
  return entry_of(layout, rank, found);
}

}  // namespace

nb::list snapshot_of(const Layout& layout, int num_ranks, const std::function<std::int32_t(int)>& exit_status) {
  static constexpr const char* states[] = {"absent", "present", "left", "dead"};
  nb::list ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const Member& member = layout.member(rank);
    const auto state = member.state.load();
    const Seq arrived = layout.progress(rank).arrived.load();
    nb::dict row;
    row["rank"] = rank;
    row["pid"] = member.pid.load();
    row["is_thread"] = member.is_thread.load() != 0;
    row["state"] = states[static_cast<std::size_t>(state)];
    row["exit_status"] = state == MemberState::kDead ? exit_status(rank) : kStatusUnknown;
    row["arrived"] = arrived;
    row["finished"] = layout.progress(rank).finished.load();
    row["entry"] = arrived == 0 ? nb::none() : entry_with(layout, rank, arrived);
    row["mail"] = entry_of(layout, rank, layout.mail_journal(rank));
    ranks.append(row);
  }
  return ranks;
}

nb::object RankEndpoint::entry(int rank, Seq seq) const { return entry_with(endpoint_->layout(), rank, seq); }

nb::list RankEndpoint::snapshot() {
  return snapshot_of(endpoint_->layout(), endpoint_->num_ranks(),
                     [this](int rank) { return endpoint_->peers().exit_status(rank); });
}

}  // namespace phalanx::python
