// What the engine knows of a group, as objects of the classes in phalanx/engine/facts.py.
#include "../core/process_status.hpp"
#include "../core/reading.hpp"

#include "rank_endpoint.hpp"

namespace phalanx::python {
namespace {

struct Field {
  template <class Value>
  Field(const char* its_name, Value&& its_value) : name(its_name), value(nb::cast(std::forward<Value>(its_value))) {}
  const char* name;
  nb::object value;
};

// A NamedTuple of facts.py. Its objects are made without a call of Python code: there may be a thousand of them, four times a
// second. So it is checked here that both sides have the same names in the same order.
class FactsClass {
 public:
  FactsClass(const nb::module_& facts, const char* name) : class_(nb::object(facts.attr(name)).release()) {
    for (nb::handle field : class_.attr("_fields")) names_.push_back(nb::cast<std::string>(field));
  }
  nb::object operator()(std::initializer_list<Field> fields) const {
    const auto is_same = [](const Field& field, const std::string& name) { return field.name == name; };
    if (!std::equal(fields.begin(), fields.end(), names_.begin(), names_.end(), is_same))
      throw nb::type_error("the fields in facts.cpp are not those in facts.py");
    const auto values = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(fields.size())));
    if (!values.is_valid()) throw nb::python_error();
    Py_ssize_t index = 0;
    for (const Field& field : fields) PyTuple_SET_ITEM(values.ptr(), index++, nb::object(field.value).release().ptr());
    const auto arguments = nb::make_tuple(values);
    PyObject* const made = PyTuple_Type.tp_new(reinterpret_cast<PyTypeObject*>(class_.ptr()), arguments.ptr(), nullptr);
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
  }

 private:
  nb::handle class_;  // kept for good
  std::vector<std::string> names_;
};

struct FactsClasses {
  explicit FactsClasses(const nb::module_& facts)
      : entry(facts, "EntryFacts"), rank(facts, "RankFacts"), records(facts, "RankRecords"), fault(facts, "FaultFacts"),
        trouble(facts, "Trouble") {}
  FactsClass entry, rank, records, fault, trouble;
};
const FactsClasses* classes = nullptr;  // from the moment when the extension is imported

template <class Sizes>
nb::tuple shape_of(const Sizes& shape, std::uint32_t num_dims) {
  nb::list dims;
  for (std::uint32_t i = 0; i < std::min<std::uint32_t>(num_dims, kShapeDims); ++i) dims.append(shape[i]);
  return nb::tuple(dims);
}

nb::object entry_of(const std::optional<EntryFacts>& facts) {
  if (!facts) return nb::none();
  const std::uint64_t ago = std::uint64_t(monotonic_ns()) - std::uint64_t(facts->start_ns);  // any start is possible
  return classes->entry({{"seq", facts->seq},
                         {"operation", operation_name(facts->operation)},
                         {"dtype", dtype_name(facts->dtype)},
                         {"device", facts->device},
                         {"op", reduce_op_name(facts->op)},
                         {"root", facts->root},
                         {"peer", facts->peer},
                         {"count", facts->count},
                         {"size_bytes", facts->size_bytes()},
                         {"location", text_of(facts->location)},
                         {"is_async", facts->is_async},
                         {"start_ns", facts->start_ns},
                         {"end_ns", facts->end_ns},
                         {"shape", shape_of(facts->shape, facts->num_dims)},
                         {"seconds_ago", static_cast<double>(static_cast<std::int64_t>(ago)) * 1e-9},
                         {"may_do_more", facts->may_do_more}});
}

nb::list list_of(const std::vector<EntryFacts>& entries) {
  nb::list result;
  for (const EntryFacts& facts : entries) result.append(entry_of(facts));
  return result;
}

const char* departure_name(Departure departure) noexcept {
  static constexpr const char* names[] = {"", "closed", "dropped", "ended", "unknown"};
  return names[static_cast<std::size_t>(departure)];
}

const char* state_name(MemberState state) noexcept {
  static constexpr const char* names[] = {"absent", "present", "left", "dead", "unknown"};
  return names[static_cast<std::size_t>(state)];
}

const char* other_threads_name(OtherThreads threads) noexcept {
  static constexpr const char* names[] = {"unknown", "none", "libraries", "program", "unknown"};
  return names[std::min(static_cast<std::size_t>(threads), static_cast<std::size_t>(OtherThreads::kCount))];
}

