#include "callers.hpp"

#include <sys/prctl.h>

#include <cstring>

namespace phalanx {
namespace {

struct Thread {
  std::uint64_t serial = next_serial();
  bool is_for_backward = has_name_of_autograd();

  static std::uint64_t next_serial() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  // torch gives this name to the threads of its autograd engine.
  static bool has_name_of_autograd() noexcept {
    static constexpr char kPrefix[] = "pt_autograd";
    char name[16] = {};
    return prctl(PR_GET_NAME, name) == 0 && std::strncmp(name, kPrefix, sizeof kPrefix - 1) == 0;
  }
};
thread_local const Thread here;

bool has_ended(std::int32_t thread) noexcept { return syscall(SYS_tgkill, getpid(), thread, 0) != 0; }

}  // namespace

std::uint64_t Callers::own_serial() noexcept { return here.serial; }

void Callers::note_another() noexcept {
  std::atomic<std::int32_t>& word = here.is_for_backward ? member_.backward_caller : member_.caller;
  const std::int32_t before = word.load(std::memory_order_relaxed);
  const auto self = static_cast<std::int32_t>(syscall(SYS_gettid));  // not remembered: a fork changes it
  if (before != self && before != kSeveral)
    word.store(before == 0 || has_ended(before) ? self : kSeveral, std::memory_order_relaxed);
  (here.is_for_backward ? backward_ : forward_).store(here.serial, std::memory_order_relaxed);
}

}  // namespace phalanx
