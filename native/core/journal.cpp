#include "journal.hpp"

#include <algorithm>
#include <cstring>

#include "text.hpp"

namespace phalanx {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

PackedShape pack_many_dims(const std::uint64_t* shape, std::uint32_t num_dims) noexcept {
  const std::uint32_t bits = num_dims <= 4 ? 32 : 21, per_word = num_dims <= 4 ? 2 : 3;
  const std::uint64_t largest = (1ull << bits) - 1;
  PackedShape packed{};
  for (std::uint32_t i = 0; i < std::min<std::uint32_t>(num_dims, kShapeDims); ++i)
    packed.words[i / per_word] |= std::min(shape[i], largest) << i % per_word * bits;
  return packed;
}

std::uint64_t unpack_dim(const PackedShape& packed, std::uint32_t num_dims, std::uint32_t dim) noexcept {
  if (num_dims <= 2) return packed.words[dim];
  const std::uint32_t bits = num_dims <= 4 ? 32 : 21, per_word = num_dims <= 4 ? 2 : 3;
  return packed.words[dim / per_word] >> dim % per_word * bits & ((1ull << bits) - 1);
}

const JournalEntry* await_entry(const Layout& layout, int rank, Seq seq, int& looks) noexcept {
  constexpr int kMostLooks = 200;
  constexpr unsigned kBetweenLooksUs = 100;
  const JournalEntry& entry = layout.journal(rank, seq);
  for (int look = 0;; ++look, --looks) {
    const Seq found = entry.seq.load(std::memory_order_acquire);
    if (found == seq) return &entry;
    if (found > seq || layout.progress(rank).arrived.load(std::memory_order_acquire) < seq || look == kMostLooks || looks <= 0)
      return nullptr;
    usleep(kBetweenLooksUs);
  }
}

void Journal::do_special(Seq seq, const Call& call) noexcept {
  if (is_stale_.exchange(false)) end_sleep();
  collective_ = record(RecordKind::kCollective, seq, call, call.count);
  is_special_.store(trace_.load() != nullptr);
  if (is_stale_.load()) is_special_.store(true);  // another thread has just slept in vain
}

MessageMark Journal::begin_message(const Call& call, std::uint64_t tag) noexcept {
  if (is_stale_.exchange(false)) end_sleep();
  MessageMark mark{++num_messages_, nullptr};
#ifndef PHALANX_NO_JOURNAL
  write(layout_.message(rank_, mark.number), mark.number, call, tag);
  layout_.progress(rank_).messages.store(mark.number, kRelaxed);
  if (trace_.load(std::memory_order_acquire) != nullptr) [[unlikely]]
    mark.record = record(RecordKind::kMessage, mark.number, call, tag);
#endif
  return mark;
}

void Journal::end_message(const MessageMark& mark, const Call& call, int peer) noexcept {
#ifndef PHALANX_NO_JOURNAL
  const std::int64_t seen = mail_clock_ns_.load(kRelaxed);
  const bool needs_look = seen == 0 || call.is_async || call.is_on_device || call.size_bytes > kSlotBytes || mark.record != nullptr;
  const std::int64_t now = needs_look ? monotonic_ns() : std::max(call.start_ns + 1, seen);
  if (mark.record != nullptr) {
    mark.record->peer.store(peer, kRelaxed);
    mark.record->end_ns.store(now, kRelaxed);
  }
  JournalEntry& entry = layout_.message(rank_, mark.number);
  if (entry.seq.load(kRelaxed) != mark.number) return;  // a later message has overwritten it
  entry.where.store(pack_where(call, peer), kRelaxed);
  entry.end_ns.store(now, kRelaxed);
  layout_.progress(rank_).mailed_bytes.store(mailed_bytes_ += call.size_bytes, kRelaxed);
#endif
}

void Journal::begin_sleep(const Call& call, std::uint64_t tag) noexcept {
  write(layout_.mail_journal(rank_), 1, call, tag);
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
  num_locations_ = num_locations_ + 1 == kMayDoMore ? 1 : num_locations_ + 1;
  Location& location = layout_.location(rank_, num_locations_);
  std::uint64_t words[kLocationWords] = {};
  const std::string_view kept = end_of(text, sizeof(words));
  std::memcpy(words, kept.data(), kept.size());
  location.number.store(0, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);  // as in write(): a reader sees first that the old line is gone
  for (std::size_t i = 0; i < kLocationWords; ++i) location.words[i].store(words[i], kRelaxed);
  location.number.store(num_locations_, std::memory_order_release);
  if (const Trace* trace = trace_.load(std::memory_order_acquire)) trace->file->add_location(trace->group, num_locations_, text);
  return num_locations_;
}

std::string read_location(const Layout& layout, int rank, std::uint64_t number) {
  const Location& location = layout.location(rank, number);
  if (number == 0 || location.number.load(std::memory_order_acquire) != number) return "";
  char text[kLocationWords * sizeof(std::uint64_t) + 1] = {};
  for (std::size_t i = 0; i < kLocationWords; ++i) {
    const std::uint64_t word = location.words[i].load(kRelaxed);
    std::memcpy(text + i * sizeof word, &word, sizeof word);
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  return location.number.load(kRelaxed) == number ? text : "";
}

void Journal::trace(std::shared_ptr<TraceFile> file) {
  if (!file) return trace_.store(nullptr, std::memory_order_release);
  const std::uint32_t group = file->add_group(layout_, rank_);
  for (std::size_t slot = 0; slot < kLocations; ++slot) {  // calls from known lines will not be announced again
    const std::uint64_t number = layout_.location(rank_, slot).number.load(kRelaxed);
    const std::string text = read_location(layout_, rank_, number);
    if (!text.empty()) file->add_location(group, static_cast<std::uint32_t>(number), text);
  }
  const std::lock_guard lock(mutex_);
  traces_.push_back(std::make_unique<Trace>(Trace{std::move(file), group}));
  trace_.store(traces_.back().get(), std::memory_order_release);
  is_special_.store(true);
}

}  // namespace phalanx
