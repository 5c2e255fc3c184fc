// phalanx.engine._native: the Python face of the engine.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "../core/control_groups.hpp"
#include "../core/endpoint.hpp"
#include "../core/reading.hpp"
#include "../core/segment.hpp"
#include "operation_methods.hpp"
#include "plain_text.hpp"
#include "rank_device.hpp"
#include "rank_endpoint.hpp"
#include "work_methods.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace phalanx::python {
namespace {

// A group's memory as somebody holds it who is not one of its ranks: its creator before they attach and to speak for
// ranks that can't, or an observer.
class GroupSegment {
 public:
  explicit GroupSegment(const GroupShape& shape) : segment_(create_group_segment(shape)), layout_(layout_of(segment_)) {}
  GroupSegment(int descriptor, bool is_writable)
      : segment_(Segment::attach(descriptor, is_writable ? Access::kWrite : Access::kRead)), layout_(layout_of(segment_)) {}

  int descriptor() const { return segment_.descriptor(); }
  std::size_t size() const { return segment_.size(); }
  nb::str name() const { return text_of(read_name(layout_)); }
  nb::bytes nonce() const {
    return nb::bytes(reinterpret_cast<const char*>(layout_.header().nonce), sizeof(layout_.header().nonce));
  }
  // A process was started to become this rank, or a thread of it.
  void launched(int rank, int pid, std::uint64_t thread) {
    check_rank(layout_, rank);
    Member& member = layout_.member(rank);
    if (thread != 0) {
      member.thread.store(thread);
      member.is_thread.store(1);
    }
    member.launched_pid.store(pid);
  }
  nb::object fault() const { return fault_of(layout_); }
  nb::object records(int rank) const { return records_of(layout_, rank); }
  int num_ranks() const { return layout_.num_ranks(); }
  void close_descriptor() { segment_.close_descriptor(); }
  void set_dead(int rank, int status) {
    check_rank(layout_, rank);
    declare_dead(layout_, rank, status);
  }
  void fail(int culprit, const nb::str& text) {
    set_fault(layout_, FaultKind::kPeerFailed, culprit, kLauncher, 0, {utf8_of(text)});
  }
  void break_deadlock(int reporter, Seq seq, const nb::str& circle) {
    set_fault_quietly(layout_, FaultKind::kDeadlock, -1, reporter, seq, {utf8_of(circle)});
  }
  void wake() { wake_everybody(layout_); }
  bool is_broken() const { return layout_.header().fault.state.load() != 0; }
  nb::list snapshot() const {
    return snapshot_of(layout_, [this](int rank) { return layout_.member(rank).exit_status.load(); });
  }

 private:
  Segment segment_;
  Layout layout_;
};

nb::bytes nonce(RankEndpoint& self) {
  const auto& nonce = self.core().layout().header().nonce;
  return nb::bytes(reinterpret_cast<const char*>(nonce), sizeof(nonce));
}

// Plain shared memory for symmetric tensors.
Segment create_plain_segment(const nb::str& label, std::size_t bytes) {
  return Segment::create(utf8_of(label), bytes);
}

void open_trace(TraceFile* self, const nb::str& path, int rank, std::size_t limit_bytes) {
  try {
    new (self) TraceFile(path_of(path), rank, limit_bytes);
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
    throw nb::python_error();
  }
}

}  // namespace

nb::object RankEndpoint::adopt_symmetric(int descriptor, std::uint64_t id) {
  auto block = std::make_shared<SymmetricBlock>(Segment::attach(descriptor), endpoint_->rank(), endpoint_->num_ranks(), id);
  symmetric_.add(block);
  auto* kept = new std::shared_ptr<SymmetricBlock>(block);
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::shared_ptr<SymmetricBlock>*>(p); });
  const std::size_t shape[] = {block->stride()};
  return nb::cast(nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(block->own(), 1, shape, owner), nb::rv_policy::reference);
}

}  // namespace phalanx::python

