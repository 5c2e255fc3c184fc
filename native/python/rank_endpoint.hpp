// What Python holds of a group: an endpoint with its lane and its mailbox, fed with tensors.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "../core/endpoint.hpp"
#include "../core/hosts/host_group.hpp"
#include "../core/lane.hpp"
#include "../core/mailbox.hpp"
#include "../core/symmetric.hpp"
#include "../cuda/messages.hpp"
#include "../cuda/operation.hpp"
#include "arguments.hpp"
#include "call_site.hpp"
#include "per_rank.hpp"
#include "plain_text.hpp"
#include "python_wire.hpp"
#include "tensors.hpp"
#include "unlocked.hpp"

namespace phalanx::python {

class RankEndpoint;

// An operation under way. Satisfies phalanx.collectives.Work.
class NativeWork {
 public:
  NativeWork(nb::object endpoint, nb::object tensors, nb::object memory, Call call, double timeout_s)
      : endpoint_(std::move(endpoint)), tensors_(std::move(tensors)), memory_(std::move(memory)), call_(call), timeout_s_(timeout_s) {}

  std::shared_ptr<Ticket> ticket;      // a collective
  std::shared_ptr<Transfer> transfer;  // or a message
  std::shared_ptr<Piece> unpack;       // a received message goes from here into a tensor in pieces

  bool is_done();
  void wait(double timeout_s);
  nb::object exception();
  nb::object result();
  nb::object source_rank();

 private:
  std::optional<Trouble> trouble() const;
  void unpack_once();
  RankEndpoint& endpoint() const;

  nb::object endpoint_;
  nb::object tensors_;
  nb::object memory_;  // of the tensors
  Call call_;
  double timeout_s_;
};

// Tensors with the same part in an operation.
struct Parts {
  std::span<const Tensor> tensors;
  bool is_read, is_written;
  const PerRank<std::size_t>* block_bytes = nullptr;  // one tensor cut into blocks
};

// Calls may come from several threads; the GIL guards the members, the lane and the mailbox guard themselves.
class RankEndpoint {
 public:
  // `explain(facts)` turns facts into an exception.
  RankEndpoint(int descriptor, int rank, bool is_thread, double timeout_s, std::vector<std::string> library_folders,
               nb::object explain);
  ~RankEndpoint();

  Endpoint& core() { return *endpoint_; }
  // The group reaches over several hosts from here on. `hosts` has the ranks of each host; the endpoint is that of this host's
  // ranks, and `descriptor` another segment of the same ones. `helper` has the methods of phalanx.groups.hybrid.Helper.
  void join_hosts(int descriptor, std::vector<std::vector<int>> hosts, int rank, nb::object wire, nb::object helper);
  bool is_over_hosts() const noexcept { return hosts_ != nullptr; }
  // Numbers in the whole group; the endpoint has those of this host.
  int rank() const noexcept { return hosts_ ? hosts_->rank() : endpoint_->rank(); }
  int num_ranks() const noexcept { return hosts_ ? hosts_->num_ranks() : endpoint_->num_ranks(); }
  int rank_of_local(int local) const {
    if (is_far(local)) return rank_of_far(local);
    return hosts_ && local >= 0 ? hosts_->map().ranks_here()[std::size_t(local)] : local;
  }
  Lane& lane() { return *lane_; }
  Mailbox& mailbox() { return *mailbox_; }
  double timeout_s;

  nb::object all_reduce(const Arguments& args);
  nb::object all_reduce_coalesced(const Arguments& args);
  nb::object reduce(const Arguments& args);
  nb::object broadcast(const Arguments& args);
  nb::object all_gather(const Arguments& args);
  nb::object all_gather_single(const Arguments& args);
  nb::object gather(const Arguments& args);
  nb::object scatter(const Arguments& args);
  nb::object reduce_scatter(const Arguments& args);
  nb::object reduce_scatter_single(const Arguments& args);
  nb::object all_to_all(const Arguments& args);
  nb::object all_to_all_single(const Arguments& args);
  nb::object barrier(const Arguments& args);
  nb::object send(const Arguments& args);
  nb::object recv(const Arguments& args);

