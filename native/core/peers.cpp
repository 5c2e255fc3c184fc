#include "peers.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>

namespace phalanx {
namespace {

// Fields of /proc/<pid>/stat after the command name, which may hold anything, spaces and brackets included.
std::vector<std::string> stat_fields(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto bracket = text.rfind(')');
  std::vector<std::string> fields;
  if (bracket == std::string::npos) return fields;
  std::istringstream rest(text.substr(bracket + 1));
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

constexpr std::size_t kStateField = 0, kStartField = 19, kExitField = 49;  // counted from the state

std::int32_t from_wait_status(int status) {
  const int signal = status & 0x7f;
  return signal != 0 ? 256 + signal : (status >> 8) & 0xff;
}

// Linux 6.15: a pidfd tells the exit status to others than the parent too, once the process is reaped.
struct PidfdInfo {
  std::uint64_t mask;
  std::uint64_t cgroup;
  std::uint32_t ids[11];
  std::int32_t exit_code;
};
constexpr std::uint64_t kPidfdInfoExit = 1u << 3;

std::int32_t status_from_pidfd(int descriptor) {
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  if (ioctl(descriptor, _IOWR(0xFF, 11, PidfdInfo), &info) != 0 || (info.mask & kPidfdInfoExit) == 0)
    return kStatusUnknown;
  return from_wait_status(info.exit_code);
}

std::int32_t status_from_proc(int pid, std::uint64_t start_ticks) {
  const auto fields = stat_fields(pid);
  if (fields.size() <= kExitField || fields[kStateField] != "Z") return kStatusUnknown;
  if (std::stoull(fields[kStartField]) != start_ticks) return kStatusUnknown;
  return from_wait_status(std::stoi(fields[kExitField]));
}

}  // namespace

std::uint64_t own_pid_namespace() {
  struct stat status{};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

std::uint64_t process_start_ticks(int pid) {
  const auto fields = stat_fields(pid);
  return fields.size() > kStartField ? std::stoull(fields[kStartField]) : 0;
}

Peers::Peers(const Layout& layout, int rank, int num_ranks)
    : layout_(layout), rank_(rank), num_ranks_(num_ranks), own_namespace_(own_pid_namespace()),
      descriptors_(std::size_t(num_ranks), -1) {}

Peers::~Peers() {
  for (int descriptor : descriptors_) {
    if (descriptor >= 0) close(descriptor);
  }
}

bool Peers::is_same_process(int rank) const {
  const Member& member = layout_.member(rank);
  return member.pid.load() == getpid() && member.pid_namespace.load() == own_namespace_;
}

void Peers::open_all() {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    Member& member = layout_.member(rank);
    if (rank == rank_ || descriptors_[std::size_t(rank)] >= 0 || member.state.load() != MemberState::kPresent ||
        is_same_process(rank) || member.pid_namespace.load() != own_namespace_)
      continue;
    const int pid = member.pid.load();
    const long descriptor = syscall(SYS_pidfd_open, pid, 0);
    // Without a free descriptor neither the pidfd nor /proc can be opened: that says nothing about the peer.
    const bool is_missing = descriptor < 0 && (errno == ESRCH || (kill(pid, 0) != 0 && errno == ESRCH));
    const std::uint64_t ticks = process_start_ticks(pid), known = member.start_ticks.load();
    const bool is_gone = is_missing || (ticks != 0 && known != 0 && ticks != known);
    if (!is_gone) {
      descriptors_[std::size_t(rank)] = static_cast<int>(descriptor);
      continue;
    }
    if (descriptor >= 0) close(static_cast<int>(descriptor));
    // It may have left in good order between our two looks.
    MemberState present = MemberState::kPresent;
    member.state.compare_exchange_strong(present, MemberState::kDead);
  }
}

int Peers::find_dead() {
  const std::lock_guard lock(mutex_);
  open_all();
  std::vector<pollfd> polled;
  std::vector<int> ranks;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (rank != rank_ && layout_.member(rank).state.load() == MemberState::kDead) return rank;
    if (descriptors_[std::size_t(rank)] < 0) continue;
    polled.push_back({descriptors_[std::size_t(rank)], POLLIN, 0});
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
  const int descriptor = descriptors_[std::size_t(rank)];
  mutex_.unlock();
  const std::int64_t until = monotonic_ns() + 200'000'000;
  for (;;) {
    std::int32_t status = member.exit_status.load();
    if (status == kStatusUnknown) status = status_from_proc(member.pid.load(), member.start_ticks.load());
    if (status == kStatusUnknown && descriptor >= 0) status = status_from_pidfd(descriptor);
    if (status != kStatusUnknown) {
      member.exit_status.store(status);
      return status;
    }
    if (monotonic_ns() > until) return kStatusUnknown;
    usleep(1000);
  }
}

}  // namespace phalanx
