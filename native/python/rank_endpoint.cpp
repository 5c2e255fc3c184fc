#include "rank_endpoint.hpp"

#include <algorithm>

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cmath>

namespace phalanx::python {
bool python_signal_arrived() {
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

std::atomic<int> LongWaits::count_{0}, LongWaits::epoch_{0};
static PyObject* long_wait_listener = nullptr;  // guarded by the GIL

void LongWaits::set_listener(PyObject* listener) {
  Py_XINCREF(listener);
  Py_XDECREF(std::exchange(long_wait_listener, listener));
}

bool LongWaits::go_on() {
  constexpr std::int64_t kLongNs = 1'000'000'000;
  if (is_counted_) return true;
  const std::int64_t now = monotonic_ns();
  if (start_ns_ == 0) start_ns_ = now;
  if (now - start_ns_ < kLongNs) return true;
  count_.fetch_add(1);
  counted_in_ = epoch_.load();
  is_counted_ = true;
  const nb::gil_scoped_acquire gil;
  if (long_wait_listener == nullptr) return true;
  const nb::object listener = nb::borrow(long_wait_listener);  // while it runs, a new group may set another one
  PyObject* const result = PyObject_CallNoArgs(listener.ptr());
  Py_XDECREF(result);
  return result != nullptr;
}

const char* operation_name(Operation operation) noexcept {
  static constexpr const char* names[] = {"none",      "all_reduce",     "reduce",     "broadcast", "all_gather",
                                          "gather",    "scatter",        "reduce_scatter", "all_to_all", "barrier",
                                          "send",      "recv",           "refused",    "unknown"};
  static_assert(std::size(names) == static_cast<std::size_t>(Operation::kCount) + 1);
  return names[std::min(static_cast<std::size_t>(operation), static_cast<std::size_t>(Operation::kCount))];
}

const char* fault_name(FaultKind kind) noexcept {
  static constexpr const char* names[] = {"none",      "mismatch",    "timeout", "peer_died",
                                          "peer_left", "peer_failed", "aborted", "interrupted",
                                          "out_of_memory", "deadlock",   "unknown"};
  static_assert(std::size(names) == static_cast<std::size_t>(FaultKind::kCount) + 1);
  return names[std::min(static_cast<std::size_t>(kind), static_cast<std::size_t>(FaultKind::kCount))];
}

const char* reduce_op_name(ReduceOp op) noexcept {
  static constexpr const char* names[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum",
                                          "unknown"};
  static_assert(std::size(names) == static_cast<std::size_t>(ReduceOp::kCount) + 1);
  return names[std::min(static_cast<std::size_t>(op), static_cast<std::size_t>(ReduceOp::kCount))];
}

static Segment attach_visibly(int descriptor) {
  Segment segment = Segment::attach(descriptor);
  segment.keep_descriptor(descriptor);
  return segment;
}

RankEndpoint::RankEndpoint(int descriptor, int rank, bool is_thread, double default_timeout_s,
                           std::vector<std::string> library_folders, nb::object explain)
    : timeout_s(default_timeout_s),
      endpoint_(std::make_shared<Endpoint>(attach_visibly(descriptor), rank, is_thread)),
      lane_(std::make_unique<Lane>(endpoint_)),
      mailbox_(std::make_unique<Mailbox>(endpoint_)),
      is_thread_(is_thread),
      sites_(std::move(library_folders)),
      explain_(std::move(explain)) {}

static bool is_python_ending() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

RankEndpoint::~RankEndpoint() {
  const nb::error_scope exception;  // the last reference may go while one is raised: it is not one of close()
  note_departure(Departure::kDropped);
  // Threads that wait for the wire could not come back when Python ends. Groups that were left open are closed before: see
  // phalanx.groups.open_groups.
  bool has_stuck_threads = hosts_ && is_python_ending();
  try {
    if (!has_stuck_threads) close();
    has_stuck_threads |= hosts_ && hosts_->mail().has_stuck_threads();
  } catch (nb::python_error& interruption) {
    interruption.discard_as_unraisable("a group that is left");
  }
  if (endpoint_->is_owner() && !has_stuck_threads) return;
  // After fork the threads are not here, and what they held can't even be destroyed.
  (void)lane_.release();
  (void)hosts_.release();
  (void)wire_.release();
  (void)mailbox_.release();
  (void)device_mail_.release();
}

void RankEndpoint::note_departure(Departure why) noexcept {
  if (is_closed_ || !endpoint_->is_owner()) return;
  Departure none = Departure::kNone;
  endpoint_->layout().member(endpoint_->rank()).departure.compare_exchange_strong(none, why);
}

void RankEndpoint::close() {
  if (is_closed_) return;
  note_departure(Departure::kClosed);
  is_closed_ = true;
  interceptor_ = nb::object();  // it may lead back to this group, and the garbage collector does not see that
  // Operations still under way end with an error; their threads must be gone before the memory is.
  const bool has_pending = [&] { prune_pending(); return !pending_collectives_.empty() || !pending_messages_.empty(); }();
  std::optional<nb::python_error> interruption;
  if (hosts_ && endpoint_->is_owner()) {  // what small sends have left behind is done for the program
    const Unlocked unlocked(Unlocked::When::kAtOnce);
    hosts_->mail().flush(monotonic_ns() + static_cast<std::int64_t>(std::min(timeout_s, 1e9) * 1e9));
  }
  if (PyErr_Occurred() != nullptr) interruption.emplace();  // a signal handler raised while we waited
  {
    const nb::gil_scoped_release unlocked;
    if (has_pending && endpoint_->is_owner())
      set_fault(endpoint_->layout(), FaultKind::kPeerLeft, endpoint_->rank(), endpoint_->rank(), endpoint_->seq(),
                {"closed with operations under way"});
    lane_->close();
    if (hosts_) hosts_->leave();
    mailbox_->close();
    if (device_mail_) device_mail_->close();
    endpoint_->leave();
  }
  device_ranks_.clear();
  pending_collectives_.clear();
  pending_messages_.clear();
  if (interruption) throw *interruption;
}

void RankEndpoint::drain() {
  if (!endpoint_->is_owner()) return;  // what is under way is the parent's
  std::vector<std::shared_ptr<Transfer>> transfers;
  for (const auto& [transfer, tensors] : pending_messages_) transfers.push_back(transfer);
  {
    const Unlocked unlocked(Unlocked::When::kAtOnce);
    lane_->drain();
    // What nobody has sent yet, nobody will: the others leave too.
    std::stable_partition(transfers.begin(), transfers.end(), [](const auto& transfer) { return transfer->is_send(); });
    for (const auto& transfer : transfers) {
      if (!transfer->is_send()) mailbox_->cancel_receives();
      if (!transfer->is_send() && hosts_) hosts_->mail().cancel_receives();
      try {
        mailbox_->wait(transfer, transfer->call.deadline_ns, false);
      } catch (const Trouble&) {
        // Whoever waits for the message hears of it.
      }
    }
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();  // a signal handler raised while we waited
}

nb::list RankEndpoint::find_dead() {
  endpoint_->peers().find_dead();
  nb::list dead;
  for (int rank = 0; rank < endpoint_->num_ranks(); ++rank) {
    const auto state = endpoint_->layout().member(rank).state.load();
    if (state == MemberState::kDead || state == MemberState::kLeft) dead.append(rank_of_local(rank));
  }
  return dead;
}

int RankEndpoint::debugged_rank() const {
  for (int rank = 0; rank < endpoint_->num_ranks(); ++rank) {
    const Member& member = endpoint_->layout().member(rank);
    if (member.is_debugged.load() != 0 && member.state.load() == MemberState::kPresent) return rank;
  }
  return -1;
}

void RankEndpoint::set_recorder(nb::object recorder) {
  recorder_ = recorder.is_none() ? nb::object() : std::move(recorder);
  recording_thread_ = PyThread_get_thread_ident();
}

void RankEndpoint::set_interceptor(nb::object interceptor) {
  interceptor_ = interceptor.is_none() ? nb::object() : std::move(interceptor);
}

static nb::object call_hook(const nb::object& hook, const char* name, PyObject* const* values, Py_ssize_t num_given,
                     PyObject* keywords) {
  nb::list args;
  for (Py_ssize_t i = 0; i < num_given; ++i) args.append(nb::handle(values[i]));
  nb::dict kwargs;
  for (Py_ssize_t i = 0; keywords != nullptr && i < PyTuple_GET_SIZE(keywords); ++i)
    kwargs[nb::handle(PyTuple_GET_ITEM(keywords, i))] = nb::handle(values[num_given + i]);
  return hook(name, nb::tuple(args), kwargs);
}

nb::object RankEndpoint::record(const char* name, PyObject* const* values, Py_ssize_t num_given, PyObject* keywords) {
  return call_hook(recorder_, name, values, num_given, keywords);
}

void RankEndpoint::intercept(const char* name, PyObject* const* values, Py_ssize_t num_given, PyObject* keywords) {
  const nb::object hook = interceptor_;  // it may take itself away
  if (hook.is_valid()) call_hook(hook, name, values, num_given, keywords);
}

void RankEndpoint::abort(const std::string& text) {
  const nb::gil_scoped_release unlocked;
  break_group({FaultKind::kAborted, endpoint_->rank(), endpoint_->rank(), endpoint_->seq(), {text}, true});
}

void RankEndpoint::break_group(const Trouble& trouble) {
  set_fault(endpoint_->layout(), trouble.kind, trouble.culprit, trouble.reporter, trouble.seq, trouble.detail);
  if (hosts_) hosts_->give_up(trouble);
}

void RankEndpoint::fail(const std::string& text) {
  const nb::gil_scoped_release unlocked;
  break_group({FaultKind::kPeerFailed, endpoint_->rank(), kLauncher, 0, {text}, true});
}

constexpr double kShortTimeoutS = 60;

Call RankEndpoint::new_call(Operation operation, double timeout) {
  Call call;
  call.operation = operation;
  endpoint_->callers().note();
  const double seconds = effective(timeout);
  const double limit = 1e9;  // thirty years
  call.may_do_more = seconds < std::max(timeout_s, kShortTimeoutS);
  call.start_ns = monotonic_ns();
  call.paused_ns = paused_ns_so_far();
  call.deadline_ns = call.start_ns + static_cast<std::int64_t>(std::fmin(seconds, limit) * 1e9);
#ifndef PHALANX_NO_JOURNAL
  call.location = sites_.find(*endpoint_);
#endif
  return call;
}

// Facts of a call that was never made.
static nb::object refusal_of(const char* kind, Operation operation, Seq seq, const std::string& text) {
  Call call;
  call.operation = operation;
  return trouble_of(kind, call, seq, 0, nb::str(""), Trouble(FaultKind::kNone, -1, -1, 0, {text}, false));
}

void RankEndpoint::require_usable(Operation operation) {
  if (!is_closed_ && endpoint_->is_owner()) [[likely]]
    return;
  const nb::object error = explain_(refusal_of(is_closed_ ? "closed" : "forked", operation, 0, ""));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

void RankEndpoint::check_root(int root) const {
  const int n = num_ranks();
  if (root >= 0 && root < n) [[likely]]
    return;
  throw UsageProblem("rank " + std::to_string(root) + " is outside this group of " + std::to_string(n) +
                     (n == 1 ? " rank; give 0" : " ranks; give 0 to " + std::to_string(n - 1)));
}

static bool is_message(const Call& call) { return call.operation == Operation::kSend || call.operation == Operation::kRecv; }

nb::object RankEndpoint::explain(const Call& call, double timeout, const Trouble& trouble) {
  const nb::str location = location_text(endpoint_->layout(), endpoint_->rank(), call.location);
  const Seq seq = is_message(call) ? Seq{0} : endpoint_->seq();
  return explain_(trouble_of(fault_name(trouble.kind), call, seq, effective(timeout), location, trouble));
}

void RankEndpoint::raise(const Call& call, double timeout, const Trouble& trouble) {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();  // a signal handler raised while we waited
  const nb::object error = explain(call, timeout, trouble);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

void RankEndpoint::tell_refusal(const Call& call, const std::string& text) {
  if (is_message(call)) return;
  {
    const Unlocked unlocked(Unlocked::When::kAtOnce);
    try {
      lane_->run([&](Endpoint& endpoint) { hosts_ ? hosts_->refuse(call, text) : endpoint.refuse(call, text); });
    } catch (const Trouble&) {
      // The group is broken already: its peers need no further notice.
    }
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();  // a signal handler raised while we waited
}

void RankEndpoint::raise_usage(const Call& call, const std::string& text) {
  tell_refusal(call, text);
  const nb::object error = explain_(refusal_of("usage", call.operation, is_message(call) ? Seq{0} : endpoint_->seq(), text));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

nb::object RankEndpoint::refuse(const std::string& operation, const std::string& text) {
  Call call = new_call(Operation::kNone, -1);
  for (std::size_t i = 0; i < static_cast<std::size_t>(Operation::kCount); ++i) {
    if (operation == operation_name(static_cast<Operation>(i))) call.operation = static_cast<Operation>(i);
  }
  require_usable(call.operation);
  try {
    raise_usage(call, text);
  } catch (nb::python_error& error) {
    return nb::borrow(error.value());
  }
}

void RankEndpoint::prune_pending() {
  // An entry dies after it has left the queue: freeing a tensor may let another thread in here.
  while (!pending_collectives_.empty() && pending_collectives_.front().first->is_done()) {
    const auto gone = std::move(pending_collectives_.front());
    pending_collectives_.pop_front();
  }
  while (!pending_messages_.empty() && pending_messages_.front().first->is_done.load()) {
    const auto gone = std::move(pending_messages_.front());
    pending_messages_.pop_front();
  }
}

}  // namespace phalanx::python
