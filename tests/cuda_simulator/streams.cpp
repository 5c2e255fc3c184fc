// Streams, events and copies of the simulated driver.
//
// A stream is a queue. Its work is done within the call that asks for it; with SIMULATED_DELAY_US a thread of its own
// does it that much later, so that whoever forgets to wait sees old data. Streams never wait for each other on their own,
// not even for the default one.
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "simulator.hpp"

namespace simulator {

struct Job {
  std::function<void()> work;
  std::chrono::microseconds delay;
};

struct Stream {
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<Job> jobs;
  bool is_busy = false;
  bool has_thread = false;

  bool is_idle() const { return jobs.empty() && !is_busy; }
};

struct Moment {
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::uint64_t num_records = 0, num_passed = 0;

  bool has_passed(std::uint64_t record) {
    const std::lock_guard lock(mutex);
    return num_passed >= record;
  }
  void wait_until_passed(std::uint64_t record) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return num_passed >= record; });
  }
  void pass(std::uint64_t record) {
    const std::lock_guard lock(mutex);
    num_passed = std::max(num_passed, record);
    changed.notify_all();
  }
  std::uint64_t last_record() {
    const std::lock_guard lock(mutex);
    return num_records;
  }
};

struct Event {
  std::shared_ptr<Moment> moment = std::make_shared<Moment>();  // work that waits for it may outlive the event
};

namespace {

struct Streams {
  std::mutex mutex;  // guards what follows
  std::set<Stream*> all;
};

Streams& streams() {
  static Streams& one = *new Streams;
  return one;
}

void run_job(Stream& stream, std::unique_lock<std::mutex>& lock, const std::function<void()>& work) {
  stream.is_busy = true;
  lock.unlock();
  work();
  lock.lock();
  stream.is_busy = false;
  stream.changed.notify_all();
}

[[noreturn]] void serve(Stream& stream) {
  std::unique_lock lock(stream.mutex);
  for (;;) {
    stream.changed.wait(lock, [&] { return !stream.jobs.empty() && !stream.is_busy; });
    const Job job = std::move(stream.jobs.front());
    stream.jobs.pop_front();
    run_job(stream, lock, [&] {
      std::this_thread::sleep_for(job.delay);
      job.work();
    });
  }
}

// The caller holds the stream's mutex.
void queue(Stream& stream, Job job) {
  stream.jobs.push_back(std::move(job));
  if (!stream.has_thread) std::thread([&stream] { serve(stream); }).detach();
  stream.has_thread = true;
  stream.changed.notify_all();
}

// At once if nothing is before it: neither takes time on a device.
void submit_mark(Stream& stream, bool may_wait, std::function<void()> work) {
  std::unique_lock lock(stream.mutex);
  if (stream.is_idle() && !may_wait) run_job(stream, lock, work);
  else queue(stream, {std::move(work), std::chrono::microseconds(0)});
}

void wait_until_idle(Stream& stream) {
  std::unique_lock lock(stream.mutex);
  stream.changed.wait(lock, [&] { return stream.is_idle(); });
}

Stream* new_stream() {
  auto* stream = new Stream;
  const std::lock_guard lock(streams().mutex);
  streams().all.insert(stream);
  return stream;
}

}  // namespace

Stream* stream_at(void* handle) {
  static Stream* const standard = new_stream();
  if (reinterpret_cast<std::uintptr_t>(handle) <= 2) return standard;  // null, legacy, per thread
  const std::lock_guard lock(streams().mutex);
  const auto found = streams().all.find(static_cast<Stream*>(handle));
  return found == streams().all.end() ? nullptr : *found;
}

void submit(Stream& stream, std::function<void()> work) {
  const std::chrono::microseconds delay(setting("SIMULATED_DELAY_US"));
  std::unique_lock lock(stream.mutex);
  if (delay.count() > 0) return queue(stream, {std::move(work), delay});
  stream.changed.wait(lock, [&] { return stream.is_idle(); });
  run_job(stream, lock, work);
}

void wait_for_all_streams() {
  std::set<Stream*> all;
  {
    const std::lock_guard lock(streams().mutex);
    all = streams().all;
  }
  for (Stream* stream : all) wait_until_idle(*stream);
}

}  // namespace simulator

