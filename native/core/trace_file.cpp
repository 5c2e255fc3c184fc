#include "trace_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "text.hpp"

namespace phalanx {
namespace {

constexpr std::size_t kChunkBytes = 1 << 20;
constexpr std::size_t kRecordsPerChunk = kChunkBytes / kRecordBytes;

}  // namespace

TraceFile::TraceFile(const std::string& path, int rank, std::size_t limit_bytes)
    : descriptor_(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644)), limit_bytes_(limit_bytes) {
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), path);
  if (!grow()) {
    const int error = errno;
    ::close(descriptor_);
    unlink(path.c_str());
    throw std::system_error(error, std::generic_category(), path);
  }
  auto& start = *static_cast<TraceHeader*>(take());
  start.version = 1;
  start.pid = static_cast<std::uint32_t>(getpid());
  start.rank = rank;
  start.unix_minus_monotonic_ns = clock_ns(CLOCK_REALTIME) - monotonic_ns();
  gethostname(start.host, sizeof(start.host) - 1);
  commit(&start, RecordKind::kHeader);
}

TraceFile::~TraceFile() {
  close();
  for (std::byte* chunk : chunks_) munmap(chunk, kChunkBytes);
}

bool TraceFile::grow() noexcept {
  const auto size = static_cast<off_t>(chunks_.size() * kChunkBytes);
  if (chunks_.size() * kChunkBytes + kChunkBytes > limit_bytes_) return errno = EFBIG, false;
  // Reserved first: writing to a page that the disk has no room for would be SIGBUS.
  if (const int error = posix_fallocate(descriptor_, size, kChunkBytes); error != 0) return errno = error, false;
  void* chunk = mmap(nullptr, kChunkBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, size);
  if (chunk == MAP_FAILED) return false;
  chunks_.push_back(static_cast<std::byte*>(chunk));
  return true;
}

void* TraceFile::take() noexcept {
  if (getpid() != owner_) return nullptr;
  const std::lock_guard lock(mutex_);
  if (is_closed_ || is_truncated_) return nullptr;
  if (used_ == chunks_.size() * kRecordsPerChunk && !grow()) {
    is_truncated_ = true;
    header().is_truncated.store(1, std::memory_order_relaxed);
    return nullptr;
  }
  std::byte* record = chunks_[used_ / kRecordsPerChunk] + used_ % kRecordsPerChunk * kRecordBytes;
  ++used_;
  return record;
}

std::uint32_t TraceFile::add_group(const Layout& layout, int rank) noexcept {
  std::uint32_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = num_groups_++;
  }
  auto* record = static_cast<TraceGroup*>(take());
  if (record == nullptr) return number;
  const Header& header = layout.header();
  record->group = number;
  record->num_ranks = header.num_ranks;
  record->rank = rank;
  std::memcpy(record->nonce, header.nonce, sizeof(record->nonce));
  store_beginning(record->name, std::string_view(header.name, strnlen(header.name, sizeof(header.name))));
  commit(record, RecordKind::kGroup);
  return number;
}

void TraceFile::add_location(std::uint32_t group, std::uint32_t number, std::string_view text) noexcept {
  auto* record = static_cast<TraceLocation*>(take());
  if (record == nullptr) return;
  record->group = group;
  record->number = number;
  store_beginning(record->text, end_of(text, sizeof(record->text) - 1));
  commit(record, RecordKind::kLocation);
}

void TraceFile::close() noexcept {
  if (getpid() != owner_) return;
  const std::lock_guard lock(mutex_);
  if (is_closed_) return;
  is_closed_ = true;
  // Operations still under way write their end into records before this length, so they lose no page.
  if (ftruncate(descriptor_, static_cast<off_t>(used_ * kRecordBytes)) != 0) is_truncated_ = true;
  ::close(descriptor_);
}

}  // namespace phalanx
