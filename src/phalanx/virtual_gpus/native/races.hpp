// The race detector of virtual devices: it finds accesses of streams to memory that nothing orders.
//
// Operations of virtual devices run one after the other, so a missing wait never shows in the data. The detector
// records each launch, wait, allocation and copy. Two accesses to the same bytes, one of them a write, must be ordered
// by streams, events or the host. Threads may share all of it. If it is off, every function is one relaxed load. Call
// these functions without holding a lock: they take the GIL to look up the caller's line, and those marked so throw.
#pragma once

#include "races_telling.hpp"

namespace phalanx::devices::races {

// Call a function with the detector, if it is on.
template <typename Body>
void note(Body body) {
  if (!is_on()) return;
  std::lock_guard guard(state.lock);
  body(*state.detector);
}

// Report the races of an operation, then record it. If the report throws, the operation does not run and is not
// recorded, so later operations need not wait for it.
template <typename TakeIn>
void look(const Launch& launch, TakeIn take_in) {
  std::vector<Report> reports;
  {
    std::lock_guard guard(state.lock);
    reports = state.detector->look(launch);
    if (reports.empty() && !state.has_unraised.load(std::memory_order_acquire)) return take_in(*state.detector);
  }
  deliver(reports);
  deliver_unraised();
  note(take_in);
}

// An operation on a stream. Throws.
inline void launch(StreamKey current, std::span<const Access> accesses, const char* operation) {
  if (!is_on()) return;
  const Where where = find_where();
  const Launch one{current, accesses, names.get(operation), where};
  look(one, [&](Detector& detector) { detector.take_in(one); });
}

// A copy from one device to another: it runs after the current streams of both, and both continue after it. Throws.
inline void copy_between_devices(StreamKey source, StreamKey destination, std::span<const Access> accesses,
                                 const char* operation) {
  if (!is_on()) return;
  const Where where = find_where();
  const Launch copy = Detector::copy_between_devices(source, destination, accesses, names.get(operation), where);
  look(copy, [&](Detector& detector) { detector.take_in_copy_between_devices(copy); });
}

// If false, host_touches() need not be called.
inline bool has_copies_in_flight() { return state.has_copies_in_flight.load(std::memory_order_relaxed); }

// The next copy on the CPU implements a device's copy, so it is not an access of the host.
inline thread_local bool own_copy_follows = false;

// A copy between device and host. Only with pinned memory may the copy still run when the call returns; a copy from or
// to pageable memory is complete by then. Throws.
inline void copy_with_host(StreamKey current, const Access& on_device, const Access& on_host, bool is_host_pinned,
                           bool is_non_blocking, const char* operation) {
  if (!is_on()) return;
  const Where where = find_where();
  Launch copy{current, {&on_device, 1}, names.get(operation), where};
  if (is_host_pinned) copy.on_host = &on_host;
  copy.is_left_in_flight = is_non_blocking && is_host_pinned;
  look(copy, [&](Detector& detector) {
    detector.take_in(copy);
    if (!is_non_blocking || (!is_host_pinned && on_host.is_write)) detector.host_waits_for_stream(current);
    if (copy.is_left_in_flight) state.has_copies_in_flight.store(true, std::memory_order_relaxed);
  });
  own_copy_follows = has_copies_in_flight();
}

// An operation of the CPU. The next operation of a device raises its races, because torch allows no exception here.
inline void host_touches(std::span<const Access> accesses, const char* operation) {
  if (!is_on() || !has_copies_in_flight()) return;
  bool is_in_flight = false;
  note([&](Detector& detector) {
    state.has_copies_in_flight.store(detector.has_copies_in_flight());
    is_in_flight = detector.is_in_flight(accesses);
  });
  if (!is_in_flight) return;
  const Where where = find_where();
  const std::string* name = names.get(operation);
  std::vector<Report> reports;
  note([&](Detector& detector) { reports = detector.host_touches(accesses, name, where); });
  keep_for_later(std::move(reports));
}

// A collective on the stream of its group, given by a number; returns its ticket. Throws.
inline std::uint64_t begin_collective(StreamKey current, std::span<const Access> accesses, std::int64_t group_number,
                                      const char* operation) {
  if (!is_on()) return 0;
  std::uint64_t ticket = 0;
  const Where where = find_where();
  const Launch collective = Detector::collective(current, accesses, group_number, names.get(operation), where);
  look(collective, [&](Detector& detector) { ticket = detector.take_in_collective(collective); });
  return ticket;
}

inline void wait_collective(std::uint64_t ticket, StreamKey current) {
  note([&](Detector& detector) { detector.wait_collective(ticket, current); });
}

inline void record(const void* event, StreamKey stream) {
  note([&](Detector& detector) { detector.record(event, stream); });
}
inline void wait(StreamKey stream, const void* event) {
  note([&](Detector& detector) { detector.wait(stream, event); });
}
inline void forget_event(const void* event) noexcept {
  note([&](Detector& detector) { detector.forget_event(event); });
}

inline void host_waits_for_stream(StreamKey stream) {
  note([&](Detector& detector) { detector.host_waits_for_stream(stream); });
}
inline void host_waits_for_device(int device) {
  note([&](Detector& detector) { detector.host_waits_for_device(device); });
}
inline void host_waits_for_event(const void* event) {
  note([&](Detector& detector) { detector.host_waits_for_event(event); });
}

// The memory now belongs to the stream. For other streams, this counts as a write by that stream.
inline void allocated(const void* block, std::size_t size_bytes, StreamKey current) {
  if (!is_on()) return;
  const Where where = find_where();
  const std::string* name = names.get(Operation::name != nullptr ? Operation::name : "an allocation");
  note([&](Detector& detector) { detector.allocated(block, size_bytes, current, name, where); });
}

// The block is memory of a device, or pinned memory.
inline void freed(const void* block) noexcept {
  if (!is_on()) return;
  Where where;
  if (python.holds_lock()) where.place = python.caller();  // without the GIL, waiting for it could block for ever
  note([&](Detector& detector) { detector.freed(block, where); });
}

inline void record_stream(const void* block, StreamKey stream) {
  note([&](Detector& detector) { detector.record_stream(block, stream); });
}

inline void emptied_cache() {
  note([](Detector& detector) { detector.emptied_cache(); });
}

}  // namespace phalanx::devices::races
