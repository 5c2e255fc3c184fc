// Messages that can't arrive: withdrawn, given up, or left alone by the other side.
#include <algorithm>

#include "host_group.hpp"
#include "host_mail.hpp"

namespace phalanx {

bool HostMail::withdraw(Line& line, const MessagePtr& message) {
  if (message->is_told) return false;
  auto& all = message->is_send() ? line.sends : line.receives;
  auto& next = (message->is_send() ? line.next_send : line.next_receive)[message->tag];
  // What was called after it takes its number, if nobody has been told of that one.
  const auto its = all.find({message->tag, message->number});
  if (its == all.end() || (message->is_send() && message->number + 1 != next)) return false;
  for (auto later = std::next(its); later != all.end() && later->first.first == message->tag; ++later) {
    if (later->second->is_told) return false;
  }
  for (std::uint64_t number = message->number; number + 1 < next; ++number) {
    const MessagePtr moved = all[{message->tag, number + 1}];
    moved->number = moved->card.number = number;
    all[{message->tag, number}] = moved;
  }
  all.erase({message->tag, --next});
  std::erase(line.waiting, message);
  return true;
}

void HostMail::give_up(Lock& lock, const MessagePtr& message, const Trouble& trouble) {
  if (message->is_done.load()) return;
  Line& line = *lines_.at(message->far);
  if (withdraw(line, message)) return finish(message, trouble);
  // The other side may be about to use the caller's memory, so nothing may go on.
  lock.unlock();
  Trouble fatal = trouble;
  fatal.is_fatal = true;
  if (trouble.kind == FaultKind::kTimeout) {
    fatal.reporter = group_.outer().rank();
    const bool is_send = message->is_send();
    fatal.detail.text = "rank " + std::to_string(group_.rank()) + " timed out in " + (is_send ? "send" : "recv") + ": " + name_of(message->far) +
                        (is_send ? " has not received it" : " has not sent it");
  }
  set_fault(group_.outer().layout(), fatal.kind, fatal.culprit, fatal.reporter, 0, fatal.detail);
  {
    lock.lock();
    if (trouble.kind == FaultKind::kTimeout && !message->is_done.load()) finish(message, trouble);  // in its own words
    lock.unlock();
  }
  break_group(fatal);
  lock.lock();
}

void HostMail::break_group(const Trouble& trouble) {
  group_.give_up(trouble);
  fail_all(trouble);
}

std::vector<HostMail::MessagePtr> HostMail::under_way(const Line* only) const {
  std::vector<MessagePtr> all;
  for (const auto& [peer, line] : lines_) {
    if (only != nullptr && line.get() != only) continue;
    for (const auto* messages : {&line->sends, &line->receives}) {
      for (const auto& [key, message] : *messages) {
        if (!message->is_done.load()) all.push_back(message);
      }
    }
  }
  return all;
}

void HostMail::fail_message(Line& line, const MessagePtr& message, const Trouble& trouble) {
  (message->is_send() ? line.sends : line.receives).erase({message->tag, message->number});
  std::erase(line.waiting, message);
  if (message->data_tag != 0) stale_.push_back(message);
  finish(message, trouble);
}

void HostMail::fail_line(Line& line, const Trouble& trouble) {
  for (const MessagePtr& message : under_way(&line)) fail_message(line, message, trouble);
}

// The other side has left. It may have received data before that is about to be known to have gone: see await_sent().
void HostMail::forsake(Line& line) {
  for (const MessagePtr& message : under_way(&line)) {
    if (!message->is_send() || message->data_tag == 0) fail_message(line, message, left_by(line.peer));
  }
}

Trouble HostMail::left_by(int peer) const {
  return Trouble(FaultKind::kPeerLeft, kElsewhere, group_.outer().rank(), 0, {name_of(peer) + " closed the group"}, false);
}

void HostMail::fail_all(const Trouble& trouble) {
  const Lock lock(mutex_);
  for (const auto& [peer, line] : lines_) fail_line(*line, trouble);
}

// The connection has ended: in good order if the other side has left, or if this rank has.
void HostMail::end_of_line(Line& line, const std::string& why) {
  Lock lock(mutex_);
  line.lost = why;
  line.is_connecting = false;
  condition_->notify_all();
  if (is_closing_) return;
  if (line.has_left) return forsake(line);
  if (under_way(&line).empty()) return;
  lock.unlock();
  try {
    group_.lost_message(why, line.peer);
  } catch (const Trouble& trouble) {
    break_group(trouble);
  }
}

void HostMail::check_deadlines() {
  Lock lock(mutex_);
  for (const MessagePtr& message : under_way()) {
    if (Deadline(message->call.deadline_ns, message->call.paused_ns).left_ns() < 0)
      give_up(lock, message, Trouble(FaultKind::kTimeout, kElsewhere, group_.outer().rank(), 0, {}, false));
  }
}

void HostMail::cancel_receives() {
  const int me = group_.outer().rank();
  const Lock lock(mutex_);
  for (const MessagePtr& message : under_way()) {
    if (message->is_send()) continue;
    Line& line = *lines_.at(message->far);
    line.receives.erase({message->tag, message->number});
    if (message->is_told) stale_.push_back(message);
    finish(message, Trouble(FaultKind::kAborted, me, me, 0, {"the group was closed"}, false));
  }
}

}  // namespace phalanx
