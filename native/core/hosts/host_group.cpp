#include "host_group.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "../collectives/collectives.hpp"

namespace phalanx {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
// If nobody knows who is late, a leader waits longer for other hosts than the call may take, so that the host where somebody is late
// speaks first. Local ranks wait longer still for their leader, so that nobody blames it for what it waits for.
constexpr std::int64_t kLeaderGraceNs = kSecondNs, kLocalGraceNs = 3 * kSecondNs;
constexpr std::int64_t kBackstopNs = 10 * kSecondNs;  // no wait for the wire takes longer than the watcher's deadline and this
constexpr std::int64_t kVerdictNs = kSecondNs * 3 / 2;  // how long the agents may take to say why a connection was lost
constexpr unsigned kPollUs = 10'000;
constexpr std::int64_t kWordNs = kSecondNs / 2;  // how long a host may take to say what is wrong with a call there
constexpr std::int64_t kFarewellNs = kSecondNs / 5;  // how long the last card may take

}  // namespace

void Transfers::add(bool is_send, int peer, std::byte* data, std::size_t bytes) {
  if (bytes == 0) return;
  added_.push_back({is_send, peer, kDataTag, data, bytes});
  if (!is_send || peer_ < 0) peer_ = peer;
}

void Transfers::start() {
  if (added_.empty()) return;
  const std::vector<Wire::Handle> handles = group_.start(added_);
  under_way_.insert(under_way_.end(), handles.begin(), handles.end());
  added_.clear();
}

void Transfers::wait() {
  start();
  if (under_way_.empty()) return;
  group_.wait(call_, under_way_, peer_);
  under_way_.clear();
  peer_ = -1;
}

HostGroup::HostGroup(std::shared_ptr<Endpoint> outer, Segment inner, HostMap map, Wire& wire, Mailbox& mailbox, Words words)
    : outer_(std::move(outer)),
      inner_(std::move(inner), outer_->rank(), outer_->member().is_thread.load() != 0),
      map_(std::move(map)),
      wire_(wire),
      words_(std::move(words)),
      capacity_(kMostBundledBytes),
      boxes_(std::size_t(map_.num_hosts())),
      mail_(*this, mailbox),
      watcher_([this] { look(); }) {
  if (inner_.num_ranks() != outer_->num_ranks() || outer_->num_ranks() != map_.num_local() || outer_->rank() != map_.local())
    throw std::runtime_error("the table of hosts does not fit this rank's segments");
  inner_.serve(*outer_);
  for (int host = 0; host < map_.num_hosts(); ++host)  // the sizes of an all_to_all travel behind the cards too
    capacity_ = std::max(capacity_, std::size_t(map_.num_ranks_of(host)) * std::size_t(map_.num_ranks()) * sizeof(std::uint64_t));
  if (!is_leader()) return;
  std::vector<WireMessage> receives;
  for (const int host : map_.other_hosts()) {
    CardBox& box = boxes_[std::size_t(host)];
    for (auto* buffers : {box.buffers, box.outgoing}) {
      for (int i = 0; i < 2; ++i) buffers[i] = std::make_unique<std::byte[]>(sizeof(Card) + capacity_);
    }
    receives.push_back(standing_receive(host));
  }
  const std::vector<Wire::Handle> handles = wire_.start(receives);
  for (std::size_t i = 0; i < handles.size(); ++i) boxes_[std::size_t(map_.other_hosts()[i])].standing = handles[i];
}

HostGroup::~HostGroup() {
  if (outer_->is_owner()) {
    leave();
  } else {  // after fork the thread does not exist
    watcher_.forget();
  }
}

void HostGroup::leave() noexcept {
  if (std::exchange(has_left_, true)) return;
  mail_.say_goodbye(MailKind::kLeft, FaultKind::kPeerLeft, "");
  watcher_.close();
  std::call_once(over_, [this] {
    try {
      if (is_leader()) {
        const bool has_ended = outer_->layout().member(outer_->rank()).departure.load() == Departure::kEnded;
        const std::string why = has_ended ? "has reached the end of its program" : "closed the group";
        const Card farewell = trouble_card(CardKind::kLeft, FaultKind::kPeerLeft, outer_->seq(), why);
        wire_.wait(tell_all(farewell), kFarewellNs);  // the others may be about to make their next receives stand
      }
    } catch (const std::exception&) {  // the others have gone already
    }
    wire_.close();
  });
  mail_.close();
}

