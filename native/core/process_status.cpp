#include "process_status.hpp"

#include <sys/ioctl.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "layout.hpp"

namespace phalanx {
namespace {

// Fields of /proc/<pid>/stat after the command name, which may hold anything: spaces, brackets, ends of lines.
std::vector<std::string> stat_fields(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
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

// Since Linux 6.15 a pidfd reports the exit status of a reaped process, and not only to its parent.
struct PidfdInfo {
  std::uint64_t mask;
  std::uint64_t cgroup;
  std::uint32_t ids[11];
  std::int32_t exit_code;
};
constexpr std::uint64_t kPidfdInfoExit = 1u << 3;

}  // namespace

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

std::uint64_t own_pid_namespace() {
  struct stat status{};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

std::uint64_t process_start_ticks(int pid) {
  const auto fields = stat_fields(pid);
  return fields.size() > kStartField ? std::stoull(fields[kStartField]) : 0;
}

}  // namespace phalanx