using namespace simulator;

#define FIND_STREAM(stream, handle)                                      \
  if (const Result why = usable(); why != kSuccess) return why;          \
  Stream* const stream = stream_at(handle);                              \
  if (stream == nullptr) return kInvalidHandle

EXPORT Result cuStreamCreateWithPriority(Stream** stream, unsigned, int) {
  if (const Result why = usable(); why != kSuccess) return why;
  if (current_context() == nullptr) return kInvalidContext;
  *stream = new_stream();
  return kSuccess;
}

EXPORT Result cuStreamSynchronize(void* handle) {
  FIND_STREAM(stream, handle);
  wait_until_idle(*stream);
  return kSuccess;
}

EXPORT Result cuStreamQuery(void* handle) {
  FIND_STREAM(stream, handle);
  const std::lock_guard lock(stream->mutex);
  return stream->is_idle() ? kSuccess : kNotReady;
}

EXPORT Result cuStreamGetFlags(void* handle, unsigned* flags) {
  FIND_STREAM(stream, handle);
  *flags = handle == nullptr ? 0 : 1;  // non-blocking
  return kSuccess;
}

EXPORT Result cuStreamIsCapturing(void* handle, int* status) {
  FIND_STREAM(stream, handle);
  *status = 0;
  return kSuccess;
}

EXPORT Result cuStreamWaitEvent(void* handle, Event* event, unsigned) {
  FIND_STREAM(stream, handle);
  if (event == nullptr) return kInvalidHandle;
  const std::shared_ptr<Moment> moment = event->moment;
  const std::uint64_t record = moment->last_record();
  submit_mark(*stream, !moment->has_passed(record), [moment, record] { moment->wait_until_passed(record); });
  return kSuccess;
}

EXPORT Result cuEventCreate(Event** event, unsigned) {
  if (const Result why = usable(); why != kSuccess) return why;
  if (current_context() == nullptr) return kInvalidContext;
  *event = new Event;
  return kSuccess;
}

EXPORT Result cuEventRecord(Event* event, void* handle) {
  FIND_STREAM(stream, handle);
  if (event == nullptr) return kInvalidHandle;
  const std::shared_ptr<Moment> moment = event->moment;
  std::uint64_t record = 0;
  {
    const std::lock_guard lock(moment->mutex);
    record = ++moment->num_records;
  }
  submit_mark(*stream, false, [moment, record] { moment->pass(record); });
  return kSuccess;
}

EXPORT Result cuEventQuery(Event* event) {
  if (const Result why = usable(); why != kSuccess) return why;
  if (event == nullptr) return kInvalidHandle;
  return event->moment->has_passed(event->moment->last_record()) ? kSuccess : kNotReady;
}

EXPORT Result cuEventSynchronize(Event* event) {
  if (const Result why = usable(); why != kSuccess) return why;
  if (event == nullptr) return kInvalidHandle;
  event->moment->wait_until_passed(event->moment->last_record());
  return kSuccess;
}

EXPORT Result cuEventDestroy_v2(Event* event) {
  if (const Result why = usable(); why != kSuccess) return why;
  if (event == nullptr) return kInvalidHandle;
  delete event;
  return kSuccess;
}

namespace {

Result copy(void* handle, void* to, const void* from, std::size_t bytes) {
  FIND_STREAM(stream, handle);
  submit(*stream, [=] { std::memmove(to, from, bytes); });
  return kSuccess;
}

template <class T>
T* pointer(Address address) { return reinterpret_cast<T*>(address); }

}  // namespace

EXPORT Result cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, void* stream) {
  if (!is_on_device(from, bytes)) return kInvalidValue;
  return copy(stream, to, pointer<const void>(from), bytes);
}

EXPORT Result cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, void* stream) {
  if (!is_on_device(to, bytes)) return kInvalidValue;
  return copy(stream, pointer<void>(to), from, bytes);
}

EXPORT Result cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes, void* stream) {
  if (!is_on_device(to, bytes) || !is_on_device(from, bytes)) return kInvalidValue;
  return copy(stream, pointer<void>(to), pointer<const void>(from), bytes);
}
