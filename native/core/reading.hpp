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
  bool is_on_device, is_async;
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
  std::string text;
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
// The state of a member; kCount when it is none that we know.
MemberState read_state(const Layout& layout, int rank) noexcept;
// The rank that a member sleeps for, or -1.
std::int32_t read_sleeps_for(const Layout& layout, int rank) noexcept;

}  // namespace phalanx