  // Peers in the same operation learn that this rank's arguments were refused; returns the error to raise.
  nb::object refuse(const std::string& operation, const std::string& text);
  void abort(const std::string& text);
  // Peers learn that this rank raised outside the group's operations.
  void fail(const std::string& text);
  // Sets the fault of the group; other hosts are told. Without the GIL.
  void break_group(const Trouble& trouble);
  // Peers take this rank, a thread, for a process that has ended so.
  void die(int status) { declare_dead(endpoint_->layout(), endpoint_->rank(), status); }
  // A fault that the launcher sets in the ancestor is a fault here too.
  void watch(RankEndpoint& ancestor) { endpoint_->watch(ancestor.endpoint_); }
  nb::list find_dead();
  // While it is true, everybody's deadlines stand still.
  void set_debugged(bool is_debugged) { endpoint_->set_debugged(is_debugged); }
  // What this process runs in other Python threads than those that call operations.
  void set_other_threads(bool are_there, bool run_program) {
    const OtherThreads threads = run_program ? OtherThreads::kProgram : are_there ? OtherThreads::kLibraries : OtherThreads::kNone;
    endpoint_->member().other_threads.store(threads, std::memory_order_release);
  }
  // Which rank is debugged, or -1.
  int debugged_rank() const;
  // From here on every operation is also written to a file; with null no longer.
  void trace(std::shared_ptr<TraceFile> file) { endpoint_->journal().trace(std::move(file)); }
  // While it is set, calls from the same thread are recorded instead of run: recorder(name, args, kwargs).
  void set_recorder(nb::object recorder);
  bool is_recording() const noexcept { return recorder_.is_valid() && recording_thread_ == PyThread_get_thread_ident(); }
  // While it is set, every call on any thread is announced before it runs: interceptor(name, args, kwargs). It may raise.
  void set_interceptor(nb::object interceptor);
  bool is_hooked() const noexcept { return recorder_.is_valid() || interceptor_.is_valid(); }
  void intercept(const char* name, PyObject* const* values, Py_ssize_t num_given, PyObject* keywords);
  nb::object record(const char* name, PyObject* const* values, Py_ssize_t num_given, PyObject* keywords);
  // Allocations of peers on GPUs that this rank has open for collectives.
  std::size_t num_open_handles() const;
  void drain();
  void close();
  // Says why this rank is about to leave; the first reason counts.
  void note_departure(Departure why) noexcept;
  bool is_closed() const noexcept { return is_closed_; }
  nb::object entry(int rank, Seq seq) const;
  nb::list snapshot();
  nb::object adopt_symmetric(int descriptor, std::uint64_t id);

  [[noreturn]] void raise(const Call& call, double timeout, const Trouble& trouble);
  nb::object explain(const Call& call, double timeout, const Trouble& trouble);

 private:
  friend class NativeWork;

  template <class Prepare>
  nb::object collective(Operation operation, nb::handle first, nb::handle second, double timeout, bool is_async,
                        const Prepare& prepare);
  // Peers are told when it raises another error than our own.
  template <class Prepare>
  auto prepare_or_tell(Call& call, const Prepare& prepare);
  nb::object message(Operation operation, const Arguments& args, int peer);
  nb::object message_over_hosts(const Call& call, nb::handle object, const Tensor& tensor, double timeout);
  nb::object device_message(Call call, nb::handle object, const Tensor& tensor, double timeout);
  cuda::DeviceMail& device_mail();
  using OnDevice = std::shared_ptr<const cuda::DeviceOperation>;
  // What to run instead of the host's collective; null for tensors of the host. `object` is one of the tensors.
  OnDevice on_device(Call& call, nb::handle object, const Parts& first, const Parts& second = {},
                     cuda::Form form = cuda::Form::kList) {
    const auto is_on_host = [](const Tensor& tensor) { return tensor.device == kHost; };
    if (std::ranges::all_of(first.tensors, is_on_host) && std::ranges::all_of(second.tensors, is_on_host)) [[likely]]
      return nullptr;
    if (hosts_) refuse_device();
    return make_device_operation(call, object, first, second, form);
  }
  [[noreturn]] static void refuse_device();
  OnDevice make_device_operation(Call& call, nb::handle object, const Parts& first, const Parts& second, cuda::Form form);
  struct DeviceBatch {
    Call call;
    OnDevice operation;
  };
  // Neighbours of one type together; empty for tensors of the host.
  std::vector<DeviceBatch> device_batches(nb::handle objects, const std::vector<Tensor>& tensors, const std::vector<Call>& calls);
  cuda::DeviceRank& device_rank(int ordinal);
  nb::object self() { return nb::find(*this); }
  Call new_call(Operation operation, double timeout);
  void require_usable(Operation operation);
  void check_root(int root) const;
  // Peers in the same collective learn that this rank's arguments were refused.
  void tell_refusal(const Call& call, const std::string& text);
  [[noreturn]] void raise_usage(const Call& call, const std::string& text);
  void prune_pending();
  double effective(double timeout) const { return timeout < 0 ? timeout_s : timeout; }
  Unlocked::When when_to_unlock(const Call& call) const noexcept {
    constexpr std::size_t kSmallBytes = 64 * 1024;
    const bool is_small = !call.is_on_device && !call.is_uneven && call.size_bytes * std::size_t(endpoint_->num_ranks()) <= kSmallBytes;
    return is_small && !is_thread_ ? Unlocked::When::kWhenWaiting : Unlocked::When::kAtOnce;
  }

