// What a rank does, for whoever asks: its last operations in the segment, and all of them in a file while it is traced.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "call.hpp"
#include "layout.hpp"
#include "trace_file.hpp"

namespace phalanx {

inline constexpr std::uint64_t kIsAsync = 1ull << 32;

// A message in the journal, from its beginning to its end.
struct MessageMark {
  Seq number = 0;
  TraceOperation* record = nullptr;
};

// Collectives are written by the thread that runs them, messages under the mailbox's lock, source lines under the GIL.
class Journal {
 public:
  Journal(const Layout& layout, int rank) : layout_(layout), rank_(rank) {}

  void begin(Seq seq, const Call& call) noexcept;
  void end(Seq seq) noexcept;
  // The operation under way waited until then, or until shortly after. A clock costs more than the rest of the journal, so
  // small operations end, as far as it is concerned, when the clock was last looked at for another reason.
  void passed(std::int64_t now_ns) noexcept {
    if (clock_ns_ != 0) clock_ns_ = now_ns;
  }
  MessageMark begin_message(const Call& call, std::uint64_t tag) noexcept;
  void end_message(const MessageMark& mark, int peer) noexcept;
  // What a thread sleeps for in send or recv.
  void begin_sleep(const Call& call, std::uint64_t tag) noexcept;
  void end_sleep() noexcept { layout_.mail_journal(rank_).seq.store(0, std::memory_order_release); }
  // It slept in vain: peers that look why this rank did not come find it here, until its next operation.
  void keep_sleep() noexcept { is_stale_.store(true, std::memory_order_relaxed); }

  // Index of a source line in this rank's table.
  std::uint32_t add_location(const std::string& text) noexcept;
  // From here on also into a file; with null no longer. Any thread may ask.
  void trace(std::shared_ptr<TraceFile> file);

 private:
  struct Trace {
    std::shared_ptr<TraceFile> file;
    std::uint32_t group;
  };
  void forget_sleep() noexcept {
    if (!is_stale_.load(std::memory_order_relaxed)) [[likely]]
      return;
    is_stale_.store(false, std::memory_order_relaxed);
    end_sleep();
  }
  void write(JournalEntry& entry, Seq seq, const Call& call, std::uint64_t count) noexcept;
  TraceOperation* record(RecordKind kind, Seq number, const Call& call, std::uint64_t count) noexcept;

  Layout layout_;
  int rank_;
  Seq num_messages_ = 0;
  std::uint32_t num_locations_ = 1;  // 0 means unknown
  std::int64_t clock_ns_ = 0;  // when it was last looked at; 0: the end of the operation under way needs a look of its own
  TraceOperation* collective_ = nullptr;  // the record of the one under way
  std::atomic<bool> is_stale_{false};  // it no longer sleeps for what the segment says
  std::atomic<Trace*> trace_{nullptr};
  std::mutex mutex_;  // guards traces_
  std::vector<std::unique_ptr<Trace>> traces_;  // all there ever were: another thread may still write into one
};

}  // namespace phalanx
