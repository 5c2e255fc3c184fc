#include "journal.hpp"

#include <algorithm>
#include <cstring>

namespace phalanx {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

std::uint64_t pack_what(const Call& call) {
  return call.signature() | std::uint64_t(call.num_dims) << 24;
}

std::uint64_t pack_where(const Call& call) { return call.location | (call.is_async ? kIsAsync : 0); }

// Each counter has one writer, so it needs no locked instruction.
void add(std::atomic<std::uint64_t>& counter, std::uint64_t amount) { counter.store(counter.load(kRelaxed) + amount, kRelaxed); }

}  // namespace

#ifdef PHALANX_NO_JOURNAL  // only to measure what it costs
void Journal::begin(Seq, const Call&) noexcept {}
void Journal::end(Seq) noexcept {}
MessageMark Journal::begin_message(const Call&, std::uint64_t) noexcept { return {}; }
void Journal::end_message(const MessageMark&, int) noexcept {}
#else
void Journal::begin(Seq seq, const Call& call) noexcept {
  forget_sleep();
  write(layout_.journal(rank_, seq), seq, call, call.count);
  clock_ns_ = call.size_bytes <= kSlotBytes && !call.is_async ? call.start_ns + 1 : 0;
  if (trace_.load(std::memory_order_acquire) != nullptr) [[unlikely]]
    collective_ = record(RecordKind::kCollective, seq, call, call.count);
}

void Journal::end(Seq seq) noexcept {
  JournalEntry& entry = layout_.journal(rank_, seq);
  const std::int64_t now = clock_ns_ != 0 && collective_ == nullptr ? clock_ns_ : monotonic_ns();
  entry.end_ns.store(now, kRelaxed);
  add(layout_.progress(rank_).moved_bytes, entry.size_bytes.load(kRelaxed));
  if (collective_ != nullptr) [[unlikely]] {
    collective_->end_ns.store(now, kRelaxed);
    collective_ = nullptr;
  }
}

MessageMark Journal::begin_message(const Call& call, std::uint64_t tag) noexcept {
  forget_sleep();
  MessageMark mark{++num_messages_, nullptr};
  write(layout_.message(rank_, mark.number), mark.number, call, tag);
  layout_.progress(rank_).messages.store(mark.number, kRelaxed);
  if (trace_.load(std::memory_order_acquire) != nullptr) [[unlikely]]
    mark.record = record(RecordKind::kMessage, mark.number, call, tag);
  return mark;
}

void Journal::end_message(const MessageMark& mark, int peer) noexcept {
  const std::int64_t now = monotonic_ns();
  if (mark.record != nullptr) {
    mark.record->peer.store(peer, kRelaxed);
    mark.record->end_ns.store(now, kRelaxed);
  }
  JournalEntry& entry = layout_.message(rank_, mark.number);
  if (entry.seq.load(kRelaxed) != mark.number) return;  // kJournalEntries messages ago
  entry.peer.store(peer, kRelaxed);
  entry.end_ns.store(now, kRelaxed);
  add(layout_.progress(rank_).mailed_bytes, entry.size_bytes.load(kRelaxed));
}
#endif

void Journal::begin_sleep(const Call& call, std::uint64_t tag) noexcept {
  write(layout_.mail_journal(rank_), 1, call, tag);
}

void Journal::write(JournalEntry& entry, Seq seq, const Call& call, std::uint64_t count) noexcept {
  entry.seq.store(0, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);  // a reader sees that the old entry is gone before the new one
  entry.start_ns.store(call.start_ns, kRelaxed);
  entry.end_ns.store(0, kRelaxed);
  entry.what.store(pack_what(call), kRelaxed);
  entry.count.store(count, kRelaxed);
  entry.size_bytes.store(call.size_bytes, kRelaxed);
  entry.where.store(pack_where(call), kRelaxed);
  entry.peer.store(call.root, kRelaxed);
  for (std::uint32_t i = 0; i < std::min<std::uint32_t>(call.num_dims, kShapeDims); ++i)
    entry.shape[i].store(call.shape[i], kRelaxed);
  entry.seq.store(seq, std::memory_order_release);
}

TraceOperation* Journal::record(RecordKind kind, Seq number, const Call& call, std::uint64_t count) noexcept {
  const Trace* trace = trace_.load(std::memory_order_acquire);
  if (trace == nullptr) return nullptr;
  auto* record = static_cast<TraceOperation*>(trace->file->take());
  if (record == nullptr) return nullptr;
  record->group = trace->group;
  record->number = number;
  record->start_ns = call.start_ns;
  record->what = pack_what(call);
  record->count = count;
  record->size_bytes = call.size_bytes;
  record->location = call.location;
  record->flags = call.is_async ? 1 : 0;
  record->peer.store(kind == RecordKind::kMessage ? call.root : -1, kRelaxed);
  std::copy_n(call.shape, kShapeDims, record->shape);
  TraceFile::commit(record, kind);
  return record;
}

std::uint32_t Journal::add_location(const std::string& text) noexcept {
  const std::uint32_t index = num_locations_++ % kLocations;
  const std::uint32_t slot = index == 0 ? num_locations_++ % kLocations : index;  // 0 stays "unknown"
  std::uint64_t words[kLocationWords] = {};
  const std::size_t room = sizeof(words) - 1;
  const std::size_t skip = text.size() > room ? text.size() - room : 0;  // the end of a path says more
  std::memcpy(words, text.c_str() + skip, text.size() - skip);
  for (std::size_t i = 0; i < kLocationWords; ++i) layout_.location(rank_, slot).words[i].store(words[i], kRelaxed);
  if (const Trace* trace = trace_.load(std::memory_order_acquire)) trace->file->add_location(trace->group, slot, text.c_str());
  return slot;
}

void Journal::trace(std::shared_ptr<TraceFile> file) {
  if (!file) return trace_.store(nullptr, std::memory_order_release);
  const std::uint32_t group = file->add_group(layout_, rank_);
  for (std::uint32_t slot = 1; slot < kLocations; ++slot) {  // calls from known lines will not be announced again
    char text[kLocationWords * 8 + 1] = {};
    for (std::size_t i = 0; i < kLocationWords; ++i) {
      const std::uint64_t word = layout_.location(rank_, slot).words[i].load(kRelaxed);
      std::memcpy(text + i * 8, &word, 8);
    }
    if (text[0] != 0) file->add_location(group, slot, text);
  }
  const std::lock_guard lock(mutex_);
  traces_.push_back(std::make_unique<Trace>(Trace{std::move(file), group}));
  trace_.store(traces_.back().get(), std::memory_order_release);
}

}  // namespace phalanx