  std::shared_ptr<Endpoint> endpoint_;
  std::unique_ptr<Lane> lane_;
  std::unique_ptr<Mailbox> mailbox_;
  std::map<int, std::unique_ptr<cuda::DeviceRank>> device_ranks_;  // by the number of the GPU
  std::unique_ptr<cuda::DeviceMail> device_mail_;  // from the first message of a GPU's tensor
  std::unique_ptr<PythonWire> wire_;
  std::unique_ptr<HostGroup> hosts_;  // null for a group on one host
  nb::object helper_;
  const bool is_thread_;
  SymmetricMemory symmetric_;
  CallSites sites_;
  nb::object explain_;
  bool is_closed_ = false;
  nb::object recorder_;
  nb::object interceptor_;
  unsigned long recording_thread_ = 0;
  // Tensors of operations under way, also when nobody kept the Work.
  std::deque<std::pair<std::shared_ptr<Ticket>, nb::object>> pending_collectives_;
  std::deque<std::pair<std::shared_ptr<Transfer>, nb::object>> pending_messages_;
};

// A source line from a rank's table.
nb::str location_text(const Layout& layout, int rank, std::uint64_t number);
// Text from shared memory, which may hold anything: what is not UTF-8 becomes a replacement character.
nb::str text_of(const std::string& text);
// Throws IndexError if the group does not have this rank.
void check_rank(const Layout& layout, int rank);
// The facts below are objects of the classes in phalanx/engine/facts.py, whose fields have the same names.
void import_facts();
// RankRecords: the last operations and messages of a rank, oldest first.
nb::object records_of(const Layout& layout, int rank);
// FaultFacts: why the group is broken, or None.
nb::object fault_of(const Layout& layout);
// A list of RankFacts: whether each rank lives, what it called last, what it waits for.
nb::list snapshot_of(const Layout& layout, const std::function<std::int32_t(int)>& exit_status);
// Trouble: why a call of this rank could not be finished. `kind` is a fault_name(), or "usage", "closed" or "forked" of a call
// that was never made; `seq` is the number of its own operation, 0 of a message.
nb::object trouble_of(const char* kind, const Call& call, Seq seq, double timeout_s, const nb::str& location,
                      const Trouble& trouble);

const char* operation_name(Operation operation) noexcept;
const char* fault_name(FaultKind kind) noexcept;
const char* reduce_op_name(ReduceOp op) noexcept;

template <class Prepare>
auto RankEndpoint::prepare_or_tell(Call& call, const Prepare& prepare) {
  try {
    return prepare(call);
  } catch (const UsageProblem&) {
    throw;  // the caller tells of it
  } catch (const Trouble&) {
    throw;
  } catch (const nb::python_error& error) {  // of an argument that is no list, of a tensor that could not be waited for
    const std::string told = utf8_of(nb::str(error.value()));
    const std::string kind = utf8_of(error.type().attr("__name__"));
    tell_refusal(call, kind + ": " + told.substr(0, told.find('\n')));
    throw;
  } catch (const std::exception& error) {  // such as no memory
    tell_refusal(call, words_of(error));
    throw;
  }
}

// `prepare(call)` checks the arguments and returns the action; it may throw UsageProblem. `first` is what the operation
// yields, `second` what else must stay alive.
template <class Prepare>
nb::object RankEndpoint::collective(Operation operation, nb::handle first, nb::handle second, double timeout,
                                    bool is_async, const Prepare& prepare) {
  require_usable(operation);
  Call call = new_call(operation, timeout);
  call.is_async = is_async;
  try {
    auto action = prepare_or_tell(call, prepare);
    if (!is_async) {
      {
        const Unlocked unlocked(hosts_ ? Unlocked::When::kAtOnce : when_to_unlock(call));
        if (hosts_) [[unlikely]] {
          lane_->run_apart(action);
        } else {
          lane_->run(action);
        }
      }
      return nb::none();
    }
    prune_pending();
    return prepare_or_tell(call, [&](Call&) {
      const nb::object memory = hold_memory(second.is_valid() ? nb::object(nb::make_tuple(first, second)) : nb::borrow(first));
      auto* work = new NativeWork(self(), nb::borrow(first), memory, call, timeout);
      nb::object result = nb::cast(work, nb::rv_policy::take_ownership);
      work->ticket = lane_->submit(std::move(action));
      pending_collectives_.emplace_back(work->ticket, memory);
      return result;
    });
  } catch (const UsageProblem& problem) {
    raise_usage(call, problem.what());
  } catch (const Trouble& trouble) {
    raise(call, timeout, trouble);
  }
}

}  // namespace phalanx::python
