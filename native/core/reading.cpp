#include "reading.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "far_peer.hpp"

namespace phalanx {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Loads, exactly once, a word that is not atomic and may change while we look at it.
template <class Word>
Word load_once(const Word& word) noexcept {
  Word value;
  __atomic_load(&word, &value, __ATOMIC_RELAXED);
  return value;
}

template <class Enum>
Enum known(std::uint64_t value) noexcept {
  return value < static_cast<std::uint64_t>(Enum::kCount) ? static_cast<Enum>(value) : Enum::kCount;
}

std::int32_t rank_or_none(const Layout& layout, std::int64_t rank) noexcept {
  return rank >= 0 && rank < layout.num_ranks() ? static_cast<std::int32_t>(rank) : -1;
}

// Also a rank of another host.
std::int32_t peer_or_none(const Layout& layout, std::int32_t number) noexcept {
  return is_far(number) && rank_of_far(number) < kMaxRanks ? number : rank_or_none(layout, number);
}

std::string copy_text(const char* text, std::size_t room) {
  std::string copied(room, '\0');
  for (std::size_t i = 0; i < room; ++i) copied[i] = load_once(text[i]);
  copied.resize(strnlen(copied.data(), room));
  return copied;
}

template <class Find>
std::vector<EntryFacts> read_ring(const Layout& layout, int rank, Seq last, const Find& find) {
  std::vector<EntryFacts> found;
  const Seq num_entries = std::min<Seq>(last, kJournalEntries);
  for (Seq before = num_entries; before-- > 0;) {
    const Seq number = last - before;
    const JournalEntry& entry = find(number);
    if (entry.seq.load(std::memory_order_acquire) != number) continue;
    if (auto facts = read_entry(layout, rank, entry)) found.push_back(std::move(*facts));
  }
  return found;
}

}  // namespace

Layout layout_of(const Segment& segment) {
  const auto refuse = [] { throw std::runtime_error("this is not a segment of this version of phalanx"); };
  const std::size_t size = segment.size();
  if (size < sizeof(Header)) refuse();
  // Any process that has the file may write anything there, at any time. So we copy the numbers once and then check them.
  const auto load = [](const auto& word) { return __atomic_load_n(&word, __ATOMIC_RELAXED); };
  const auto& header = *reinterpret_cast<const Header*>(segment.data());
  const std::uint64_t n = load(header.num_ranks), chunk = load(header.chunk_bytes), eager = load(header.eager_bytes),
                      bulk = load(header.bulk_bytes);
  if (load(header.magic) != kMagic || n == 0 || n > kMaxRanks) refuse();
  // No product can overflow if each part fits into the file.
  const std::uint64_t num_rings = std::max<std::uint64_t>(n * (n - 1), 1);
  if (chunk > size / (n * kStageSets * kStageBuffers) || bulk > size / (n * kBulkBuffers) || eager > size / num_rings) refuse();
  const Layout layout(segment.data(), static_cast<int>(n), chunk, eager, bulk);
  if (layout.total_bytes() != size) refuse();
  return layout;
}

std::uint64_t EntryFacts::size_bytes() const noexcept {
  if (operation == Operation::kBarrier) return 0;
  std::uint64_t elements = 1;
  for (std::uint32_t i = 0; i < num_dims; ++i) elements *= shape[i];
  return elements * item_bytes(dtype);
}

std::optional<EntryFacts> read_entry(const Layout& layout, int rank, const JournalEntry& entry) {
  EntryFacts facts;
  facts.seq = entry.seq.load(std::memory_order_acquire);
  if (facts.seq == 0) return std::nullopt;
  const std::uint64_t what = entry.what.load(kRelaxed), where = entry.where.load(kRelaxed);
  facts.operation = known<Operation>(what & 0xff);
  facts.dtype = known<DType>(what >> 8 & 0xff);
  facts.op = known<ReduceOp>(what >> 16 & 0xff);
  facts.device = (what & kOnDevice) != 0 ? "cuda" : "cpu";
  facts.root = peer_or_none(layout, static_cast<std::int32_t>(what >> 32));
  facts.count = entry.count.load(kRelaxed);
  facts.location = read_location(layout, rank, where & (kMayDoMore - 1));
  facts.is_async = (where & kIsAsync) != 0;
  facts.may_do_more = (where & kMayDoMore) != 0;
  facts.peer = peer_or_none(layout, static_cast<std::int32_t>(where >> 32));
  facts.start_ns = entry.start_ns.load(kRelaxed);
  facts.end_ns = entry.end_ns.load(kRelaxed);
  facts.num_dims = static_cast<std::uint32_t>(std::min<std::size_t>(what >> 24 & 0x7f, kShapeDims));
  const PackedShape packed{{entry.shape[0].load(kRelaxed), entry.shape[1].load(kRelaxed)}};
  for (std::uint32_t i = 0; i < facts.num_dims; ++i) facts.shape[i] = unpack_dim(packed, facts.num_dims, i);
  // The rank may have overwritten the entry while we read: nothing is better than a mixture.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.seq.load(kRelaxed) != facts.seq) return std::nullopt;
  return facts;
}

