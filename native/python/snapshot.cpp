// The journal as Python sees it: plain dictionaries for phalanx.diagnosis.
#include <nanobind/stl/string.h>

#include <cstring>

#include "rank_endpoint.hpp"

namespace phalanx::python {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

nb::object entry_of(const Layout& layout, int rank, const JournalEntry& entry) {
  const std::uint64_t seq = entry.seq.load(std::memory_order_acquire);
  if (seq == 0) return nb::none();
  const std::uint64_t what = entry.what.load(kRelaxed);
  const auto num_dims = static_cast<std::uint32_t>(std::min<std::size_t>((what >> 24) & 0x7f, kShapeDims));
  nb::dict result;
  result["seq"] = seq;
  const auto operation = static_cast<Operation>(what & 0xff);
  result["operation"] = operation_name(operation);
  result["dtype"] = dtype_name(static_cast<DType>((what >> 8) & 0xff));
  result["device"] = (what & kOnDevice) != 0 ? "cuda" : "cpu";
  result["op"] = reduce_op_name(static_cast<ReduceOp>((what >> 16) & 0xff));
  result["root"] = static_cast<std::int32_t>(what >> 32);
  const std::uint64_t count = entry.count.load(kRelaxed);
  result["count"] = count;
  const std::uint64_t where = entry.where.load(kRelaxed);
  result["location"] = location_text(layout, rank, where & (kIsAsync - 1));
  result["is_async"] = (where & kIsAsync) != 0;
  result["peer"] = static_cast<std::int32_t>(where >> 32);
  const std::int64_t start = entry.start_ns.load(kRelaxed), end = entry.end_ns.load(kRelaxed);
  result["start_ns"] = start;
  result["end_ns"] = end;
  result["seconds_ago"] = static_cast<double>(monotonic_ns() - start) * 1e-9;
  const PackedShape packed{{entry.shape[0].load(kRelaxed), entry.shape[1].load(kRelaxed)}};
  nb::list shape;
  std::uint64_t elements = 1;
  for (std::uint32_t i = 0; i < num_dims; ++i) {
    const std::uint64_t size = unpack_dim(packed, num_dims, i);
    shape.append(size);
    elements *= size;
  }
  result["shape"] = nb::tuple(shape);
  result["size_bytes"] = operation == Operation::kBarrier ? 0 : elements * item_bytes(static_cast<DType>((what >> 8) & 0xff));
  // Overwritten while we read: better nothing than a mixture.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.seq.load(std::memory_order_relaxed) != seq) return nb::none();
  return result;
}

nb::object entry_with(const Layout& layout, int rank, Seq seq) {
  const JournalEntry* const found = await_entry(layout, rank, seq);
  return found == nullptr ? nb::none() : entry_of(layout, rank, *found);
}

}  // namespace

nb::list snapshot_of(const Layout& layout, int num_ranks, const std::function<std::int32_t(int)>& exit_status) {
  static constexpr const char* states[] = {"absent", "present", "left", "dead"};
  nb::list ranks;
  const std::uint64_t here = own_pid_namespace();
  for (int rank = 0; rank < num_ranks; ++rank) {
    const Member& member = layout.member(rank);
    const auto state = member.state.load();
    const Seq arrived = layout.progress(rank).arrived.load();
    nb::dict row;
    row["rank"] = rank;
    row["pid"] = member.pid.load();
    row["is_thread"] = member.is_thread.load() != 0;
    // A process of another container has a number that means somebody else here.
    row["is_here"] = member.pid.load() == 0 || member.pid_namespace.load() == here;
    row["state"] = states[static_cast<std::size_t>(state)];
    row["exit_status"] = state == MemberState::kDead ? exit_status(rank) : kStatusUnknown;
    row["arrived"] = arrived;
    const Progress& progress = layout.progress(rank);
    row["launched_pid"] = member.launched_pid.load();
    row["thread"] = member.thread.load();
    row["is_debugged"] = member.is_debugged.load() != 0;
    row["finished"] = progress.finished.load();
    row["messages"] = progress.messages.load();
    row["moved_bytes"] = progress.moved_bytes.load(kRelaxed) + progress.mailed_bytes.load(kRelaxed);
    row["sleeps_for"] = progress.sleeps_for.load(kRelaxed) - 1;
    row["entry"] = arrived == 0 ? nb::none() : entry_with(layout, rank, arrived);
    row["begun"] = entry_with(layout, rank, arrived + 1);  // it has called that, but not shown itself there yet
    row["mail"] = entry_of(layout, rank, layout.mail_journal(rank));
    ranks.append(row);
  }
  return ranks;
}

nb::dict records_of(const Layout& layout, int rank) {
  nb::dict records;
  const Progress& progress = layout.progress(rank);
  const auto collect = [&](Seq last, auto find) {
    nb::list found;
    for (Seq number = last > kJournalEntries ? last - kJournalEntries + 1 : 1; number <= last; ++number) {
      const JournalEntry& entry = find(number);
      if (entry.seq.load(std::memory_order_acquire) != number) continue;
      nb::object copied = entry_of(layout, rank, entry);
      if (!copied.is_none()) found.append(copied);
    }
    return found;
  };
  // A rank that waits for its turn has begun the operation after the one it arrived at.
  records["operations"] = collect(progress.arrived.load() + 1, [&](Seq n) -> auto& { return layout.journal(rank, n); });
  records["messages"] = collect(progress.messages.load(), [&](Seq n) -> auto& { return layout.message(rank, n); });
  return records;
}

nb::object fault_of(const Layout& layout) {
  const Fault& fault = layout.header().fault;
  if (fault.state.load(std::memory_order_acquire) != 2) return nb::none();
  nb::dict facts;
  facts["kind"] = fault_name(fault.kind);
  facts["culprit"] = fault.culprit;
  facts["reporter"] = fault.reporter;
  facts["seq"] = fault.seq;
  facts["text"] = std::string(fault.text, strnlen(fault.text, sizeof(fault.text)));
  return facts;
}

nb::object RankEndpoint::entry(int rank, Seq seq) const { return entry_with(endpoint_->layout(), rank, seq); }

nb::list RankEndpoint::snapshot() {
  return snapshot_of(endpoint_->layout(), endpoint_->num_ranks(),
                     [this](int rank) { return endpoint_->peers().exit_status(rank); });
}

}  // namespace phalanx::python
