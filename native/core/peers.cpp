#include "peers.hpp"

#include <poll.h>
#include <unistd.h>

#include "process_status.hpp"

namespace phalanx {

Peers::Peers(const Layout& layout, int rank, int num_ranks)
    : layout_(layout), rank_(rank), num_ranks_(num_ranks), own_namespace_(own_pid_namespace()),
      processes_(std::size_t(num_ranks)) {}

void Peers::let_go() {
  const std::lock_guard lock(mutex_);
  is_watching_ = false;
  for (auto& process : processes_) process.reset();
}

bool Peers::is_same_process(int rank) const {
  const Member& member = layout_.member(rank);
  return member.pid.load() == getpid() && member.pid_namespace.load() == own_namespace_;
}

void Peers::watch_all() {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    Member& member = layout_.member(rank);
    if (rank == rank_ || processes_[std::size_t(rank)] || member.state.load() != MemberState::kPresent ||
        is_same_process(rank) || member.pid_namespace.load() != own_namespace_)
      continue;
    auto [found, process] = WatchedProcess::find(member.pid.load(), member.start_ticks.load());
    processes_[std::size_t(rank)] = std::move(process);
    if (found != WatchedProcess::Found::kGone) continue;
    // It may have left in good order between our two looks.
    MemberState present = MemberState::kPresent;
    member.state.compare_exchange_strong(present, MemberState::kDead);
  }
}

int Peers::find_dead() {
  const std::lock_guard lock(mutex_);
  if (is_watching_) watch_all();
  std::vector<pollfd> polled;
  std::vector<int> ranks;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (rank != rank_ && layout_.member(rank).state.load() == MemberState::kDead) return rank;
    if (!processes_[std::size_t(rank)]) continue;
    polled.push_back({processes_[std::size_t(rank)]->descriptor(), POLLIN, 0});
    ranks.push_back(rank);
  }
  if (polled.empty() || poll(polled.data(), polled.size(), 0) <= 0) return -1;
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if (polled[i].revents == 0) continue;
    MemberState present = MemberState::kPresent;
    Member& member = layout_.member(ranks[i]);
    if (member.state.compare_exchange_strong(present, MemberState::kDead) || present == MemberState::kDead)
      return ranks[i];
  }
  return -1;
}

std::int32_t Peers::exit_status(int rank) const {
  Member& member = layout_.member(rank);
  mutex_.lock();
  const std::shared_ptr<const WatchedProcess> process = processes_[std::size_t(rank)];
  mutex_.unlock();
  const std::int64_t until = monotonic_ns() + 200'000'000;
  for (;;) {
    std::int32_t status = member.exit_status.load();
    if (status == kStatusUnknown) status = status_from_proc(member.pid.load(), member.start_ticks.load());
    if (status == kStatusUnknown && process) status = status_from_pidfd(process->descriptor());
    if (status != kStatusUnknown) {
      member.exit_status.store(status);
      return status;
    }
    if (monotonic_ns() > until) return kStatusUnknown;
    usleep(1000);
  }
}

}  // namespace phalanx
