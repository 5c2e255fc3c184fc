#include "watched_process.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>

#include "process_status.hpp"

namespace phalanx {

// A forked child gets a new one: the lock of the old one may be held for ever by a thread that the child does not have.
struct WatchedProcess::Registry {
  std::mutex mutex;
  std::map<Key, std::weak_ptr<const WatchedProcess>> processes;  // guarded by mutex
};

WatchedProcess::Registry& WatchedProcess::registry() {
  static std::atomic<Registry*> current{new Registry};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { current.store(new Registry); });
  (void)registered;
  return *current.load();
}

WatchedProcess::Answer WatchedProcess::find(int pid, std::uint64_t start_ticks) {
  const Key key{pid, start_ticks};
  Registry& here = registry();
  const std::lock_guard lock(here.mutex);
  if (const auto known = here.processes.find(key); known != here.processes.end()) {
    if (auto process = known->second.lock()) return {Found::kWatched, std::move(process)};
  }
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  // If no descriptor is free, neither the pidfd nor /proc can be opened; that says nothing about the process.
  const bool is_missing = descriptor < 0 && (errno == ESRCH || (kill(pid, 0) != 0 && errno == ESRCH));
  const std::uint64_t ticks = is_missing ? 0 : process_start_ticks(pid);
  const bool is_another = ticks != 0 && start_ticks != 0 && ticks != start_ticks;
  if (is_missing || is_another) {
    if (descriptor >= 0) close(descriptor);
    return {Found::kGone, nullptr};
  }
  if (descriptor < 0) return {Found::kUnknown, nullptr};
  const std::shared_ptr<const WatchedProcess> process(new WatchedProcess(key, descriptor));
  here.processes[key] = process;
  return {Found::kWatched, process};
}

WatchedProcess::~WatchedProcess() {
  close(descriptor_);
  Registry& here = registry();
  const std::lock_guard lock(here.mutex);
  const auto known = here.processes.find(key_);
  if (known != here.processes.end() && known->second.expired()) here.processes.erase(known);
}

}  // namespace phalanx
