#include "spread.hpp"

#include <sched.h>

#include <array>
#include <cstring>

namespace phalanx {
namespace {

constexpr std::int64_t kBetweenLooksNs = 300'000;  // a move takes some microseconds, and peers publish theirs late

}  // namespace

void Spread::settle(std::int64_t now_ns) noexcept {
  if (now_ns < next_look_ns_) return;
  next_look_ns_ = now_ns + kBetweenLooksNs;
  std::array<std::uint16_t, CPU_SETSIZE> num_on{};
  const int here = sched_getcpu();
  if (here < 0 || here >= CPU_SETSIZE) return;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (layout_.member(peer).state.load(std::memory_order_relaxed) != MemberState::kPresent) continue;
    const int core = peer == rank_ ? here : layout_.progress(peer).core.load(std::memory_order_relaxed);
    if (core < 0 || core >= CPU_SETSIZE) continue;
    if (core == here && peer > rank_) return;
    ++num_on[std::size_t(core)];
  }
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  int best = here;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed) && num_on[std::size_t(core)] < num_on[std::size_t(best)]) best = core;
  }
  if (num_on[std::size_t(best)] + 2 > num_on[std::size_t(here)]) return;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(best, &only);
  if (sched_setaffinity(0, sizeof(only), &only) != 0 || sched_setaffinity(0, sizeof(allowed), &allowed) == 0) return;
  std::memset(&allowed, 0xff, sizeof(allowed));  // the old set is no longer allowed; the kernel reduces this one to what is
  sched_setaffinity(0, sizeof(allowed), &allowed);
}

}  // namespace phalanx
