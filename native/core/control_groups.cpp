#include "control_groups.hpp"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "platform.hpp"

namespace phalanx {
namespace {

constexpr std::size_t kUnlimited = std::size_t(1) << 60;  // version 1 writes a huge number where version 2 writes "max"

// Nothing if there is no such file, or if it holds no number but, for example, "max" or -1.
std::optional<std::size_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text) || text.empty() || text.find_first_not_of("0123456789") != std::string::npos || text.size() > 19)
    return std::nullopt;
  return std::stoull(text);
}

// The sum of some lines of a file of names and numbers.
std::size_t sum_of(const std::string& path, const std::vector<std::string_view>& names) {
  std::ifstream file(path);
  std::string name;
  std::size_t number = 0, sum = 0;
  while (file >> name >> number) {
    if (std::find(names.begin(), names.end(), name) != names.end()) sum += number;
  }
  return sum;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// The kernel writes spaces and the like in the paths of mountinfo as \040.
std::string unescape(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && text.find_first_not_of("01234567", i + 1) > i + 3) {
      plain.push_back(static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8)));
      i += 3;
    } else {
      plain.push_back(text[i]);
    }
  }
  return plain;
}

// The folder of the group at `path` and those above it, as far as they are mounted: the mount at `place` shows what is below
// `root`. None if `path` is not below `root`, for example if the mounted group is that of another process.
std::vector<std::string> upwards(const std::string& place, const std::string& root, std::string path) {
  if (root.size() > 1) {
    if (path.compare(0, root.size(), root) != 0 || (path.size() > root.size() && path[root.size()] != '/')) return {};
    path.erase(0, root.size());
  }
  std::vector<std::string> found;
  while (!path.empty()) {
    if (path.size() > 1) found.push_back(place + path);
    path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  }
  found.push_back(place);
  return found;
}

void lower(std::optional<std::size_t>& smallest, std::optional<std::size_t> number) {
  if (number && *number < kUnlimited) smallest = std::min(smallest.value_or(*number), *number);
}

std::optional<std::size_t> difference(std::optional<std::size_t> limit, std::size_t used) {
  if (!limit || *limit >= kUnlimited) return std::nullopt;
  return *limit > used ? *limit - used : 0;
}

std::size_t without(std::size_t used, std::size_t reclaimable) { return used > reclaimable ? used - reclaimable : 0; }

}  // namespace

ControlGroups::ControlGroups(const std::string& process) {
  std::map<std::string, std::string> paths;
  std::ifstream groups(process + "/cgroup");
  for (std::string line; std::getline(groups, line);) {  // 4:cpu,cpuacct:/path
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) paths[""] = path;
    for (const std::string& controller : split(controllers, ',')) paths[controller] = path;
  }
  std::ifstream mounts(process + "/mountinfo");
  for (std::string line; std::getline(mounts, line);) {  // 31 23 0:28 ROOT PLACE options - KIND source OPTIONS
    const auto dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const auto mount = split(line.substr(0, dash), ' '), kind = split(line.substr(dash + 3), ' ');
    if (mount.size() < 5 || kind.empty() || (kind[0] != "cgroup" && kind[0] != "cgroup2")) continue;
    const auto controllers = kind[0] == "cgroup2" ? std::vector<std::string>{""} : split(kind.back(), ',');
    for (const std::string& controller : controllers) {
      const auto path = paths.find(controller);
      if (path == paths.end()) continue;
      Folders found = upwards(unescape(mount[4]), unescape(mount[3]), path->second);
      if (found.size() > folders_[controller].size()) folders_[controller] = std::move(found);
    }
  }
}

const ControlGroups::Folders& ControlGroups::folders(const std::string& controller) const {
  static const Folders none;
  const auto found = folders_.find(controller);
  return found == folders_.end() ? none : found->second;
}

std::optional<std::size_t> ControlGroups::memory_limit_bytes() const {
  std::optional<std::size_t> smallest;
  for (const std::string& folder : folders("")) lower(smallest, read_number(folder + "/memory.max"));
  for (const std::string& folder : folders("memory")) {
    lower(smallest, read_number(folder + "/memory.limit_in_bytes"));
    // Groups above may have limits but not be mounted here.
    const std::size_t above = sum_of(folder + "/memory.stat", {"hierarchical_memory_limit"});
    if (above != 0) lower(smallest, above);
  }
  return smallest;
}

std::optional<std::size_t> ControlGroups::memory_left_bytes() const {
  std::optional<std::size_t> smallest;
  for (const std::string& folder : folders("")) {
    const std::size_t cache = sum_of(folder + "/memory.stat", {"inactive_file", "active_file", "slab_reclaimable"});
    const std::size_t used = without(read_number(folder + "/memory.current").value_or(0), cache);
    lower(smallest, difference(read_number(folder + "/memory.max"), used));
  }
  for (const std::string& folder : folders("memory")) {
    const std::size_t cache = sum_of(folder + "/memory.stat", {"total_inactive_file", "total_active_file"});
    const std::size_t used = without(read_number(folder + "/memory.usage_in_bytes").value_or(0), cache);
    lower(smallest, difference(read_number(folder + "/memory.limit_in_bytes"), used));
    const std::size_t above = sum_of(folder + "/memory.stat", {"hierarchical_memory_limit"});
    if (above != 0) lower(smallest, difference(above, used));
  }
  return smallest;
}

std::optional<std::size_t> ControlGroups::processes_left() const {
  std::optional<std::size_t> smallest;
  for (const char* controller : {"", "pids"}) {
    for (const std::string& folder : folders(controller)) {
      const std::size_t used = read_number(folder + "/pids.current").value_or(0);
      lower(smallest, difference(read_number(folder + "/pids.max"), used));
    }
  }
  return smallest;
}

std::optional<double> ControlGroups::cores() const {
  std::optional<double> fewest;
  const auto grant = [&](double quota, double period) {
    if (quota > 0 && period > 0) fewest = std::min(fewest.value_or(quota / period), quota / period);
  };
  for (const std::string& folder : folders("")) {
    std::ifstream file(folder + "/cpu.max");
    double quota = 0, period = 0;
    if (file >> quota >> period) grant(quota, period);  // "max" is no number
  }
  for (const std::string& folder : folders("cpu")) {
    const auto quota = read_number(folder + "/cpu.cfs_quota_us"), period = read_number(folder + "/cpu.cfs_period_us");
    if (quota && period) grant(double(*quota), double(*period));
  }
  return fewest;
}

int usable_cores() { return usable_cores("/proc/self"); }

int usable_cores(const std::string& process) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int allowed = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const auto granted = ControlGroups(process).cores();
  return granted ? std::clamp(static_cast<int>(std::ceil(*granted)), 1, allowed) : allowed;
}

}  // namespace phalanx
