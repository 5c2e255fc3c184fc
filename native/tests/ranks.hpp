// Runs a test body on several ranks: as threads on one mapping, or as processes made by fork.
#pragma once

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <algorithm>
#include <fstream>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../core/endpoint.hpp"
#include "check.hpp"
#include "shared_mapping.hpp"

namespace ranks {

using namespace phalanx;
using EndpointPtr = std::shared_ptr<Endpoint>;
using Body = std::function<void(const EndpointPtr&)>;

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kCanFork = false;
#else
inline constexpr bool kCanFork = true;
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

// How many times longer something may take than on a machine that has a core for each process that can run.
inline double patience() {
  std::ifstream file("/proc/loadavg");  // "24.12 19.40 13.63 20/184 22144": 20 processes can run
  double minute = 0, minutes = 0, quarter = 0, num_ready = 0;
  file >> minute >> minutes >> quarter >> num_ready;
  return (kIsSanitized ? 3 : 1) * std::max(1.0, std::max(minute, num_ready) / double(std::thread::hardware_concurrency()));
}

inline void require_fork() {
  if (!kCanFork) throw check::Skipped("the thread sanitizer does not go with fork");
}

// Small buffers: a few kilobytes already take many chunks.
inline GroupShape small_shape(int num_ranks) {
  GroupShape shape;
  shape.name = "native test";
  shape.num_ranks = num_ranks;
  shape.chunk_bytes = 8192;
  shape.eager_bytes = 4096;
  shape.bulk_bytes = 4096;
  return shape;
}

// As on a machine with a core for every rank, wherever this runs.
inline GroupShape roomy_shape(int num_ranks) {
  GroupShape shape = small_shape(num_ranks);
  shape.cores = num_ranks;
  shape.chunk_bytes = 128 * 1024;  // there is room to go round in
  return shape;
}

inline std::int64_t seconds_from_now(double seconds) { return monotonic_ns() + std::int64_t(seconds * 1e9); }

inline Call call_of(Operation operation, std::uint64_t count = 0, DType dtype = DType::kInt32, int root = 0,
                    double timeout_s = 20) {
  Call call;
  call.operation = operation;
  call.dtype = dtype;
  call.root = root;
  call.count = count;
  call.start_ns = monotonic_ns();
  call.deadline_ns = seconds_from_now(timeout_s);
  return call;
}

template <class Condition>
void wait_until(const Condition& condition, double timeout_s = 20) {
  const std::int64_t deadline = seconds_from_now(timeout_s);
  while (!condition()) {
    if (monotonic_ns() > deadline) throw check::Failure("a condition did not come true in time");
    sched_yield();
  }
}

// Collects what went wrong on each rank. Thread-safe.
class Problems {
 public:
  void add(int rank, const std::string& problem) {
    if (problem.empty()) return;
    const std::lock_guard lock(mutex_);
    text_ += " [rank " + std::to_string(rank) + "] " + problem;
  }
  void raise() const {
    if (!text_.empty()) throw check::Failure(text_);
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

inline void run_threads(const GroupShape& shape, const Body& body) {
  const Segment segment = create_group_segment(shape);
  Problems problems;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      problems.add(rank, check::problem_of([&] { body(endpoint_on(segment, rank)); }));
    });
  }
  for (std::thread& thread : threads) thread.join();
  problems.raise();
}

// A process made by fork. It can't outlive this one, nor the test.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : parent_(getpid()), pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(check::kTestSeconds);
    const std::string problem = check::problem_of(body);
    if (!problem.empty()) std::fprintf(stderr, "\n  [pid %d] %s\n", getpid(), problem.c_str());
    _exit(problem.empty() ? 0 : 1);
  }
  Child(Child&& other) noexcept : parent_(other.parent_), pid_(std::exchange(other.pid_, -1)) {}
  ~Child() {
    if (pid_ <= 0 || getpid() != parent_) return;
    kill();
    wait();
  }

  pid_t pid() const noexcept { return pid_; }
  void kill(int signal = SIGKILL) const noexcept { ::kill(pid_, signal); }
  // The status of waitpid, or -1 if it has not ended by then.
  int wait(double timeout_s = 30) {
    const std::int64_t deadline = seconds_from_now(timeout_s * patience());
    for (int status = 0; monotonic_ns() < deadline; usleep(200)) {
      if (waitpid(pid_, &status, WNOHANG) != pid_) continue;
      pid_ = -1;
      return status;
    }
    return -1;
  }

 private:
  pid_t parent_;
  pid_t pid_;
};

inline Child fork_rank(const Segment& segment, int rank, const Body& body) {
  return Child([&] { body(std::make_shared<Endpoint>(Segment::attach(segment.descriptor()), rank, false)); });
}

inline void run_processes(const GroupShape& shape, const Body& body) {
  require_fork();
  const Segment segment = create_group_segment(shape);
  std::vector<Child> children;
  for (int rank = 0; rank < shape.num_ranks; ++rank) children.push_back(fork_rank(segment, rank, body));
  Problems problems;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    const int status = children[std::size_t(rank)].wait();
    if (status != 0) problems.add(rank, "ended with wait status " + std::to_string(status));
  }
  problems.raise();
}

inline void on_threads_and_processes(const GroupShape& shape, const Body& body) {
  run_threads(shape, body);
  if (kCanFork) run_processes(shape, body);
}
inline void on_threads_and_processes(int num_ranks, const Body& body) {
  on_threads_and_processes(small_shape(num_ranks), body);
}

// Every wait of this thread is interrupted while it lives.
struct Interruption final : Waiter {
  Interruption() { Endpoint::waiter = this; }
  ~Interruption() { Endpoint::waiter = nullptr; }
  void begin_waiting() noexcept override {}
  bool is_interrupted() override { return true; }
};

// The trouble that `body` ends in. `within_s` is how long that may take.
template <class Run>
Trouble trouble_of(const Run& body, double within_s = 1.0) {
  const std::int64_t start = monotonic_ns();
  try {
    body();
  } catch (const Trouble& trouble) {
    const double took_s = check::seconds_since(start);
    if (took_s <= patience() * within_s) return trouble;
    throw check::Failure("the trouble took " + std::to_string(took_s) + " s");
  }
  throw check::Failure("there should have been trouble");
}

}  // namespace ranks