std::optional<EntryFacts> read_entry_of(const Layout& layout, int rank, Seq seq, int& looks) {
  const JournalEntry* const found = await_entry(layout, rank, seq, looks);
  return found == nullptr ? std::nullopt : read_entry(layout, rank, *found);
}

std::vector<EntryFacts> read_operations(const Layout& layout, int rank) {
  // A rank that waits before it publishes has begun the operation after the one it last arrived at.
  return read_ring(layout, rank, layout.progress(rank).arrived.load() + 1,
                   [&](Seq number) -> const JournalEntry& { return layout.journal(rank, number); });
}

std::vector<EntryFacts> read_messages(const Layout& layout, int rank) {
  return read_ring(layout, rank, layout.progress(rank).messages.load(),
                   [&](Seq number) -> const JournalEntry& { return layout.message(rank, number); });
}

std::optional<FaultFacts> read_fault(const Layout& layout) {
  const Fault& fault = layout.header().fault;
  if (fault.state.load(std::memory_order_acquire) != 2) return std::nullopt;
  return FaultFacts{known<FaultKind>(static_cast<std::uint32_t>(load_once(fault.kind))),
                    rank_or_none(layout, load_once(fault.culprit)), rank_or_none(layout, load_once(fault.reporter)),
                    load_once(fault.seq), known<Awaited>(static_cast<std::uint32_t>(load_once(fault.awaited))),
                    load_once(fault.wanted_bytes), load_once(fault.found_bytes), copy_text(fault.text, sizeof(fault.text))};
}

std::string read_name(const Layout& layout) {
  const auto& name = layout.header().name;
  return copy_text(name, sizeof(name));
}

RankFacts read_rank(const Layout& layout, int rank, std::uint64_t here, int& looks) {
  const Member& member = layout.member(rank);
  const Progress& progress = layout.progress(rank);
  RankFacts facts;
  facts.rank = rank;
  facts.state = known<MemberState>(static_cast<std::uint32_t>(member.state.load()));
  facts.departure = known<Departure>(static_cast<std::uint32_t>(member.departure.load()));
  facts.pid = member.pid.load();
  facts.launched_pid = member.launched_pid.load();
  facts.thread = member.thread.load();
  facts.is_thread = member.is_thread.load() != 0;
  facts.is_here = facts.pid == 0 || member.pid_namespace.load() == here;
  facts.is_debugged = member.is_debugged.load() != 0;
  facts.caller = member.caller.load(kRelaxed);
  facts.backward_caller = member.backward_caller.load(kRelaxed);
  facts.awaits_work = member.awaits_work.load(kRelaxed) != 0;
  facts.other_threads = known<OtherThreads>(static_cast<std::uint32_t>(member.other_threads.load(kRelaxed)));
  facts.looks = progress.looks.load(kRelaxed);
  facts.work_looks = member.work_looks.load(kRelaxed);
  facts.mail_moves = progress.mail_moves.load(kRelaxed);
  facts.mail_looks = progress.mail_looks.load(kRelaxed);
  facts.background_looks = progress.background_looks.load(kRelaxed);
  facts.background_mail = progress.background_mail.load(kRelaxed);
  facts.exit_status = facts.state == MemberState::kDead ? member.exit_status.load() : kStatusUnknown;
  facts.arrived = progress.arrived.load();
  facts.finished = progress.finished.load();
  facts.messages = progress.messages.load();
  facts.moved_bytes = progress.moved_bytes.load(kRelaxed) + progress.mailed_bytes.load(kRelaxed);
  facts.sleeps_for = rank_or_none(layout, std::int64_t{progress.sleeps_for.load(kRelaxed)} - 1);
  if (facts.arrived != 0) facts.entry = read_entry_of(layout, rank, facts.arrived, looks);
  facts.begun = read_entry_of(layout, rank, facts.arrived + 1, looks);
  facts.mail = read_entry(layout, rank, layout.mail_journal(rank));
  return facts;
}

}  // namespace phalanx
