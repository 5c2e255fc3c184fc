// The journal as Python sees it: plain dictionaries for phalanx.diagnosis.
#include "../core/reading.hpp"

#include "rank_endpoint.hpp"

namespace phalanx::python {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

nb::object entry_of(const std::optional<EntryFacts>& facts) {
  if (!facts) return nb::none();
  nb::dict result;
  result["seq"] = facts->seq;
  result["operation"] = operation_name(facts->operation);
  result["dtype"] = dtype_name(facts->dtype);
  result["device"] = facts->is_on_device ? "cuda" : "cpu";
  result["op"] = reduce_op_name(facts->op);
  result["root"] = facts->root;
  result["count"] = facts->count;
  result["location"] = text_of(facts->location);
  result["is_async"] = facts->is_async;
  result["peer"] = facts->peer;
  result["start_ns"] = facts->start_ns;
  result["end_ns"] = facts->end_ns;
  const std::uint64_t ago = std::uint64_t(monotonic_ns()) - std::uint64_t(facts->start_ns);  // any start is possible
  result["seconds_ago"] = static_cast<double>(static_cast<std::int64_t>(ago)) * 1e-9;
  nb::list shape;
  for (std::uint32_t i = 0; i < facts->num_dims; ++i) shape.append(facts->shape[i]);
  result["shape"] = nb::tuple(shape);
  result["size_bytes"] = facts->size_bytes();
  return result;
}

nb::list list_of(const std::vector<EntryFacts>& entries) {
  nb::list result;
  for (const EntryFacts& facts : entries) result.append(entry_of(facts));
  return result;
}

const char* state_name(MemberState state) noexcept {
  static constexpr const char* names[] = {"absent", "present", "left", "dead", "unknown"};
  return names[static_cast<std::size_t>(state)];
}

}  // namespace

nb::str text_of(const std::string& text) {
  PyObject* const decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(decoded);
}

nb::str location_text(const Layout& layout, int rank, std::uint64_t number) {
  return text_of(read_location(layout, rank, number));
}

nb::list snapshot_of(const Layout& layout, const std::function<std::int32_t(int)>& exit_status) {
  nb::list ranks;
  const std::uint64_t here = own_pid_namespace();
  int looks = kPatientLooks;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    const Member& member = layout.member(rank);
    const MemberState state = read_state(layout, rank);
    const std::int32_t pid = member.pid.load();
    const Progress& progress = layout.progress(rank);
    const Seq arrived = progress.arrived.load();
    nb::dict row;
    row["rank"] = rank;
    row["pid"] = pid;
    row["is_thread"] = member.is_thread.load() != 0;
    // A process of another container has a number that means somebody else here.
    row["is_here"] = pid == 0 || member.pid_namespace.load() == here;
    row["state"] = state_name(state);
    row["exit_status"] = state == MemberState::kDead ? exit_status(rank) : kStatusUnknown;
    row["arrived"] = arrived;
    row["launched_pid"] = member.launched_pid.load();
    row["thread"] = member.thread.load();
    row["is_debugged"] = member.is_debugged.load() != 0;
    row["finished"] = progress.finished.load();
    row["messages"] = progress.messages.load();
    row["moved_bytes"] = progress.moved_bytes.load(kRelaxed) + progress.mailed_bytes.load(kRelaxed);
    row["sleeps_for"] = read_sleeps_for(layout, rank);
    row["entry"] = arrived == 0 ? nb::none() : entry_of(read_entry_of(layout, rank, arrived, looks));
    // It has called that, but not shown itself there yet.
    row["begun"] = entry_of(read_entry_of(layout, rank, arrived + 1, looks));
    row["mail"] = entry_of(read_entry(layout, rank, layout.mail_journal(rank)));
    ranks.append(row);
  }
  return ranks;
}

nb::dict records_of(const Layout& layout, int rank) {
  if (rank < 0 || rank >= layout.num_ranks()) throw nb::index_error("rank outside the group");
  nb::dict records;
  records["operations"] = list_of(read_operations(layout, rank));
  records["messages"] = list_of(read_messages(layout, rank));
  return records;
}

nb::object fault_of(const Layout& layout) {
  const auto fault = read_fault(layout);
  if (!fault) return nb::none();
  nb::dict facts;
  facts["kind"] = fault_name(fault->kind);
  facts["culprit"] = fault->culprit;
  facts["reporter"] = fault->reporter;
  facts["seq"] = fault->seq;
  facts["text"] = text_of(fault->text);
  return facts;
}

nb::object RankEndpoint::entry(int rank, Seq seq) const {
  int looks = kPatientLooks;
  return entry_of(read_entry_of(endpoint_->layout(), rank, seq, looks));
}

nb::list RankEndpoint::snapshot() {
  return snapshot_of(endpoint_->layout(), [this](int rank) { return endpoint_->peers().exit_status(rank); });
}

}  // namespace phalanx::python
