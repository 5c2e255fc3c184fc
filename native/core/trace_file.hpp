// Everything a process's ranks do, in a file of 128-byte records that survives the process.
//
// The file is mapped, so a record is in it as soon as it is written, even if the process dies then. Disk space is
// reserved before a page is written, so a full disk ends the trace and not the program.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "layout.hpp"

namespace phalanx {

enum class RecordKind : std::uint32_t { kEnd, kHeader, kGroup, kLocation, kCollective, kMessage };

struct alignas(8) TraceHeader {
  RecordKind kind;
  std::uint32_t version, pid;
  std::int32_t rank;
  std::int64_t unix_minus_monotonic_ns;
  std::atomic<std::uint64_t> is_truncated;
  char host[64];
  char unused[32];
};

struct alignas(8) TraceGroup {
  RecordKind kind;
  std::uint32_t group, num_ranks;
  std::int32_t rank;
  std::uint8_t nonce[16];
  char name[64];
  char unused[32];
};

struct alignas(8) TraceLocation {
  RecordKind kind;
  std::uint32_t group, number, unused;
  char text[112];
};

struct alignas(8) TraceOperation {
  RecordKind kind;
  std::uint32_t group;
  std::uint64_t number;
  std::int64_t start_ns;
  std::atomic<std::int64_t> end_ns;
  std::uint64_t what, count, size_bytes;
  std::uint32_t location, flags;
  std::atomic<std::int32_t> peer;
  std::int32_t unused;
  std::uint64_t shape[kShapeDims];
  char rest[8];
};

inline constexpr std::size_t kRecordBytes = 128;
static_assert(sizeof(TraceHeader) == kRecordBytes && sizeof(TraceGroup) == kRecordBytes);
static_assert(sizeof(TraceLocation) == kRecordBytes && sizeof(TraceOperation) == kRecordBytes);

// Thread-safe.
class TraceFile {
 public:
  // Throws std::system_error if the file can't be made.
  TraceFile(const std::string& path, int rank, std::size_t limit_bytes);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;

  // Where to write a new record; null if the file is closed or there is no room. Its first word, the kind, must be
  // stored last, with commit(). The memory lives as long as this object.
  void* take() noexcept;
  static void commit(void* record, RecordKind kind) noexcept {
    std::atomic_ref(*static_cast<std::uint32_t*>(record)).store(std::uint32_t(kind), std::memory_order_release);
  }
  std::uint32_t add_group(const Layout& layout, int rank) noexcept;
  void add_location(std::uint32_t group, std::uint32_t number, std::string_view text) noexcept;
  // No more records. Operations still under way may yet write their end.
  void close() noexcept;
  bool is_truncated() const noexcept { return is_truncated_; }

 private:
  bool grow() noexcept;
  TraceHeader& header() const noexcept { return *reinterpret_cast<TraceHeader*>(chunks_.front()); }

  const int owner_ = getpid();  // a forked child has the mapping too: it must neither write nor truncate
  std::mutex mutex_;  // guards all below
  int descriptor_;
  std::size_t limit_bytes_;
  std::vector<std::byte*> chunks_;
  std::size_t used_ = 0;  // records
  std::uint32_t num_groups_ = 0;
  bool is_closed_ = false;
  bool is_truncated_ = false;
};

}  // namespace phalanx
