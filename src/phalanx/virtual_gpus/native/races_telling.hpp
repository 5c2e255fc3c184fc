// The detector of this process, its callers, and how it reports a race: not at all, by a warning or by an exception.
//
// Threads may share all of it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <stdexcept>

#include "races_detector.hpp"
#include "races_python.hpp"

namespace phalanx::devices::races {

enum class Mode : int { kOff = 0, kWarn = 1, kRaise = 2 };

// What torch knows about the calling thread; each function may be null.
struct Hooks {
  bool (*forward_number)(ForwardNumber&) = nullptr;                    // false if autograd records nothing
  bool (*backward_node)(std::string& name, ForwardNumber&) = nullptr;  // false outside the backward pass
  void (*switched)(bool is_on) = nullptr;                              // the detector was switched on or off
};

// Python's callback: gets the facts as JSON, returns an exception to raise (a new reference) or null.
using Tell = void* (*)(const char* json);

struct State {
  std::atomic<int> mode{0};
  std::atomic<bool> has_unraised{false};
  std::atomic<bool> has_copies_in_flight{false};  // copies of pinned memory that may be under way
  std::atomic<Tell> tell{nullptr};
  Hooks hooks;  // these two are written once, before the detector is first switched on
  std::string device_type = "cuda";

  std::mutex lock;  // guards everything below
  std::unique_ptr<Detector> detector = std::make_unique<Detector>();
  std::vector<std::string> seen;  // as JSON
  std::set<std::string> reported;  // pairs of lines
  std::vector<Report> unraised;   // races found where no exception is possible
};

// Never destroyed: threads of torch may still use it at the end of the process.
inline State& state = *new State;

inline bool is_on() { return state.mode.load(std::memory_order_relaxed) != 0; }
inline bool raises() { return state.mode.load(std::memory_order_relaxed) == static_cast<int>(Mode::kRaise); }

// While one is alive, this thread's line is looked up only once.
class Operation {
 public:
  Operation() : is_counted_(is_on()) { depth += is_counted_ ? 1 : 0; }
  ~Operation() {
    if (is_counted_ && --depth == 0) {
      is_known = false;
      name = nullptr;
    }
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  static inline thread_local int depth = 0;
  static inline thread_local bool is_known = false;
  static inline thread_local const char* name = nullptr;  // the operation that allocates
  static inline thread_local Where where{};

 private:
  bool is_counted_;
};

inline Where find_where() {
  if (Operation::is_known) return Operation::where;
  Where where;
  where.place = python.caller();
  std::string node;
  if (state.hooks.backward_node != nullptr && state.hooks.backward_node(node, where.forward))
    where.backward_node = names.get(node);
  else if (state.hooks.forward_number != nullptr)
    where.forward.is_known = state.hooks.forward_number(where.forward);
  if (Operation::depth > 0) {
    Operation::where = where;
    Operation::is_known = true;
  }
  return where;
}

// For callers that must not throw: the next caller that may throw delivers these reports.
inline void keep_for_later(std::vector<Report> reports) {
  if (reports.empty()) return;
  std::lock_guard guard(state.lock);
  for (Report& report : reports) state.unraised.push_back(std::move(report));
  state.has_unraised.store(true, std::memory_order_release);
}

// Each pair of lines is reported once, unless races are raised.
inline bool is_news(const Report& report, const std::string& json) {
  static constexpr std::size_t kMostSeen = 1000, kMostReported = 10000;
  std::ostringstream pair;
  pair << name_of(report.kind);
  for (const Site* site : {&report.here.site, &report.earlier.site}) {
    const Place& place = site->line();
    pair << ' ' << place.file << ':' << place.line << ':' << (place.is_known() ? nullptr : site->operation);
  }
  std::lock_guard guard(state.lock);
  const bool is_new = state.reported.size() < kMostReported && state.reported.insert(pair.str()).second;
  const bool is_raised = raises();
  if ((is_new || is_raised) && state.seen.size() < kMostSeen) state.seen.push_back(json);
  return is_new || is_raised;
}

// Warns of each report, or throws the first. Without Python, warnings only go to `seen`.
inline void deliver(const std::vector<Report>& reports) {
  void* exception = nullptr;
  std::string text;
  for (const Report& report : reports) {
    const std::string words = Wording(report, state.device_type).text();
    const std::string json = Json::of(report, words);
    if (!is_news(report, json)) continue;
    if (text.empty()) text = words;
    const Tell tell = state.tell.load(std::memory_order_acquire);
    if (tell == nullptr || !python.is_usable()) continue;
    void* answer = tell(json.c_str());
    if (exception == nullptr)
      exception = answer;
    else
      python.release(answer);
  }
  if (exception != nullptr) python.raise(exception, text);
  if (!text.empty() && state.tell.load() == nullptr && raises()) throw std::runtime_error("RaceError: " + text);
}

inline void deliver_unraised() {
  if (!state.has_unraised.load(std::memory_order_acquire)) return;
  std::vector<Report> reports;
  {
    std::lock_guard guard(state.lock);
    reports.swap(state.unraised);
    state.has_unraised.store(false, std::memory_order_release);
  }
  deliver(reports);
}

// The caller holds the lock.
inline void forget_everything() {
  state.detector = std::make_unique<Detector>();
  state.seen.clear();
  state.reported.clear();
  state.unraised.clear();
  state.has_unraised.store(false);
  state.has_copies_in_flight.store(false);
}

// A process may fork while another of its threads holds a lock, so hold the locks during a fork. The child forgets the
// parent's operations.
inline void survive_forks() {
  const auto hold = [] {
    state.lock.lock();
    names.lock();
  };
  const auto release = [] {
    names.unlock();
    state.lock.unlock();
  };
  const auto begin_child = [] {
    names.unlock();
    forget_everything();
    state.lock.unlock();
  };
  static const int once = pthread_atfork(hold, release, begin_child);
  static_cast<void>(once);
}

// Switching it on starts with an empty history.
inline void set_mode(Mode mode) {
  survive_forks();
  {
    std::lock_guard guard(state.lock);
    if (state.mode.load() == 0 && mode != Mode::kOff) {
      state.detector = std::make_unique<Detector>();
      state.has_copies_in_flight.store(false);
    }
    state.mode.store(static_cast<int>(mode));
  }
  if (state.hooks.switched != nullptr) state.hooks.switched(mode != Mode::kOff);
}

inline void clear() {
  std::lock_guard guard(state.lock);
  forget_everything();
}

}  // namespace phalanx::devices::races
