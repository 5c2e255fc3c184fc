// Records what a rank does: its last operations in the segment, and, while it is traced, all of them in a file.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "call.hpp"
#include "layout.hpp"
#include "trace_file.hpp"

namespace phalanx {

inline constexpr std::uint64_t kMayDoMore = 1ull << 30;  // the numbers of source lines are below this
inline constexpr std::uint64_t kIsAsync = 1ull << 31;

// Sizes in two words: two dimensions exactly, three or four below 2^32, five or six below 2^21; larger ones become the largest
// that fits.
struct PackedShape {
  std::uint64_t words[2];
};
PackedShape pack_many_dims(const std::uint64_t* shape, std::uint32_t num_dims) noexcept;
inline PackedShape pack_shape(const std::uint64_t* shape, std::uint32_t num_dims) noexcept {
  return num_dims <= 2 ? PackedShape{{shape[0], shape[1]}} : pack_many_dims(shape, num_dims);
}
std::uint64_t unpack_dim(const PackedShape& packed, std::uint32_t num_dims, std::uint32_t dim) noexcept;

// A message in the journal, from its beginning to its end.
struct MessageMark {
  Seq number = 0;
  TraceOperation* record = nullptr;
};

// The thread that runs a collective writes its entry. Messages are written under the mailbox's lock, source lines under the GIL.
class Journal {
 public:
  Journal(const Layout& layout, int rank) : layout_(layout), rank_(rank) {}

  // Every collective calls these two. Together they take about ten nanoseconds.
  void begin(Seq seq, const Call& call) noexcept {
#ifndef PHALANX_NO_JOURNAL
    entry_ = &layout_.journal(rank_, seq);
    write(*entry_, seq, call, call.count);
    size_bytes_ = call.size_bytes;
    clock_ns_ = call.size_bytes <= kSlotBytes && !call.is_async ? call.start_ns + 1 : 0;
#endif
    if (is_special_.load(std::memory_order_relaxed)) [[unlikely]]
      do_special(seq, call);
  }
  void end() noexcept {
#ifndef PHALANX_NO_JOURNAL
    const std::int64_t now = clock_ns_ != 0 && collective_ == nullptr ? clock_ns_ : monotonic_ns();
    entry_->end_ns.store(now, std::memory_order_relaxed);
    layout_.progress(rank_).moved_bytes.store(moved_bytes_ += size_bytes_, std::memory_order_relaxed);
    if (collective_ != nullptr) [[unlikely]] {
      collective_->end_ns.store(now, std::memory_order_relaxed);
      collective_ = nullptr;
    }
#endif
  }
  // The operation under way waited until then, or until shortly after. Reading the clock takes longer than the rest of the
  // journal, so the end of a small operation is the time at which the clock was last read for another reason.
  void passed(std::int64_t now_ns) noexcept {
    if (clock_ns_ != 0) clock_ns_ = now_ns;
  }
  MessageMark begin_message(const Call& call, std::uint64_t tag) noexcept;
  void end_message(const MessageMark& mark, const Call& call, int peer) noexcept;
  // The same for messages. Any thread that waits for one may call this.
  void passed_in_mail(std::int64_t now_ns) noexcept { mail_clock_ns_.store(now_ns, std::memory_order_relaxed); }
  void slept_in_mail() noexcept { passed_in_mail(0); }
  // What a thread sleeps for in send or recv.
  void begin_sleep(const Call& call, std::uint64_t tag) noexcept;
  void end_sleep() noexcept { layout_.mail_journal(rank_).seq.store(0, std::memory_order_release); }
  // The thread slept in vain. The entry stays until the rank's next operation, for peers that look why this rank did not come.
  void keep_sleep() noexcept {
    layout_.mail_journal(rank_).end_ns.store(monotonic_ns(), std::memory_order_relaxed);
    is_stale_.store(true);
    is_special_.store(true);
  }

  // Returns the number of a source line, for Call::location. The segment keeps the last kLocations lines.
  std::uint32_t add_location(const std::string& text) noexcept;
  // From here on, also record operations in a file; null ends this. Any thread may call it.
  void trace(std::shared_ptr<TraceFile> file);

 private:
  struct Trace {
    std::shared_ptr<TraceFile> file;
    std::uint32_t group;
  };
  static std::uint64_t pack_what(const Call& call) noexcept {
    return call.signature() | std::uint64_t(call.num_dims & 0x7f) << 24;
  }
  static std::uint64_t pack_where(const Call& call, int peer) noexcept {
    return call.location | (call.may_do_more ? kMayDoMore : 0) | (call.is_async ? kIsAsync : 0) | std::uint64_t(std::uint32_t(peer)) << 32;
  }
  static void write(JournalEntry& entry, Seq seq, const Call& call, std::uint64_t count) noexcept {
    constexpr auto relaxed = std::memory_order_relaxed;
    entry.seq.store(0, relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // a reader sees that the old entry is gone before it sees the new one
    entry.start_ns.store(call.start_ns, relaxed);
    entry.end_ns.store(0, relaxed);
    entry.what.store(pack_what(call), relaxed);
    entry.count.store(count, relaxed);
    entry.where.store(pack_where(call, call.root), relaxed);
    const PackedShape shape = pack_shape(call.shape, call.num_dims);
    entry.shape[0].store(shape.words[0], relaxed);
    entry.shape[1].store(shape.words[1], relaxed);
    entry.seq.store(seq, std::memory_order_release);
  }
  void do_special(Seq seq, const Call& call) noexcept;
  TraceOperation* record(RecordKind kind, Seq number, const Call& call, std::uint64_t count) noexcept;

  Layout layout_;
  int rank_;
  Seq num_messages_ = 0;
  std::uint32_t num_locations_ = 0;  // the number of the last one; 0 means unknown
  JournalEntry* entry_ = nullptr;  // of the collective under way
  std::uint64_t size_bytes_ = 0;
  std::uint64_t moved_bytes_ = 0, mailed_bytes_ = 0;
  std::int64_t clock_ns_ = 0;  // when the clock was last read; 0: end() must read it for the operation under way
  std::atomic<std::int64_t> mail_clock_ns_{1};  // the same for small blocking messages
  TraceOperation* collective_ = nullptr;  // the record of the one under way
  std::atomic<bool> is_stale_{false};  // the rank no longer sleeps for what the segment says
  std::atomic<bool> is_special_{false};  // stale or traced: one check instead of two
  std::atomic<Trace*> trace_{nullptr};
  std::mutex mutex_;  // guards traces_
  std::vector<std::unique_ptr<Trace>> traces_;  // all there ever were: another thread may still write into one
};

// The source line with that number; empty if it is unknown, or has made room for another.
std::string read_location(const Layout& layout, int rank, std::uint64_t number);

// The rank's entry of an operation, or null if there is none (any more). A rank posts first and then writes its entry, so the
// entry may come a moment after the arrival, or later if the rank was stopped or killed in between. Each further look counts
// `looks` down, and it stops at 0: so a caller that asks for many ranks has one limit for all of them.
const JournalEntry* await_entry(const Layout& layout, int rank, Seq seq, int& looks) noexcept;

}  // namespace phalanx
