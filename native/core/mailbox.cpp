#include "mailbox.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "algorithm.hpp"
#include "kernels.hpp"

namespace phalanx {
namespace {

constexpr auto kOrder = std::memory_order_seq_cst;
constexpr std::int64_t kSleepSliceNs = 50'000'000;

}  // namespace

Mailbox::Mailbox(std::shared_ptr<Endpoint> endpoint)
    : endpoint_(std::move(endpoint)),
      layout_(endpoint_->layout()),
      rank_(endpoint_->rank()),
      num_ranks_(endpoint_->num_ranks()),
      eager_limit_(std::min(layout_.eager_bytes() / 2, kEagerBytes)),
      ring_writer_(endpoint_->is_crowded(), layout_.eager_bytes() < kTurningBytes ? Place::kHot : Place::kTurning),
      bulk_writer_(endpoint_->is_crowded(), Place::kTurning) {
  const auto n = static_cast<std::size_t>(num_ranks_);
  sends_.resize(n);
  offered_.resize(n);
  incoming_.resize(n);
  partial_.resize(n);
  sent_.resize(n);
  ring_head_.resize(n);
  is_ring_reserved_.resize(n);
  messages_.resize(n);
  drained_.resize(n);
  taken_.resize(n);
  ring_taken_.resize(n);
}

Mailbox::~Mailbox() { close(); }

void Mailbox::close() {
  if (!endpoint_->is_owner()) {
    if (thread_.joinable()) thread_.detach();
    condition_.release();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  condition_->notify_all();
  Bell& bell = layout_.mail_bell(rank_);
  bell.word.fetch_add(1, kOrder);
  futex_wake_all(bell.word);
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  fail_all(Trouble(FaultKind::kAborted, rank_, rank_, 0, {"the group was closed"}, true));
}

std::shared_ptr<Transfer> Mailbox::start(const Call& call, std::uint64_t tag, std::byte* data, std::size_t bytes,
                                         std::shared_ptr<void> keep) {
  auto transfer = std::make_shared<Transfer>();
  transfer->call = call;
  transfer->call.tag = tag;
  transfer->is_sending = call.operation == Operation::kSend;
  transfer->dtype = call.dtype;
  transfer->tag = tag;
  transfer->data = data;
  transfer->bytes = bytes;
  transfer->keep = std::move(keep);
  start(transfer);
  return transfer;
}

void Mailbox::start(const std::shared_ptr<Transfer>& transfer) {
  endpoint_->throw_if_faulty();
  endpoint_->tell_core();
  const int peer = transfer->peer();
  const std::lock_guard lock(mutex_);
  if (is_closing_.load()) throw Trouble(FaultKind::kAborted, rank_, rank_, 0, {"the group was closed"}, true);
  if (transfer->is_journaled()) transfer->mark = endpoint_->journal().begin_message(transfer->call, transfer->call.tag);
  if (!transfer->is_send()) {
    receives_.push_back(transfer);
    // What arrived earlier comes first, so look there before the channels.
    if (!match_unexpected(transfer)) progress();
  } else if (peer == rank_) {
    Unexpected message{rank_, transfer->space, transfer->tag, transfer->bytes, transfer->dtype, {}, 0, 0, transfer};
    if (auto receive = match_receive(rank_, transfer->space, transfer->tag)) {
      deliver(receive, std::move(message));
    } else {
      unexpected_.push_back(std::move(message));
    }
  } else {
    reserve_buffers(peer, transfer->bytes);
    sends_[std::size_t(peer)].push_back(transfer);
    tell_moved(push_sends(peer));
  }
}

void Mailbox::tell_end(const Transfer& notice, int peer) { note_end(notice.mark, notice.call, peer); }

MessageMark Mailbox::note_begin(const Call& call) {
  const std::lock_guard lock(mutex_);
  return endpoint_->journal().begin_message(call, call.tag);
}

void Mailbox::note_end(const MessageMark& mark, const Call& call, int peer) {
  const std::lock_guard lock(mutex_);
  endpoint_->journal().end_message(mark, call, peer);
}

// Reserve the memory that a message goes through, the first time that one needs it.
void Mailbox::reserve_buffers(int destination, std::size_t bytes) {
  const auto to = static_cast<std::size_t>(destination);
  try {
    if (bytes > eager_limit_ && !is_bulk_reserved_) {
      reserve(layout_.bulk(rank_), kBulkBuffers * layout_.bulk_bytes());
      is_bulk_reserved_ = true;
    } else if (bytes > kEnvelopeInline && bytes <= eager_limit_ && !is_ring_reserved_[to]) {
      reserve(layout_.ring(rank_, destination), layout_.eager_bytes());
      is_ring_reserved_[to] = true;
    }
  } catch (const OutOfMemory& shortage) {
    throw Trouble(FaultKind::kOutOfMemory, rank_, rank_, 0, shortage_of(shortage), false);
  }
}

void Mailbox::finish(Transfer& transfer, std::optional<Trouble> trouble) {
  if (!trouble && transfer.space == MailSpace::kProgram)
    endpoint_->journal().end_message(transfer.mark, transfer.call, transfer.is_send() ? transfer.peer() : transfer.source);
  transfer.trouble = std::move(trouble);
  transfer.is_done.store(true, kOrder);
  if (transfer.is_detached) count_detached(-1);
  if (transfer.on_done) transfer.on_done();
  Bell& bell = layout_.mail_bell(rank_);  // another thread of this rank may sleep for it
  if (bell.sleepers.load(kOrder) == 0) return;
  bell.word.fetch_add(1, kOrder);
  futex_wake_all(bell.word);
}

void Mailbox::count_detached(int change) noexcept {
  num_detached_.fetch_add(static_cast<std::size_t>(change));
  layout_.progress(rank_).background_mail.store(static_cast<std::uint32_t>(num_detached_.load()), std::memory_order_release);
}

void Mailbox::ring(int peer) noexcept {
  // Dekker with drive(): we stored, then look for sleepers.
  if (layout_.header().mail_sleepers.load(kOrder) == 0) [[likely]]
    return;
  Bell& bell = layout_.mail_bell(peer);
  if (bell.sleepers.load(kOrder) == 0) return;
  bell.word.fetch_add(1, kOrder);
  futex_wake_all(bell.word);
}

bool Mailbox::progress() {
  bool has_moved = false;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer != rank_) has_moved |= progress_with(peer);
  }
  return tell_moved(pump_outbound()) || has_moved;
}

