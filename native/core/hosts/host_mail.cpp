// The calls of the program, and how messages find their other side.
#include "host_mail.hpp"

#include <algorithm>
#include <cstring>

#include "host_group.hpp"

namespace phalanx {
namespace {

constexpr std::int64_t kSliceNs = 20'000'000;
constexpr std::uint64_t kDataTagsInUse = 1u << 20;  // every MPI has as many tags
static_assert(kDataTagsInUse <= kNumDataTags);
constexpr std::int64_t kLongFlushNs = 2'000'000'000;  // then ranks may be waiting for each other in a circle

}  // namespace

HostMessage::HostMessage(HostMail& owner, const Call& what, int far_rank, std::byte* memory, std::size_t size) : mail(owner), far(far_rank) {
  call = what;
  is_sending = what.operation == Operation::kSend;
  dtype = what.dtype;
  tag = what.tag;
  data = memory;
  bytes = size;
  mover = this;
}

bool HostMessage::wait(std::int64_t deadline_ns, bool is_final) {
  return mail.wait(shared_from_this(), deadline_ns, is_final);
}

std::shared_ptr<HostMessage> HostMail::start(const Call& call, std::byte* data, std::size_t bytes, std::shared_ptr<void> keep) {
  auto message = std::make_shared<HostMessage>(*this, call, rank_of_far(call.root), data, bytes);
  message->keep = std::move(keep);
  Endpoint& outer = group_.outer();
  outer.throw_if_faulty();
  outer.throw_if_ancestor_failed();
  message->card = mail_card_of(call, bytes, read_location(outer.layout(), outer.rank(), call.location));
  Lock lock(mutex_);
  if (is_closing_) throw Trouble(FaultKind::kAborted, outer.rank(), outer.rank(), 0, {"the group was closed"}, true);
  Line& line = line_to(message->far);
  if (line.lost && !line.has_left) {
    const std::string why = *line.lost;
    lock.unlock();
    try {
      group_.lost_message(why, message->far);
    } catch (const Trouble& trouble) {
      group_.give_up(trouble);
      throw;
    }
  }
  message->mark = mailbox_.note_begin(call);
  message->is_send() ? send(line, message) : receive(line, message);
  if (!message->is_done.load() && line.has_left && !(message->is_send() && message->data_tag != 0))
    fail_message(line, message, left_by(message->far));
  if (!message->is_done.load()) {
    group_.watch_wait(true);
    message->is_watched = true;
  }
  pump(lock, line);
  settle(lock);
  return message;
}

// -- sending

void HostMail::send(Line& line, const MessagePtr& message) {
  message->number = message->card.number = line.next_send[message->tag]++;
  const Key key{message->tag, message->number};
  std::optional<MailCard> ready;
  if (const auto found = line.ready.find(key); found != line.ready.end()) {
    ready = found->second;
    line.ready.erase(found);
  }
  if (message->bytes <= kMailBytes) return send_small(line, message);
  line.sends[key] = message;
  if (ready && is_same_message(*ready, message->card)) return take_ready(line, *ready);
  MailCard card = message->card;
  card.kind = MailKind::kOffer;
  queue_frame(line, card, nullptr, 0);
  message->is_told = true;
  if (ready) take_ready(line, *ready);
}

void HostMail::send_small(Line& line, const MessagePtr& message) {
  if (line.num_frames - line.num_taken_there >= kWindow) {
    line.sends[{message->tag, message->number}] = message;
    line.waiting.push_back(message);
    return;
  }
  MailCard card = message->card;
  card.kind = MailKind::kEager;
  queue_frame(line, card, message->data, message->bytes);
  line.sends.erase({message->tag, message->number});
  finish(message);
}

void HostMail::release_waiting(Line& line) {
  while (!line.waiting.empty() && line.num_frames - line.num_taken_there < kWindow) {
    const MessagePtr message = line.waiting.front();
    line.waiting.pop_front();
    if (!message->is_done.load()) send_small(line, message);
  }
}

// The other side has called the receive of a message.
void HostMail::take_ready(Line& line, const MailCard& card) {
  const Key key{card.tag, card.number};
  const auto found = line.sends.find(key);
  if (found == line.sends.end() || found->second->bytes <= kMailBytes) {
    const auto next = line.next_send.find(card.tag);
    if (next == line.next_send.end() || next->second <= card.number) line.ready[key] = card;  // else the frame is on its way
    return;
  }
  const MessagePtr message = found->second;
  if (message->data_tag != 0) return;
  if (!is_same_message(card, message->card) || card.data_tag == 0) {
    line.sends.erase(found);
    return disagree(message, card);
  }
  message->data_tag = card.data_tag;
  message->is_told = true;
  MailCard data = message->card;
  data.kind = MailKind::kData;
  queue_frame(line, data, nullptr, 0, message);
}

// -- receiving

void HostMail::receive(Line& line, const MessagePtr& message) {
  message->source = far_number(message->far);
  message->number = message->card.number = line.next_receive[message->tag]++;
  const Key key{message->tag, message->number};
  line.receives[key] = message;
  const auto found = line.arrived.find(key);
  if (found != line.arrived.end()) {
    const Arrived arrived = std::move(found->second);
    line.arrived.erase(found);
    return deliver(line, message, arrived.card, arrived.data.data());
  }
  if (message->bytes > kMailBytes) announce(line, message, true);
}

// Says that a receive was called.
void HostMail::announce(Line& line, const MessagePtr& message, bool has_room_for_data) {
  MailCard card = message->card;
  card.kind = MailKind::kReady;
  message->is_told = true;
  const auto is_stale = [&](std::uint64_t tag) { return std::ranges::any_of(stale_, [&](const auto& each) { return each->data_tag == tag; }); };
  while (has_room_for_data && (card.data_tag == 0 || is_stale(card.data_tag)))
    card.data_tag = message->data_tag = std::uint64_t(kFirstDataTag) + next_data_tag_++ % kDataTagsInUse;
  queue_frame(line, card, nullptr, 0, has_room_for_data ? message : nullptr);
}

// A message has found its receive.
void HostMail::deliver(Line& line, const MessagePtr& message, const MailCard& card, const std::byte* data) {
  const bool is_same = is_same_message(card, message->card);
  if (card.kind == MailKind::kOffer && is_same) {
    if (!message->is_told) announce(line, message, true);
    return;
  }
  line.receives.erase({message->tag, message->number});
  if (!is_same) {
    if (card.kind == MailKind::kOffer && !message->is_told) announce(line, message, false);
    if (message->data_tag != 0) stale_.push_back(message);
    return disagree(message, card);
  }
  if (message->bytes != 0) std::memcpy(message->data, data, message->bytes);
  finish(message);
}

void HostMail::take_offer(Line& line, const MailCard& card, const std::byte* data) {
  const Key key{card.tag, card.number};
  if (const auto found = line.receives.find(key); found != line.receives.end())
    return deliver(line, MessagePtr(found->second), card, data);
  const auto next = line.next_receive.find(card.tag);
  if (next != line.next_receive.end() && card.number < next->second) return;  // this receive was given up
  Arrived& arrived = line.arrived[key];
  arrived.card = card;
  if (card.kind == MailKind::kEager) arrived.data.assign(data, data + card.bytes);
}

// -- ends

void HostMail::finish(const MessagePtr& message, std::optional<Trouble> trouble) {
  if (message->is_done.load()) return;
  if (!trouble) mailbox_.note_end(message->mark, message->call, far_number(message->far));
  message->trouble = std::move(trouble);
  message->is_done.store(true);
  if (message->is_watched) group_.watch_wait(false);
  condition_->notify_all();
}

void HostMail::settle(Lock& lock) {
  while (!disagreements_.empty()) {
    const std::vector<Disagreement> all = std::exchange(disagreements_, {});
    std::vector<Trouble> troubles;
    lock.unlock();
    for (const Disagreement& each : all) {
      const std::string text = name_of(each.message->far) + " called " + group_.words().describe_call(words_card_of(each.other));
      troubles.emplace_back(FaultKind::kMismatch, kElsewhere, group_.outer().rank(), 0,
                            FaultDetail{.text = text, .wanted_bytes = each.message->bytes, .found_bytes = each.other.bytes}, false);
    }
    lock.lock();
    for (std::size_t i = 0; i < all.size(); ++i) finish(all[i].message, troubles[i]);
  }
}

bool HostMail::wait(const MessagePtr& message, std::int64_t deadline_ns, bool is_final) {
  const auto done = [&] { return message->is_done.load(); };
  if (!done()) {
    Journal& journal = group_.outer().journal();
    Call call = message->call;
    call.may_do_more |= !is_final || !group_.outer().callers().is_one();
    journal.begin_sleep(call, call.tag);
    Endpoint::begin_waiting();
    const Deadline deadline(deadline_ns, call.paused_ns);
    Lock lock(mutex_);
    for (;;) {
      condition_->wait_for(lock, std::chrono::nanoseconds(std::clamp<std::int64_t>(deadline_ns - monotonic_ns(), 1, kSliceNs)), done);
      if (done()) break;
      lock.unlock();
      const int me = group_.outer().rank();
      const bool is_late = deadline.left_ns() <= 0, is_interrupted = !is_late && Endpoint::is_interrupted();
      lock.lock();
      if (is_late && !is_final) return false;
      if (is_late) give_up(lock, message, Trouble(FaultKind::kTimeout, kElsewhere, me, 0, {}, false));
      if (is_interrupted) give_up(lock, message, Trouble(FaultKind::kInterrupted, me, me, 0, {}, false));
    }
    message->trouble ? journal.keep_sleep() : journal.end_sleep();
  }
  if (message->trouble) throw *message->trouble;
  return true;
}

void HostMail::flush(std::int64_t deadline_ns) {
  const std::int64_t start = monotonic_ns();
  std::int64_t look_at = start + kLongFlushNs;
  bool has_asked_all = false;
  std::vector<int> gone;  // they take nothing any more
  Lock lock(mutex_);
  std::map<int, std::uint64_t> wanted;
  const auto ask = [&](Line& line) {
    if (wanted.contains(line.peer) || line.num_taken_there == line.num_frames) return;
    wanted[line.peer] = line.num_frames;
    MailCard card;
    card.kind = MailKind::kAsk;
    queue_frame(line, card, nullptr, 0);
    pump(lock, line);
  };
  const auto is_flushed = [&](const Line& line) {
    const auto found = wanted.find(line.peer);
    if (found == wanted.end() || line.lost || line.has_left || line.num_taken_there >= found->second) return true;
    return std::ranges::find(gone, line.peer) != gone.end();
  };
  const auto all = [&](const auto& test) { return std::ranges::all_of(lines_, [&](const auto& each) { return test(*each.second); }); };
  const auto is_broken = [&] {  // here, or on a host that was lost
    try {
      group_.outer().throw_if_faulty();
      group_.outer().throw_if_ancestor_failed();
      return false;
    } catch (const Trouble&) {
      return true;
    }
  };
  for (const auto& [peer, line] : lines_) ask(*line);
  while (!all(is_flushed) && !is_closing_) {
    condition_->wait_for(lock, std::chrono::nanoseconds(kSliceNs));
    lock.unlock();
    const std::int64_t now = monotonic_ns();
    const bool is_over = now > deadline_ns || Endpoint::is_interrupted() || is_broken();
    if (!is_over && now > look_at) {  // Gloo may wait for ever for the connection to a rank that has gone
      try {
        gone = group_.words().find_gone();
      } catch (const WireError&) {
        return;
      }
      look_at = monotonic_ns() + kLongFlushNs;
    }
    lock.lock();
    if (is_over) return;
    if (has_asked_all || now < start + kLongFlushNs) continue;
    has_asked_all = true;
    for (int rank = 0; rank < group_.num_ranks(); ++rank) {
      if (!group_.map().is_here(rank)) line_to(rank);
    }
  }
}

}  // namespace phalanx
