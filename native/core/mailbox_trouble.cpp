// Messages that can't arrive: withdrawn, given up, or waiting for a rank that has left or died.
#include <algorithm>
#include <utility>

#include "mailbox.hpp"

namespace phalanx {
namespace {

constexpr auto kOrder = std::memory_order_seq_cst;

}  // namespace

void Mailbox::cancel_receives() {
  const std::lock_guard lock(mutex_);
  progress();
  receives_.remove_if([&](const std::shared_ptr<Transfer>& receive) {
    if (!receive->is_journaled()) return false;  // a later step of a message that has found its receive
    finish(*receive, Trouble(FaultKind::kAborted, rank_, rank_, 0, {"the group was closed"}, false));
    return true;
  });
}

bool Mailbox::withdraw(const std::shared_ptr<Transfer>& transfer) {
  if (transfer->is_send()) {
    auto& queue = sends_[std::size_t(transfer->peer())];
    const auto it = std::find(queue.begin(), queue.end(), transfer);
    if (it != queue.end() && transfer->moved == 0) return queue.erase(it), true;
    const auto before = unexpected_.size();
    unexpected_.remove_if([&](const Unexpected& message) { return message.self_send == transfer; });
    return unexpected_.size() != before;
  }
  const auto before = receives_.size();
  receives_.remove(transfer);
  for (auto& message : unexpected_) {  // its next parts go to our own memory, for the next receive that fits
    if (message.claimed_by == transfer) return message.claimed_by = nullptr, true;
  }
  return receives_.size() != before;
}

void Mailbox::give_up(const std::shared_ptr<Transfer>& transfer, const Trouble& trouble) {
  if (withdraw(transfer)) return finish(*transfer, trouble);
  // A part of it is already in the channel, and the receiver could not tell to which message the next part belongs. And the
  // caller is about to take back its memory, so nothing may go on.
  Trouble fatal = trouble;
  fatal.is_fatal = true;
  set_fault(layout_, fatal.kind, fatal.culprit, rank_, endpoint_->seq(), fatal.detail);
  fail_all(fatal);
}

bool Mailbox::is_forsaken(const Transfer& transfer) const {
  const auto has_left = [&](int rank) { return layout_.member(rank).state.load() == MemberState::kLeft; };
  if (transfer.peer() != kAnySource) return transfer.peer() != rank_ && has_left(transfer.peer());
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (rank != rank_ && !has_left(rank)) return false;
  }
  return num_ranks_ > 1;
}

void Mailbox::forget(int peer) {
  std::vector<std::shared_ptr<Transfer>> all;
  const auto take = [&](auto& list) {
    for (auto it = list.begin(); it != list.end();) {
      if ((*it)->peer() == peer) {
        all.push_back(*it);
        it = list.erase(it);
      } else {
        ++it;
      }
    }
  };
  take(receives_);
  take(granted_);
  for (auto& queue : sends_) take(queue);
  for (auto& list : offered_) take(list);
  if (outbound_ && outbound_->peer() == peer) {
    layout_.outbound(rank_).message.store(0, kOrder);
    all.push_back(std::exchange(outbound_, nullptr));
  }
  for (int source = 0; source < num_ranks_; ++source) {
    if (peer != kAnySource && source != peer) continue;
    auto& incoming = incoming_[std::size_t(source)];
    for (auto& message : incoming) all.push_back(message.receive);
    incoming.clear();
    if (auto& partial = partial_[std::size_t(source)]; partial.receive) all.push_back(std::exchange(partial.receive, nullptr));
    for (auto& message : unexpected_) {
      if (message.source == source && message.claimed_by) all.push_back(std::exchange(message.claimed_by, nullptr));
    }
  }
  for (auto& transfer : all) {
    if (!transfer->is_done.load(kOrder)) finish(*transfer, Trouble(FaultKind::kPeerLeft, peer, rank_, 0, {}, false));
  }
}

// What a rank sent before it left still counts; nothing else will come.
void Mailbox::settle(const std::shared_ptr<Transfer>& transfer) {
  while (!transfer->is_done.load(kOrder) && progress()) {
  }
  if (!transfer->is_done.load(kOrder)) forget(transfer->peer());
}

void Mailbox::fail_all(const Trouble& trouble) {
  std::vector<std::shared_ptr<Transfer>> all(receives_.begin(), receives_.end());
  receives_.clear();
  for (auto& queue : sends_) {
    all.insert(all.end(), queue.begin(), queue.end());
    queue.clear();
  }
  for (auto& list : offered_) {
    all.insert(all.end(), list.begin(), list.end());
    list.clear();
  }
  for (auto& queue : incoming_) {
    for (auto& incoming : queue) all.push_back(incoming.receive);
    queue.clear();
  }
  for (auto& partial : partial_) {
    if (partial.receive) all.push_back(partial.receive);
    partial = {};
  }
  all.insert(all.end(), granted_.begin(), granted_.end());
  granted_.clear();
  if (outbound_) all.push_back(std::exchange(outbound_, nullptr));
  for (auto& message : unexpected_) {
    if (message.self_send) all.push_back(message.self_send);
    if (message.claimed_by) all.push_back(message.claimed_by);
  }
  unexpected_.clear();
  for (auto& transfer : all) {
    if (!transfer->is_done.load(kOrder)) finish(*transfer, trouble);
  }
}

void Mailbox::check_trouble(const std::shared_ptr<Transfer>& transfer) {
  // Look first who has left, then who has died: a rank that leaves because another died does so after the death.
  const bool is_lost = transfer != nullptr && is_forsaken(*transfer);
  endpoint_->throw_if_faulty();
  endpoint_->throw_if_ancestor_failed();
  const int dead = endpoint_->peers().find_dead();
  if (dead >= 0) {
    {
      const std::lock_guard lock(mutex_);  // what it sent before it died still counts
      progress();
      if (transfer != nullptr && transfer->is_done.load(kOrder)) return;
    }
    endpoint_->fail(FaultKind::kPeerDied, dead);
  }
  if (!is_lost) return;
  const std::lock_guard lock(mutex_);
  settle(transfer);
}

void Mailbox::check_deadlines() {
  const std::int64_t paused = paused_ns(), now = monotonic_ns();
  detached_.remove_if([&](const std::shared_ptr<Transfer>& transfer) {
    // If the rank left because another died, or because of a fault, drive() reports that.
    const bool is_lost = !transfer->is_done.load(kOrder) && is_forsaken(*transfer);
    const auto has_better_reason = [&] {
      return layout_.header().fault.state.load() != 0 || endpoint_->peers().find_dead() >= 0;
    };
    if (is_lost && !has_better_reason()) settle(transfer);
    const Call& call = transfer->call;
    if (!transfer->is_done.load(kOrder) && now > call.deadline_ns + (paused - call.paused_ns))
      give_up(transfer, Trouble(FaultKind::kTimeout, transfer->peer(), rank_, 0, {}, false));
    return transfer->is_done.load(kOrder);
  });
}

}  // namespace phalanx