// -- trouble

void HostGroup::refuse(const Call& call, const std::string& text) {
  outer_->refuse(call, text);
  if (!is_leader()) return;
  const std::string who = "rank " + std::to_string(rank()) + " on host " + std::to_string(map_.host());
  try {
    tell_all(trouble_card(CardKind::kRefused, FaultKind::kNone, outer_->seq(), who + " had its arguments refused: " + text));
  } catch (const WireError&) {  // the next operation notices
  }
}

void HostGroup::rethrow(const Trouble& trouble) {
  if (trouble.is_fatal) {
    give_up(trouble);
    throw trouble;
  }
  if (is_met_) {  // a rank of another host was refused
    outer_->end();
    throw Trouble(trouble.kind, kElsewhere, trouble.reporter, outer_->seq(), trouble.detail, false);
  }
  if (is_leader()) {
    const int culprit = map_.ranks_here()[std::size_t(trouble.culprit)];
    const std::string who = "rank " + std::to_string(culprit) + " on host " + std::to_string(map_.host());
    try {
      tell_all(trouble_card(CardKind::kRefused, FaultKind::kNone, outer_->seq(),
                            who + " had its arguments refused: " + trouble.detail.text));
    } catch (const WireError&) {
    }
  }
  throw trouble;
}

// A second thread waits here until the first is done: the wire must not touch the caller's memory any more when it goes on.
void HostGroup::give_up(const Trouble& trouble) noexcept {
  // The launcher tells the world of this host first. All ranks here shall say what it said, not that one of them has raised it.
  if (trouble.reporter == kLauncher) set_fault(outer_->layout(), trouble.kind, trouble.culprit, kLauncher, 0, trouble.detail);
  std::call_once(over_, [&] {
    try {
      tell_trouble(trouble);
    } catch (const std::exception&) {  // then the others see that the connection ends
    }
    wire_.cut();
    mail_.fail_all(trouble);
  });
}

void HostGroup::tell_trouble(const Trouble& trouble) {
  if (!is_leader() && !mail_.has_lines()) return;
  const bool is_told = trouble.culprit == kElsewhere || (trouble.culprit < 0 && trouble.reporter == kLauncher);
  const std::string text =
      is_told ? trouble.detail.text : "host " + std::to_string(map_.host()) + ": " + words_.describe_trouble(trouble);
  std::vector<Wire::Handle> told;
  if (is_leader()) told = tell_all(trouble_card(CardKind::kFault, trouble.kind, outer_->seq(), text));
  mail_.say_goodbye(MailKind::kFault, trouble.kind, text);
  wire_.wait(told, kFarewellNs);
}

// On the watcher's thread.
void HostGroup::look() noexcept {
  try {
    outer_->throw_if_broken();
    mail_.check_deadlines();
    look_at_the_time();
  } catch (const Trouble& trouble) {
    give_up(trouble);
  } catch (const std::exception&) {  // no memory for a text: the next look may have it
  }
}

void HostGroup::look_at_the_time() {
  const std::int64_t deadline_ns = wait_deadline_ns_.load(), paused_ns = wait_paused_ns_.load();
  if (deadline_ns == 0 || Deadline(deadline_ns, paused_ns).left_ns() > 0) return;
  const Seq seq = outer_->seq();
  if (std::exchange(asked_for_, seq) != seq) {
    const std::string late = words_.find_late(seq);
    if (wait_deadline_ns_.load() != deadline_ns) return;  // whoever was late has come meanwhile
    outer_->throw_if_broken();  // and the host where somebody is late may have said more
    if (!late.empty()) fail_elsewhere(FaultKind::kTimeout, late);
  }
  if (Deadline(deadline_ns + kLeaderGraceNs, paused_ns).left_ns() > 0) return;
  const int peer = awaited_peer_.load();
  const std::string whom = peer < 0 ? "another host" : map_.name_of(map_.host_of(peer));
  fail_elsewhere(FaultKind::kTimeout, whom + " did not come");
}

void HostGroup::lost_message(const std::string& why, int peer) {
  outer_->throw_if_faulty();
  const std::int64_t until = monotonic_ns() + kVerdictNs;
  outer_->throw_if_broken();
  if (const std::string left = words_.find_left(); !left.empty()) {
    outer_->throw_if_broken();
    fail_elsewhere(FaultKind::kPeerLeft, left);
  }
  for (; monotonic_ns() < until; usleep(kPollUs)) outer_->throw_if_broken();
  const std::string who = peer < 0 ? "another host"
                                   : "rank " + std::to_string(peer) + " on host " + std::to_string(map_.host_of(peer));
  fail_elsewhere(FaultKind::kPeerDied, "the connection to " + who + " was lost: " + why);
}

