#include "writable_memory.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace phalanx::python {
namespace {

constexpr std::uint64_t kSmallestPage = 4096;

// Let the kernel add no bits to the word that this byte is in: one atomic step that changes nothing, also for a thread that writes
// there just now, and that fails where a store would end the process.
bool can_write(std::uint64_t address) noexcept {
  std::uint32_t nobody_waits_here = 0;
  const std::uint64_t word = address & ~std::uint64_t{3};
  const long done = syscall(SYS_futex, &nobody_waits_here, FUTEX_WAKE_OP_PRIVATE, 0, nullptr, word,
                            FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0));
  return done >= 0 || errno != EFAULT;
}

}  // namespace

bool is_writable(const std::byte* begin, std::uint64_t bytes) noexcept {
  const auto first = reinterpret_cast<std::uint64_t>(begin), last = first + bytes - 1;
  return can_write(first) && (first / kSmallestPage == last / kSmallestPage || can_write(last));
}

}  // namespace phalanx::python
