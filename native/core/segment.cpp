#include "segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

#include "control_groups.hpp"
#include "text.hpp"

namespace phalanx {
namespace {

std::size_t meminfo_available() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  std::size_t kib = 0;
  while (file >> key >> kib >> unit) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return SIZE_MAX;
}

constexpr std::size_t kLargeBytes = 1u << 30;
constexpr std::size_t kLongestName = 249;  // of a memory file

// Repeats a system call if a signal interrupts it while the kernel looks for memory.
template <class SystemCall>
int despite_signals(SystemCall system_call) {
  int result = -1;
  do {
    result = system_call();
  } while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace

OutOfMemory::OutOfMemory(std::size_t needed, std::size_t available)
    : std::runtime_error("not enough memory for a shared segment"),
      needed_bytes(needed),
      available_bytes(available) {}

std::size_t available_memory_bytes(const std::string& process) {
  std::size_t available = meminfo_available();
  if (const auto left = ControlGroups(process).memory_left_bytes()) available = std::min(available, *left);
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    available = std::min<std::size_t>(available, limit.rlim_cur);
  return available;
}

Segment Segment::create(const std::string& label, std::size_t bytes, std::size_t reserved) {
  const std::size_t available = available_memory_bytes();
  // Refuse a large request before the kernel has to kill a process. For small ones the numbers are too rough, because
  // some virtual machines get their memory only as they use it. There the kernel's own answer to fallocate counts.
  if (bytes > available && bytes > kLargeBytes) throw OutOfMemory(bytes, available);
  const std::string name(beginning_of(label, kLongestName));
  const int descriptor = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0 && (errno == ENOMEM || errno == ENOSPC)) throw OutOfMemory(bytes, available);
  if (descriptor < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  const auto fail = [&](const char* what) {
    const int error = errno;
    close(descriptor);
    if (error == ENOMEM || error == ENOSPC) throw OutOfMemory(bytes, available);
    throw std::system_error(error, std::generic_category(), what);
  };
  if (fchmod(descriptor, 0600) != 0) fail("fchmod");
  if (despite_signals([&] { return ftruncate(descriptor, static_cast<off_t>(bytes)); }) != 0) fail("ftruncate");
  if (despite_signals([&] { return fallocate(descriptor, 0, 0, static_cast<off_t>(reserved)); }) != 0) fail("fallocate");
  // Nobody may shrink the file while we use it: our next access would be a SIGBUS.
  if (fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) fail("seal");
  try {
    return Segment(descriptor, map(descriptor, bytes, Access::kWrite), bytes);
  } catch (...) {
    close(descriptor);
    throw;
  }
}

Segment Segment::attach(int descriptor, Access access) {
  struct stat status{};
  if (fstat(descriptor, &status) != 0) throw std::system_error(errno, std::generic_category(), "fstat");
  // Without this seal, its owner could shrink it while we read, and the read would be a SIGBUS.
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) throw std::runtime_error("this is no sealed memory file");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  return Segment(-1, map(descriptor, bytes, access), bytes);
}

void Segment::keep_descriptor(int descriptor) noexcept {
  close_descriptor();
  descriptor_ = fcntl(descriptor, F_DUPFD_CLOEXEC, 3);  // none free: then others can't find the memory, but it works all the same
}

std::byte* Segment::map(int descriptor, std::size_t bytes, Access access) {
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = mmap(nullptr, bytes, protection, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) {
    if (errno == ENOMEM) throw OutOfMemory(bytes, available_memory_bytes());
    throw std::system_error(errno, std::generic_category(), "mmap");
  }
  return static_cast<std::byte*>(data);
}

void reserve(std::byte* data, std::size_t bytes) {
#if !defined(MADV_POPULATE_WRITE)
  constexpr int MADV_POPULATE_WRITE = 23;
#endif
  constexpr int kTries = 100;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return;
    if (errno == EINVAL || errno == EPERM || errno == ENOSYS) return;  // before Linux 5.14, or not allowed: page by page
    if (errno != EINTR && errno != EAGAIN) break;                      // a signal came, or a page was being moved
  }
  throw OutOfMemory(bytes, available_memory_bytes());
}

Segment::Segment(Segment&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, bytes_);
  close_descriptor();
}

void Segment::close_descriptor() noexcept {
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
}

}  // namespace phalanx
