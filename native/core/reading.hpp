// Reads a group's memory without trusting its ranks: copies each word once, then checks the copy.
//
// Any process that maps the memory may have written anything, and may go on writing while we read. So we load every word once,
// bring numbers that we use as an index into their range, and end texts where their field ends.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "journal.hpp"
#include "layout.hpp"
#include "segment.hpp"

namespace phalanx {

// Where everything lies in a group's memory. Throws std::runtime_error if this is not a group's memory, if it has another
// version, or if its sizes contradict each other.
Layout layout_of(const Segment& segment);

struct EntryFacts {
  Seq seq;
  Operation operation;  // kCount if we do not know it; the same for the next two
  DType dtype;
  ReduceOp op;
  const char* device;  // "cpu" or "cuda"
  bool is_async, may_do_more;
  std::int32_t root, peer;  // -1 if it is not a rank of the group
  std::uint64_t count;
  std::int64_t start_ns, end_ns;
  std::uint32_t num_dims;
  std::uint64_t shape[kShapeDims];
  std::string location;

  std::uint64_t size_bytes() const noexcept;
};

struct FaultFacts {
  FaultKind kind;  // kCount if we do not know it
  std::int32_t culprit, reporter;  // -1 if it is not a rank of the group
  Seq seq;
  Awaited awaited;  // kCount if we do not know it
  std::uint64_t wanted_bytes, found_bytes;
  std::string text;
};

struct RankFacts {
  int rank;
  std::int32_t pid, launched_pid;
  std::uint64_t thread;
  bool is_thread;
  bool is_here;      // false for a process of another container: its pid means another process here
  bool is_debugged;
  std::int32_t caller, backward_caller;  // threads, 0 or kSeveral
  bool awaits_work;
  OtherThreads other_threads;  // kCount if we do not know it
  std::uint64_t looks, work_looks, mail_moves, mail_looks, background_looks;
  std::uint32_t background_mail;
  MemberState state;  // kCount if we do not know it
  Departure departure;  // kCount if we do not know it
  std::int32_t exit_status;
  Seq arrived, finished, messages;
  std::uint64_t moved_bytes;
  std::int32_t sleeps_for;  // a rank, or -1
  std::optional<EntryFacts> entry;  // of the collective it arrived at last
  std::optional<EntryFacts> begun;  // it has called this one, but not arrived at it yet
  std::optional<EntryFacts> mail;   // what it sleeps for in send or recv
};

// How often a reader looks again, in all, for entries that ranks are about to write: see await_entry().
inline constexpr int kPatientLooks = 1000;

std::optional<EntryFacts> read_entry(const Layout& layout, int rank, const JournalEntry& entry);
// The entry of one operation, if it is still there.
std::optional<EntryFacts> read_entry_of(const Layout& layout, int rank, Seq seq, int& looks);
// The last operations and messages of a rank, oldest first.
std::vector<EntryFacts> read_operations(const Layout& layout, int rank);
std::vector<EntryFacts> read_messages(const Layout& layout, int rank);
// Why the group is broken, if it is.
std::optional<FaultFacts> read_fault(const Layout& layout);
std::string read_name(const Layout& layout);
// Whether a rank lives, what it called last, what it waits for. `here` is own_pid_namespace().
RankFacts read_rank(const Layout& layout, int rank, std::uint64_t here, int& looks);

}  // namespace phalanx