void HostGroup::lost(const WireError& error, int peer) {
  outer_->throw_if_faulty();
  for (const int host : is_leader() ? map_.other_hosts() : std::vector<int>{}) {
    CardBox& box = boxes_[std::size_t(host)];
    while (box.standing != 0 && wire_.has_come(box.standing)) {
      box.standing = 0;
      throw_if_told(host, take_card(host));
    }
  }
  lost_message(error.what(), peer);
}

// -- cards

WireMessage HostGroup::standing_receive(int host) {
  CardBox& box = boxes_[std::size_t(host)];
  return {false, map_.leader_of(host), kCardTag, box.buffers[box.turn].get(), sizeof(Card) + capacity_};
}

// The connection may be closed already, by a host that has left. That is no trouble of the operation that has its card.
void HostGroup::stand(int host) {
  const WireMessage receive = standing_receive(host);
  try {
    boxes_[std::size_t(host)].standing = wire_.start({&receive, 1}).front();
  } catch (const WireError&) {
    boxes_[std::size_t(host)].standing = 0;  // the next operation notices
  }
}

std::vector<Wire::Handle> HostGroup::tell_all(const Card& card) {
  const std::lock_guard lock(telling_);
  told_.push_back(std::make_unique<Card>(card));
  auto* data = reinterpret_cast<std::byte*>(told_.back().get());
  std::vector<Wire::Handle> handles;
  for (const int host : map_.other_hosts()) {
    const WireMessage message{true, map_.leader_of(host), kCardTag, data, sizeof(Card)};
    try {
      handles.push_back(wire_.start({&message, 1}).front());
    } catch (const WireError&) {  // this host has gone already; the others are still to be told
    }
  }
  return handles;
}

void HostGroup::send_cards(const Call& call, const std::function<Payload(int host)>& payload) {
  own_card_ = card_of(call, outer_->seq(), read_location(outer_->layout(), outer_->rank(), call.location));
  std::vector<WireMessage> messages;
  for (const int host : map_.other_hosts()) {
    CardBox& box = boxes_[std::size_t(host)];
    const Payload behind = payload(host);
    own_card_.payload_bytes = behind.bytes;
    if (box.sent[box.sending] != 0) {  // two cards ago; it has gone unless operations were skipped
      const Wire::Handle handle = std::exchange(box.sent[box.sending], 0);
      wait(call, {&handle, 1}, map_.leader_of(host));
    }
    std::byte* buffer = box.outgoing[box.sending].get();
    std::memcpy(buffer, &own_card_, sizeof own_card_);
    if (behind.bytes != 0) std::memcpy(buffer + sizeof own_card_, behind.data, behind.bytes);
    messages.push_back({true, map_.leader_of(host), kCardTag, buffer, sizeof own_card_ + behind.bytes});
  }
  const std::vector<Wire::Handle> handles = start(messages);
  std::size_t i = 0;
  for (const int host : map_.other_hosts()) {
    CardBox& box = boxes_[std::size_t(host)];
    box.sent[box.sending] = handles[i++];
    box.sending ^= 1;
  }
}

void HostGroup::await_cards(const Call& call, const std::function<std::size_t(int host)>& bytes) {
  std::string refusal;
  for (const int host : map_.other_hosts()) {
    const Card card = next_card(call, host);
    if (card.kind == CardKind::kRefused) {
      refusal = card.text;
    } else {
      compare(host, card, bytes(host));
    }
  }
  for (const int host : map_.other_hosts()) stand(host);
  if (refusal.empty()) return;
  inner_.refuse(byte_phase(call, Operation::kBroadcast, 0), refusal);  // where the others wait for the verdict
  throw Trouble(FaultKind::kPeerFailed, kElsewhere, outer_->rank(), outer_->seq(), {refusal}, false);
}

void HostGroup::await_word(int host) {
  const std::int64_t until = monotonic_ns() + kWordNs;
  if (CardBox& box = boxes_[std::size_t(host)]; is_leader() && host != map_.host() && box.standing != 0) {
    try {
      wire_.wait({&box.standing, 1}, kWordNs);
      box.standing = 0;
      throw_if_told(host, take_card(host));
    } catch (const WireError&) {  // it says nothing, and this group is broken anyway
    }
  }
  for (; monotonic_ns() < until + kWordNs; usleep(kPollUs)) outer_->throw_if_broken();
}