const char* awaited_name(Awaited awaited) noexcept {
  static constexpr const char* names[] = {"ranks", "stream", "work", "unknown"};
  return names[std::min(static_cast<std::size_t>(awaited), static_cast<std::size_t>(Awaited::kCount))];
}

}  // namespace

void import_facts() {
  classes = new FactsClasses(nb::module_::import_("phalanx.engine.facts"));
}

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
    const RankFacts facts = read_rank(layout, rank, here, looks);
    const std::int32_t status = facts.state == MemberState::kDead ? exit_status(rank) : facts.exit_status;
    ranks.append(classes->rank({{"rank", facts.rank},
                                {"pid", facts.pid},
                                {"launched_pid", facts.launched_pid},
                                {"thread", facts.thread},
                                {"is_thread", facts.is_thread},
                                {"is_here", facts.is_here},
                                {"is_debugged", facts.is_debugged},
                                {"state", state_name(facts.state)},
                                {"exit_status", status},
                                {"arrived", facts.arrived},
                                {"finished", facts.finished},
                                {"sleeps_for", facts.sleeps_for},
                                {"entry", entry_of(facts.entry)},
                                {"begun", entry_of(facts.begun)},
                                {"mail", entry_of(facts.mail)},
                                {"messages", facts.messages},
                                {"moved_bytes", facts.moved_bytes},
                                {"caller", facts.caller},
                                {"backward_caller", facts.backward_caller},
                                {"awaits_work", facts.awaits_work},
                                {"other_threads", other_threads_name(facts.other_threads)},
                                {"looks", facts.looks},
                                {"work_looks", facts.work_looks},
                                {"mail_moves", facts.mail_moves},
                                {"mail_looks", facts.mail_looks},
                                {"background_looks", facts.background_looks},
                                {"background_mail", facts.background_mail},
                                {"departure", departure_name(facts.departure)}}));
  }
  return ranks;
}

void check_rank(const Layout& layout, int rank) {
  if (rank < 0 || rank >= layout.num_ranks()) throw nb::index_error("rank outside the group");
}

nb::object records_of(const Layout& layout, int rank) {
  check_rank(layout, rank);
  return classes->records(
      {{"operations", list_of(read_operations(layout, rank))}, {"messages", list_of(read_messages(layout, rank))}});
}

nb::object fault_of(const Layout& layout) {
  const auto facts = read_fault(layout);
  if (!facts) return nb::none();
  return classes->fault({{"kind", fault_name(facts->kind)},
                         {"culprit", facts->culprit},
                         {"reporter", facts->reporter},
                         {"seq", facts->seq},
                         {"text", text_of(facts->text)},
                         {"awaited", awaited_name(facts->awaited)},
                         {"wanted_bytes", facts->wanted_bytes},
                         {"found_bytes", facts->found_bytes}});
}

nb::object trouble_of(const char* kind, const Call& call, Seq seq, double timeout_s, const nb::str& location,
                      const Trouble& trouble) {
  return classes->trouble({{"kind", kind},
                           {"operation", operation_name(call.operation)},
                           {"seq", seq},
                           {"culprit", trouble.culprit},
                           {"reporter", trouble.reporter},
                           {"fault_seq", trouble.seq},
                           {"text", text_of(trouble.detail.text)},
                           {"awaited", awaited_name(trouble.detail.awaited)},
                           {"wanted_bytes", trouble.detail.wanted_bytes},
                           {"found_bytes", trouble.detail.found_bytes},
                           {"is_fatal", trouble.is_fatal},
                           {"timeout_s", timeout_s},
                           {"root", call.root},
                           {"dtype", dtype_name(call.dtype)},
                           {"device", call.is_on_device ? "cuda" : "cpu"},
                           {"location", location},
                           {"tag", call.tag},
                           {"shape", shape_of(call.shape, call.num_dims)}});
}

nb::object RankEndpoint::entry(int rank, Seq seq) const {
  check_rank(endpoint_->layout(), rank);
  int looks = kPatientLooks;
  return entry_of(read_entry_of(endpoint_->layout(), rank, seq, looks));
}

nb::list RankEndpoint::snapshot() {
  return snapshot_of(endpoint_->layout(), [this](int rank) { return endpoint_->peers().exit_status(rank); });
}

}  // namespace phalanx::python