bool Mailbox::tell_moved(bool has_moved) noexcept {
  std::atomic<std::uint64_t>& moves = layout_.progress(rank_).mail_moves;
  if (has_moved) moves.store(moves.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  return has_moved;
}

bool Mailbox::progress_with(int peer) {
  bool has_moved = false;
  while (drain(peer)) has_moved = true;
  if (!sends_[std::size_t(peer)].empty()) has_moved |= push_sends(peer);
  if (!offered_[std::size_t(peer)].empty()) has_moved |= answer_grants(peer);
  if (!incoming_[std::size_t(peer)].empty()) has_moved |= pump_incoming(peer);
  return tell_moved(has_moved);
}

// Take one envelope out of a channel.
bool Mailbox::drain(int source) {
  Channel& channel = layout_.channel(source, rank_);
  const Seq next = drained_[std::size_t(source)] + 1;
  const Envelope& envelope = channel.envelopes[next % kEnvelopes];
  if (envelope.seq.load(kOrder) != next) return false;
  if (envelope.is_bulk != 0) {
    Unexpected message{source, MailSpace(envelope.space), envelope.tag, envelope.bytes, DType(envelope.dtype), {}, 0,
                       envelope.message, nullptr};
    if (auto receive = match_receive(source, message.space, envelope.tag)) {
      deliver(receive, std::move(message));
    } else {
      unexpected_.push_back(std::move(message));
    }
  } else {
    const bool is_inline = envelope.bytes <= kEnvelopeInline;
    const std::byte* payload =
        is_inline ? envelope.payload : layout_.ring(source, rank_) + envelope.ring_offset % layout_.eager_bytes();
    if (envelope.offset == 0) begin_eager(source, envelope);
    add_part(source, envelope, payload);
    channel.ring_taken.store(envelope.ring_offset + (is_inline ? 0 : envelope.part_bytes), std::memory_order_release);
  }
  drained_[std::size_t(source)] = next;
  channel.taken.store(next, kOrder);
  ring(source);
  return true;
}

void Mailbox::begin_eager(int source, const Envelope& envelope) {
  Partial& partial = partial_[std::size_t(source)];
  auto receive = match_receive(source, MailSpace(envelope.space), envelope.tag);
  if (receive && receive->bytes == envelope.bytes && receive->dtype == DType(envelope.dtype)) {
    receive->source = source;
    partial = {std::move(receive), nullptr};
    return;
  }
  Unexpected message{source, MailSpace(envelope.space), envelope.tag, envelope.bytes, DType(envelope.dtype), {},
                     envelope.bytes, 0, nullptr};
  if (receive) {  // of another size: it fails now, and the rest of the message is thrown away
    Unexpected refused = message;
    refused.missing = 0;
    deliver(receive, std::move(refused));
    partial = {nullptr, nullptr};
    return;
  }
  message.payload.resize(envelope.bytes);
  unexpected_.push_back(std::move(message));
  partial = {nullptr, &unexpected_.back()};
}

void Mailbox::add_part(int source, const Envelope& envelope, const std::byte* payload) {
  Partial& partial = partial_[std::size_t(source)];
  const std::size_t bytes = envelope.part_bytes;
  if (partial.receive) {
    if (bytes != 0) std::memcpy(partial.receive->data + envelope.offset, payload, bytes);
    partial.receive->moved += bytes;
    if (partial.receive->moved == partial.receive->bytes) {
      finish(*partial.receive);
      partial = {};
    }
  } else if (partial.unexpected != nullptr) {
    Unexpected& message = *partial.unexpected;
    if (bytes != 0) std::memcpy(message.payload.data() + envelope.offset, payload, bytes);
    message.missing -= bytes;
    if (message.missing != 0) return;
    partial = {};
    if (!message.claimed_by) return;
    // A receive asked for it while it was still arriving.
    const auto it = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const auto& m) { return &m == &message; });
    Unexpected whole = std::move(*it);
    unexpected_.erase(it);
    const auto receive = whole.claimed_by;
    deliver(receive, std::move(whole));
  }
}