Card HostGroup::take_card(int host) {
  CardBox& box = boxes_[std::size_t(host)];
  box.come = box.buffers[box.turn].get();
  box.turn ^= 1;
  Card card;
  if (!read_card(box.come, card))
    fail_elsewhere(FaultKind::kAborted, map_.name_of(host) + " sent what is no card of phalanx");
  box.read = card.seq;
  return card;
}

Card HostGroup::next_card(const Call& call, int host) {
  CardBox& box = boxes_[std::size_t(host)];
  for (;;) {
    if (box.standing == 0) {
      const WireMessage receive = standing_receive(host);
      box.standing = start({&receive, 1}).front();
    }
    std::vector<Wire::Handle> handles{box.standing};
    if (const Wire::Handle sent = std::exchange(box.sent[box.sending], 0); sent != 0) handles.push_back(sent);
    wait(call, handles, map_.leader_of(host));
    box.standing = 0;
    const Card card = take_card(host);
    throw_if_told(host, card);
    if (card.seq >= outer_->seq()) return card;
  }
}

void HostGroup::throw_if_told(int host, const Card& card) {
  if (card.kind == CardKind::kFault) fail_elsewhere(card.fault, card.text);
  if (card.kind == CardKind::kLeft) {
    const std::string who = "rank " + std::to_string(map_.leader_of(host)) + " on host " + std::to_string(host);
    fail_elsewhere(FaultKind::kPeerLeft, who + " " + card.text);
  }
}

void HostGroup::compare(int host, const Card& card, std::size_t payload_bytes) {
  if (card.seq == outer_->seq() && is_same_call(card, own_card_) && card.payload_bytes == payload_bytes) [[likely]]
    return;
  const std::string number = card.seq == outer_->seq() ? "" : " (its operation #" + std::to_string(card.seq) + ")";
  fail_elsewhere(FaultKind::kMismatch, map_.name_of(host) + " called " + words_.describe_call(card) + number);
}

// -- phases

Call HostGroup::phase(const Call& call, Operation operation, std::uint64_t count, int root) const {
  Call phase = call;
  phase.operation = operation;
  phase.count = count;
  phase.root = root;
  phase.deadline_ns += kLocalGraceNs;
  phase.location = 0;
  phase.size_bytes = count * item_bytes(call.dtype);
  phase.num_dims = 0;
  phase.is_uneven = false;
  return phase;
}

Call HostGroup::byte_phase(const Call& call, Operation operation, std::uint64_t bytes, int root) const {
  Call phase = this->phase(call, operation, bytes, root);
  phase.dtype = DType::kUInt8;
  phase.op = ReduceOp::kSum;
  phase.size_bytes = bytes;
  return phase;
}

void HostGroup::await_verdict(const Call& call) { broadcast(inner_, byte_phase(call, Operation::kBroadcast, 0), nullptr, 0); }

std::byte* HostGroup::room(std::size_t number, std::size_t bytes) {
  if (rooms_.size() <= number) rooms_.resize(number + 1);
  auto& [memory, size] = rooms_[number];
  if (size < bytes) {
    memory.reset();
    memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
    size = bytes;
  }
  return memory.get();
}

// -- the wire

std::vector<Wire::Handle> HostGroup::start(std::span<const WireMessage> messages) {
  try {
    return wire_.start(messages);
  } catch (const WireError& error) {
    lost(error, messages.empty() ? -1 : messages.front().peer);
  }
}

void HostGroup::wait(const Call& call, std::span<const Wire::Handle> handles, int peer) {
  wait_paused_ns_.store(call.paused_ns);
  awaited_peer_.store(peer);
  wait_deadline_ns_.store(call.deadline_ns);
  watcher_.begin();
  const auto end = [this] {
    watcher_.end();
    wait_deadline_ns_.store(0);
  };
  try {
    const std::int64_t left_ns = std::max<std::int64_t>(call.deadline_ns - monotonic_ns(), 0);
    wire_.wait(handles, left_ns + kLeaderGraceNs + kBackstopNs);
    end();
  } catch (const WireError& error) {
    end();
    lost(error, peer);
  }
}

}  // namespace phalanx
