// What a group's memory says, read by somebody who need not trust its ranks: copied once, then checked.
//
// Whoever has the memory may have written anything, and may go on writing while we read. So every word is loaded once, numbers
// that are used as an index are brought into their range, and texts end where their room ends.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "journal.hpp"
#include "layout.hpp"
#include "segment.hpp"

namespace phalanx {

// Where everything lies in a group's memory. Throws std::runtime_error when it is none, or of another version, or its sizes
// contradict each other.
Layout layout_of(const Segment& segment);

struct EntryFacts {
  Seq seq;
  Operation operation;  // kCount when it is none that we know; so are the next two
  DType dtype;
  ReduceOp op;
  const char* device;  // "cpu" or "cuda"
  bool is_async, may_do_more;
  std::int32_t root, peer;  // -1 when it is no rank of the group
  std::uint64_t count;
  std::int64_t start_ns, end_ns;
  std::uint32_t num_dims;
  std::uint64_t shape[kShapeDims];
  std::string location;

  std::uint64_t size_bytes() const noexcept;
};

struct FaultFacts {
  FaultKind kind;  // kCount when it is none that we know
  std::int32_t culprit, reporter;  // -1 when it is no rank of the group
  Seq seq;
  Awaited awaited;  // kCount when it is none that we know
  std::uint64_t wanted_bytes, found_bytes;
  std::string text;
};

struct RankFacts {
  int rank;
  std::int32_t pid, launched_pid;
  std::uint64_t thread;
  bool is_thread;
  bool is_here;      // a process of another container has a number that means somebody else here
  bool is_debugged;
  std::int32_t caller, backward_caller;  // threads, 0 or kSeveral
  bool awaits_work;
  OtherThreads other_threads;  // kCount when it is none that we know
  std::uint64_t looks, work_looks, mail_moves, mail_looks, background_looks;
  std::uint32_t background_mail;
  MemberState state;  // kCount when it is none that we know
  std::int32_t exit_status;
  Seq arrived, finished, messages;
  std::uint64_t moved_bytes;
  std::int32_t sleeps_for;  // a rank, or -1
  std::optional<EntryFacts> entry;  // of the collective it arrived at last
  std::optional<EntryFacts> begun;  // it has called that, but not shown itself there yet
  std::optional<EntryFacts> mail;   // what it sleeps for in send or recv
};

// How often a reader looks again for an entry that a rank is about to write, in all: see await_entry().
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