std::shared_ptr<Transfer> Mailbox::match_receive(int source, MailSpace space, std::uint64_t tag) {
  for (auto it = receives_.begin(); it != receives_.end(); ++it) {
    const Transfer& receive = **it;
    if (receive.tag != tag || receive.space != space) continue;
    if (receive.peer() != source && receive.peer() != kAnySource) continue;
    auto found = *it;
    receives_.erase(it);
    return found;
  }
  return nullptr;
}

bool Mailbox::match_unexpected(const std::shared_ptr<Transfer>& receive) {
  for (auto it = unexpected_.begin(); it != unexpected_.end(); ++it) {
    if (it->claimed_by || it->tag != receive->tag || it->space != receive->space) continue;
    if (it->source != receive->peer() && receive->peer() != kAnySource) continue;
    if (it->missing != 0) {  // add_part() delivers it with its last part
      it->claimed_by = receive;
      receives_.remove(receive);
      return true;
    }
    Unexpected message = std::move(*it);
    unexpected_.erase(it);
    receives_.remove(receive);
    deliver(receive, std::move(message));
    return true;
  }
  return false;
}

// A message has found its receive.
void Mailbox::deliver(const std::shared_ptr<Transfer>& receive, Unexpected&& message) {
  receive->source = message.source;
  std::optional<Trouble> mismatch;
  if (receive->bytes != message.bytes || receive->dtype != message.dtype) {
    mismatch.emplace(FaultKind::kMismatch, message.source, rank_, 0,
                     FaultDetail{.wanted_bytes = receive->bytes, .found_bytes = message.bytes}, false);
  }
  if (message.message != 0) {
    incoming_[std::size_t(message.source)].push_back({receive, message.message, false, mismatch.has_value()});
    if (mismatch) finish(*receive, mismatch);
    pump_incoming(message.source);
    return;
  }
  const std::byte* payload = message.self_send ? message.self_send->data : message.payload.data();
  if (!mismatch && message.bytes != 0) std::memcpy(receive->data, payload, message.bytes);
  if (message.self_send) finish(*message.self_send, mismatch);
  finish(*receive, mismatch);
}

bool Mailbox::push_sends(int destination) {
  auto& queue = sends_[std::size_t(destination)];
  bool has_moved = false;
  while (!queue.empty() && push_part(*queue.front())) {
    has_moved = true;
    auto send = queue.front();
    if (send->message != 0) {
      offered_[std::size_t(destination)].push_back(send);
    } else if (send->moved == send->bytes) {
      finish(*send);
    } else {
      continue;
    }
    queue.pop_front();
  }
  return has_moved;
}