NB_MODULE(_native, m) {
  using namespace phalanx;
  using namespace phalanx::python;

  nb::set_leak_warnings(false);
  import_facts();
  static nb::object out_of_memory = nb::borrow(PyErr_NewException("phalanx.engine._native.OutOfMemory", PyExc_MemoryError, nullptr));
  m.attr("OutOfMemory") = out_of_memory;
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const OutOfMemory& e) {
      PyErr_SetObject(out_of_memory.ptr(), nb::make_tuple(e.needed_bytes, e.available_bytes).ptr());
    } catch (const std::system_error& e) {  // an OSError with its number, so that its class says what it is
      PyErr_SetObject(PyExc_OSError, nb::make_tuple(e.code().value(), e.what()).ptr());
    }
  });

  m.attr("ANY_SOURCE") = kAnySource;
  m.attr("MAX_RANKS") = kMaxRanks;
  m.def("usable_cores", [](const std::string& process) { return usable_cores(process); }, "process"_a = "/proc/self");
  m.def("available_memory_bytes", &available_memory_bytes, "process"_a = "/proc/self");
  nb::class_<ControlGroups>(m, "ControlGroups")
      .def(nb::init<const std::string&>(), "process"_a = "/proc/self")
      .def("memory_limit_bytes", &ControlGroups::memory_limit_bytes)
      .def("memory_left_bytes", &ControlGroups::memory_left_bytes)
      .def("processes_left", &ControlGroups::processes_left)
      .def("cores", &ControlGroups::cores);
  m.def("num_long_waits", &LongWaits::count);
  m.def("forget_long_waits", &LongWaits::forget);
  m.def("on_long_wait", [](nb::object listener) { LongWaits::set_listener(listener.is_none() ? nullptr : listener.ptr()); },
        "listener"_a.none());
  m.def("signal_thread", [](int pid, int thread, int number) { return syscall(SYS_tgkill, pid, thread, number) == 0; },
        "pid"_a, "thread"_a, "number"_a);
  m.def("admit_device_type", &admit_device_type, "dlpack_type"_a, "is_driver_memory"_a = false);
  m.def("open_gate",
        [](nb::object judge, nb::object int8, nb::object uint8, nb::list samples) {
          std::vector<Sample> known;
          for (nb::handle sample : samples)
            known.push_back({nb::borrow(sample[0]), nb::cast<std::uint64_t>(sample[1]), nb::cast<std::uint64_t>(sample[2]),
                             nb::cast<std::uint64_t>(sample[3]), nb::cast<bool>(sample[4])});
          return open_gate(std::move(judge), std::move(int8), std::move(uint8), known);
        },
        "judge"_a, "int8"_a, "uint8"_a, "samples"_a);
  m.def("use_cuda", &use_cuda, "driver"_a, "compilers"_a, "cache_folder"_a, "warn"_a);

  nb::class_<Segment>(m, "Segment")
      .def_prop_ro("descriptor", &Segment::descriptor)
      .def_prop_ro("size_bytes", &Segment::size)
      .def("close_descriptor", &Segment::close_descriptor);
  m.def("create_segment", &create_plain_segment, "label"_a, "size_bytes"_a);

  nb::class_<GroupSegment>(m, "GroupSegment")
      .def("__init__",
           [](GroupSegment* self, const nb::str& name, int num_ranks, int crowd, int cores, std::size_t chunk_bytes,
              std::size_t eager_bytes, std::size_t bulk_bytes) {
             new (self) GroupSegment(GroupShape{utf8_of(name), num_ranks, crowd, cores, chunk_bytes, eager_bytes, bulk_bytes});
           },
           "name"_a, "num_ranks"_a, "crowd"_a, "cores"_a, "chunk_bytes"_a, "eager_bytes"_a, "bulk_bytes"_a)
      .def_static("attach",
                  [](int descriptor, bool is_writable) { return std::make_unique<GroupSegment>(descriptor, is_writable); },
                  "descriptor"_a, nb::kw_only(), "is_writable"_a = true)
      .def_prop_ro("nonce", &GroupSegment::nonce)
      .def("launched", &GroupSegment::launched, "rank"_a, "pid"_a, "thread"_a = 0)
      .def("fault", &GroupSegment::fault)
      .def("records", &GroupSegment::records, "rank"_a)
      .def_prop_ro("name", &GroupSegment::name)
      .def_prop_ro("num_ranks", &GroupSegment::num_ranks)
      .def_prop_ro("descriptor", &GroupSegment::descriptor)
      .def_prop_ro("size_bytes", &GroupSegment::size)
      .def("close_descriptor", &GroupSegment::close_descriptor)
      .def("declare_dead", &GroupSegment::set_dead, "rank"_a, "status"_a)
      .def("fail", &GroupSegment::fail, "culprit"_a, "text"_a)
      .def("break_deadlock", &GroupSegment::break_deadlock, "reporter"_a, "seq"_a, "circle"_a)
      .def("wake", &GroupSegment::wake)
      .def_prop_ro("is_broken", &GroupSegment::is_broken)
      .def("snapshot", &GroupSegment::snapshot);

  nb::class_<TraceFile>(m, "TraceFile")
      .def("__init__", &open_trace, "path"_a, "rank"_a, "limit_bytes"_a)
      .def_prop_ro("is_truncated", &TraceFile::is_truncated)
      .def("close", &TraceFile::close);

  nb::class_<NativeWork>(m, "NativeWork", nb::type_slots(work_slots()));

  nb::class_<RankEndpoint>(m, "RankEndpoint", nb::is_weak_referenceable(), nb::type_slots(operation_slots()))
      .def("__init__",
           [](RankEndpoint* self, int descriptor, int rank, bool is_thread, double timeout_s,
              const std::vector<nb::str>& library_folders, nb::object explain) {
             new (self) RankEndpoint(descriptor, rank, is_thread, timeout_s, each_of(library_folders, utf8_of), std::move(explain));
           },
           "descriptor"_a, "rank"_a, "is_thread"_a, "timeout_s"_a, "library_folders"_a, "explain"_a)
      .def_prop_ro("rank", &RankEndpoint::rank, "The number of this rank, from 0.")
      .def_prop_ro("size", &RankEndpoint::num_ranks, "The number of ranks.")
      .def_prop_ro("crowd", [](RankEndpoint& self) { return self.core().layout().header().crowd; },
                   "The number of ranks of the job, which share the machine's cores.")
      .def_prop_ro("is_crowded", [](RankEndpoint& self) { return self.core().layout().header().is_crowded != 0; },
                   "Whether there are more ranks than cores to run them.")
      .def_prop_ro("name", [](RankEndpoint& self) { return text_of(read_name(self.core().layout())); }, "The group's name.")
      .def_prop_ro("size_bytes", [](RankEndpoint& self) { return self.core().layout().total_bytes(); },
                   "How much shared memory the group has.")
      .def_prop_ro("nonce", &nonce, "Random bytes that only this group has.")
      .def_prop_ro("is_closed", &RankEndpoint::is_closed, "Whether this rank has left the group.")
      .def_rw("timeout_s", &RankEndpoint::timeout_s, "The timeout of operations that have none of their own, in seconds.")
      .def("refuse",
           [](RankEndpoint& self, const std::string& operation, const nb::str& text) { return self.refuse(operation, utf8_of(text)); },
           "operation"_a, "text"_a, "Tell peers that this rank's arguments were wrong; return the error to raise.")
      .def("abort", [](RankEndpoint& self, const nb::str& reason) { self.abort(utf8_of(reason)); }, "reason"_a = "",
           "Break the group: every rank that waits in it gets an AbortedError at once.")
      .def("fail", [](RankEndpoint& self, const nb::str& text) { self.fail(utf8_of(text)); }, "text"_a,
           "Tell peers that this rank has raised an error outside the group's operations.")
      .def("_die", &RankEndpoint::die, "status"_a)
      .def("_join_hosts", &RankEndpoint::join_hosts, "descriptor"_a, "hosts"_a, "rank"_a, "wire"_a, "helper"_a)
      .def("watch", &RankEndpoint::watch, "ancestor"_a, "Fail when the other group fails, from which this one was made.")
      .def("find_dead", &RankEndpoint::find_dead, "Return the ranks that are dead or have left.")
      .def("fault", [](RankEndpoint& self) { return fault_of(self.core().layout()); },
           "Return why the group is broken, or None.")
      .def("_note_end", [](RankEndpoint& self) { self.note_departure(Departure::kEnded); })
      .def("_set_debugged", &RankEndpoint::set_debugged, "is_debugged"_a)
      .def("_set_other_threads", &RankEndpoint::set_other_threads, "are_there"_a, "run_program"_a)
      .def_prop_ro("_debugged_rank", &RankEndpoint::debugged_rank)
      .def("_trace", &RankEndpoint::trace, "file"_a.none())
      .def_prop_ro("_num_open_handles", &RankEndpoint::num_open_handles)
      .def("records", [](RankEndpoint& self, int rank) { return records_of(self.core().layout(), rank); }, "rank"_a,
           "Return the last operations and messages of a rank, oldest first.")
      .def("_set_recorder", &RankEndpoint::set_recorder, "recorder"_a.none())
      .def("_set_interceptor", &RankEndpoint::set_interceptor, "interceptor"_a.none())
      .def("drain", &RankEndpoint::drain, "Wait for operations under way.")
      .def("close", &RankEndpoint::close, "Leave the group at once; operations under way fail.")
      .def("entry", &RankEndpoint::entry, "rank"_a, "seq"_a, "Return what the journal has of one operation of a rank, or None.")
      .def("snapshot", &RankEndpoint::snapshot, "Return what each rank called last, and what it waits for.")
      .def("adopt_symmetric", &RankEndpoint::adopt_symmetric, "descriptor"_a, "id"_a,
           "Map memory that all ranks share; return this rank's part as an array.");
}