// Put the next part of a message, or the offer of a bulk one, into its channel; false when there is no room.
bool Mailbox::push_part(Transfer& send) {
  const auto to = static_cast<std::size_t>(send.peer());
  Channel& channel = layout_.channel(rank_, send.peer());
  const Seq next = sent_[to] + 1;
  // Look at the receiver's word only when it matters: each look takes a cache line away from it.
  if (next - taken_[to] > kEnvelopes && next - (taken_[to] = channel.taken.load(kOrder)) > kEnvelopes) return false;
  const bool is_bulk = send.bytes > eager_limit_;
  const bool is_inline = send.bytes <= kEnvelopeInline;
  const std::size_t part = is_bulk ? 0 : std::min(send.bytes - send.moved, std::min(kEagerPart, eager_limit_));
  const std::size_t ring_bytes = layout_.eager_bytes();
  std::uint64_t at = ring_head_[to];
  if (!is_bulk && !is_inline) {
    if (at % ring_bytes + part > ring_bytes) at += ring_bytes - at % ring_bytes;  // a part must lie in one piece
    if (at + part - ring_taken_[to] > ring_bytes) ring_taken_[to] = channel.ring_taken.load(std::memory_order_acquire);
    if (at + part - ring_taken_[to] > ring_bytes) return false;
    ring_writer_.write(layout_.ring(rank_, send.peer()) + at % ring_bytes, send.data + send.moved, part);
    ring_head_[to] = at + part;
  }
  Envelope& envelope = channel.envelopes[next % kEnvelopes];
  envelope.tag = send.tag;
  envelope.bytes = send.bytes;
  envelope.offset = send.moved;
  envelope.part_bytes = static_cast<std::uint32_t>(part);
  envelope.ring_offset = at;
  envelope.dtype = static_cast<std::uint8_t>(send.dtype);
  envelope.space = static_cast<std::uint8_t>(send.space);
  envelope.is_bulk = is_bulk;
  if (is_bulk) envelope.message = send.message = ++messages_[to];
  if (is_inline && part != 0) std::memcpy(envelope.payload, send.data, part);
  send.moved += part;
  sent_[to] = next;
  envelope.seq.store(next, kOrder);
  ring(send.peer());
  return true;
}

// While this object lives, the thread counts as asleep, and the journal says what for.
namespace {
class AsleepForMail {
 public:
  AsleepForMail(Endpoint& endpoint, const Transfer* transfer, bool is_final)
      : header_(endpoint.layout().header()), bell_(endpoint.layout().mail_bell(endpoint.rank())), journal_(endpoint.journal()) {
    bell_.sleepers.fetch_add(1, kOrder);
    header_.mail_sleepers.fetch_add(1, kOrder);
    if (transfer == nullptr) return;
    Call call = transfer->call;
    call.may_do_more |= !is_final || !endpoint.callers().is_one();  // the caller may be at work while another thread waits
    journal_.begin_sleep(call, call.tag);
    is_told_ = true;
  }
  // The transfer is done. If it failed, whichever thread noticed that, the journal keeps what this thread slept for.
  bool wake_up(const Transfer* transfer) noexcept {
    is_over_ = transfer == nullptr || !transfer->trouble;
    return true;
  }
  ~AsleepForMail() {
    if (is_told_ && is_over_) journal_.end_sleep();
    if (is_told_ && !is_over_) journal_.keep_sleep();
    header_.mail_sleepers.fetch_sub(1, kOrder);
    bell_.sleepers.fetch_sub(1, kOrder);
  }

 private:
  Header& header_;
  Bell& bell_;
  Journal& journal_;
  bool is_over_ = false;
  bool is_told_ = false;
};
}  // namespace

// Move messages until done() or the deadline. Throws Trouble.
template <class Done>
bool Mailbox::drive(Done done, const std::shared_ptr<Transfer>& transfer, std::int64_t deadline_ns, bool is_final) {
  const int focus = transfer != nullptr && transfer->peer() != rank_ ? transfer->peer() : kAnySource;
  int turn = 0;
  // While spinning, look mostly where the message must come from, and at all peers in one of eight turns.
  const auto try_focused = [&] {
    if (focus == kAnySource || ++turn % 8 == 0) return false;
    const std::lock_guard lock(mutex_);
    progress_with(focus);
    if (outbound_ || !granted_.empty()) tell_moved(pump_outbound());
    return done();
  };
  const auto try_once = [&] {
    while (!done()) {
      {
        const std::lock_guard lock(mutex_);
        // Wait only when nothing can be moved. But stop at the deadline: messages of other peers may never end.
        if (!progress() || monotonic_ns() > deadline_ns) break;
      }
      if (!done()) Endpoint::begin_waiting();
    }
    return done();
  };
  const auto is_peer_here = [&] {
    return transfer != nullptr && transfer->peer() >= 0 && endpoint_->shares_core_with(transfer->peer());
  };
  const Patience& patience = endpoint_->patience();
  const bool is_spinning = patience.spin_ns > 1000;
  const auto look = [&] { return try_focused() || (turn % 8 == 0 && try_once()); };
  for (int i = 0; i < (is_spinning ? 8 : 1); ++i) {
    if (look()) return true;
    if (is_spinning) cpu_relax();
  }
  const std::int64_t start = monotonic_ns();
  const std::int64_t spin_until = start + patience.spin_ns, yield_until = spin_until + patience.yield_ns;
  for (std::int64_t now = start; now <= spin_until && !is_peer_here(); now = monotonic_ns()) {
    if (now > start + kGlanceNs || !is_spinning) Endpoint::begin_waiting();
    endpoint_->journal().passed_in_mail(now);
    for (int i = 0; i < 8; ++i) {
      if (is_spinning) cpu_relax(); else sched_yield();
      if (look()) return true;
    }
  }
  Endpoint::begin_waiting();
  const std::int64_t polite_until = is_peer_here() && endpoint_->wants_to_resettle() ? 0 : yield_until;
  for (std::int64_t now = monotonic_ns(); now < std::min(polite_until, deadline_ns); now = monotonic_ns()) {
    endpoint_->journal().passed_in_mail(now);
    for (int i = 0; i < 8; ++i) {
      if (try_once()) return true;
      sched_yield();
    }
  }
  Bell& bell = layout_.mail_bell(rank_);
  AsleepForMail asleep(*endpoint_, transfer.get(), is_final);
  Progress& words = layout_.progress(rank_);
  std::atomic<std::uint64_t>& looks = transfer ? words.mail_looks : words.background_looks;
  // The thread of detached messages always returns after its slice, even while a rank is in the debugger.
  const auto left_ns = [&, deadline = Deadline(deadline_ns, transfer ? transfer->call.paused_ns : 0)] {
    return transfer ? deadline.left_ns() : deadline_ns - monotonic_ns();
  };
  for (;;) {
    endpoint_->journal().slept_in_mail();
    const std::uint32_t word = bell.word.load(kOrder);
    if (try_once()) return asleep.wake_up(transfer.get());
    check_trouble(transfer);
    if (done()) return asleep.wake_up(transfer.get());
    const std::int64_t left = left_ns();
    if (left <= 0) return false;
    if (Endpoint::is_interrupted())
      throw Trouble(FaultKind::kInterrupted, rank_, rank_, 0, {}, false);
    looks.fetch_add(1, std::memory_order_release);
    futex_wait(bell.word, word, std::min(left, kSleepSliceNs));
  }
}

bool Mailbox::wait(const std::shared_ptr<Transfer>& transfer, std::int64_t deadline_ns, bool is_final) {
  if (transfer->mover != nullptr) return transfer->mover->wait(deadline_ns, is_final);
  const auto done = [&] { return transfer->is_done.load(kOrder); };
  bool is_in_time = false;
  try {
    is_in_time = done() || drive(done, transfer, deadline_ns, is_final);
  } catch (const Trouble& trouble) {
    const std::lock_guard lock(mutex_);
    if (trouble.is_fatal) {
      fail_all(trouble);
    } else if (!done()) {
      give_up(transfer, trouble);
    }
    is_in_time = true;
  }
  if (!is_in_time && is_final) {
    const std::lock_guard lock(mutex_);
    if (!done()) give_up(transfer, Trouble(FaultKind::kTimeout, transfer->peer(), rank_, 0, {}, false));
    is_in_time = true;
  }
  if (is_in_time && transfer->trouble) throw *transfer->trouble;
  return is_in_time;
}

void Mailbox::detach(const std::shared_ptr<Transfer>& transfer) {
  {
    const std::lock_guard lock(mutex_);
    if (transfer->is_done.load(kOrder)) return;
    try {
      if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    } catch (const std::system_error& error) {
      const Trouble trouble(FaultKind::kAborted, rank_, rank_, endpoint_->seq(), {no_thread_text(error)}, true);
      set_fault(layout_, trouble.kind, rank_, rank_, trouble.seq, trouble.detail);
      fail_all(trouble);
      throw trouble;
    }
    transfer->is_detached = true;
    count_detached(1);
    detached_.push_back(transfer);
  }
  condition_->notify_one();
}

void Mailbox::work() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      check_deadlines();
      condition_->wait(lock, [this] { return is_closing_ || !detached_.empty(); });
      if (is_closing_) return;
    }
    try {
      drive([this] { return num_detached_.load() == 0 || is_closing_.load(); }, nullptr,
            monotonic_ns() + kSleepSliceNs, false);
    } catch (const Trouble& trouble) {
      const std::lock_guard lock(mutex_);
      fail_all(trouble);
    }
  }
}

}  // namespace phalanx
