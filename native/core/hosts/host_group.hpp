// One rank's end of a group over several hosts: shared memory inside a host, a wire between hosts.
//
// docs/internals/hosts.md has the protocol. The collectives are in collectives.hpp.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../endpoint.hpp"
#include "card.hpp"
#include "host_mail.hpp"
#include "host_map.hpp"
#include "plan.hpp"
#include "watcher.hpp"
#include "wire.hpp"

namespace phalanx {

// Facts in words. Any thread may call them.
struct Words {
  std::function<std::string(const Card& card)> describe_call;         // "all_reduce(float32 (3,), sum), train.py:7"
  std::function<std::string(const Trouble& trouble)> describe_trouble;  // "rank 3 (pid 812) was killed by SIGKILL"
  // Which ranks of other hosts have not come to an operation of this group: "rank 3 did not come", and what they do instead. Empty
  // if nobody knows. It may take a second.
  std::function<std::string(Seq seq)> find_late;
  // Which rank of another host has closed this group: "rank 3 on host 1 closed the group". Empty if nobody knows, or if something
  // worse has happened.
  std::function<std::string()> find_left;
  // Which ranks of other hosts have closed this group or ended, as far as anybody knows. It may take a second. Throws WireError if
  // the caller shall not wait any longer.
  std::function<std::vector<int>()> find_gone;
};

// What goes to another host behind a card.
struct Payload {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

class HostGroup;

// Messages of one operation. Only one thread uses it.
class Transfers {
 public:
  Transfers(HostGroup& group, const Call& call) : group_(group), call_(call) {}
  Transfers(const Transfers&) = delete;

  // Both sides know the size; nothing travels if it is 0.
  void send(int peer, const std::byte* data, std::size_t bytes) { add(true, peer, const_cast<std::byte*>(data), bytes); }
  void receive(int peer, std::byte* data, std::size_t bytes) { add(false, peer, data, bytes); }
  void start();
  // Waits for all that was started.
  void wait();

 private:
  void add(bool is_send, int peer, std::byte* data, std::size_t bytes);

  HostGroup& group_;
  const Call& call_;
  std::vector<WireMessage> added_;
  std::vector<Wire::Handle> under_way_;
  int peer_ = -1;  // one of those under way
};

// Like Endpoint, it is used by one thread at a time: the group's lane.
class HostGroup {
 public:
  // `inner` has the same ranks as `outer`; `mailbox` is that of `outer`. It, the wire and the words must live longer.
  HostGroup(std::shared_ptr<Endpoint> outer, Segment inner, HostMap map, Wire& wire, Mailbox& mailbox, Words words);
  ~HostGroup();
  HostGroup(const HostGroup&) = delete;

  int rank() const noexcept { return map_.rank(); }
  int num_ranks() const noexcept { return map_.num_ranks(); }
  const HostMap& map() const noexcept { return map_; }
  Endpoint& outer() noexcept { return *outer_; }
  Endpoint& inner() noexcept { return inner_; }
  bool is_leader() const noexcept { return map_.local() == 0; }

  // -- an operation: the ranks of this host meet, `body()` does the rest
  template <class Body>
  void operate(const Call& call, const Body& body) {
    is_met_ = false;
    try {
      outer_->begin(call);
      outer_->publish(call, nullptr, 0);
      outer_->await_arrivals(call);
      is_met_ = true;
      body();
      outer_->end();
    } catch (const Trouble& trouble) {
      rethrow(trouble);
    }
  }
  // Tell all ranks in the same operation that this rank's arguments were refused. Does not wait for other hosts.
  void refuse(const Call& call, const std::string& text);

  // -- cards: leaders only
  // `payload(host)` is what goes to each other host behind the card, at most `capacity()` bytes.
  void send_cards(const Call& call, const std::function<Payload(int host)>& payload = [](int) { return Payload{}; });
  // Throws Trouble if a host has made another call. `bytes(host)` is how much must have come behind its card.
  void await_cards(const Call& call, const std::function<std::size_t(int host)>& bytes = [](int) { return std::size_t{0}; });
  // What came from a host, until the next await_cards().
  const std::byte* payload_of(int host) const { return boxes_[std::size_t(host)].come + sizeof(Card); }
  std::size_t capacity() const noexcept { return capacity_; }

  // A rank of a host makes a wrong call, which only that host can describe. Throws Trouble if it says so in time.
  void await_word(int host);

  // -- phases in the inner segment
  Call phase(const Call& call, Operation operation, std::uint64_t count, int root = 0) const;
  // The same for bytes that nobody computes with.
  Call byte_phase(const Call& call, Operation operation, std::uint64_t bytes, int root = 0) const;
  // The leader has compared the cards; all ranks of this host go on when they know that.
  void await_verdict(const Call& call);
  // Memory that lasts until it is asked for again with the same number. The contents are not defined.
  std::byte* room(std::size_t number, std::size_t bytes);

  // -- the wire
  std::vector<Wire::Handle> start(std::span<const WireMessage> messages);
  void wait(const Call& call, std::span<const Wire::Handle> handles, int peer);
  Wire& wire() noexcept { return wire_; }

  // -- messages between hosts
  HostMail& mail() noexcept { return mail_; }
  // Something is under way outside a collective, which the watcher may have to end.
  void watch_wait(bool begins) { begins ? watcher_.begin() : watcher_.end(); }
  const Words& words() const noexcept { return words_; }
  // The connection to a rank has ended, and a message needs it. Throws Trouble, perhaps with the verdict of the agents.
  [[noreturn]] void lost_message(const std::string& why, int peer);
  [[noreturn]] void fail_elsewhere(FaultKind kind, const std::string& text) { outer_->fail(kind, kElsewhere, {text}); }

  // The group is broken: tell the other hosts, and end all waits for the wire. Any thread.
  void give_up(const Trouble& trouble) noexcept;
  // This rank leaves in good order.
  void leave() noexcept;

 private:
  struct CardBox {  // to and from the leader of another host
    std::unique_ptr<std::byte[]> buffers[2], outgoing[2];
    Wire::Handle standing = 0;  // the receive that waits for the next card; 0 if none does
    int turn = 0;               // the buffer of the standing receive
    std::byte* come = nullptr;  // the buffer of the last card
    Seq read = 0;               // the number of the last card
    Wire::Handle sent[2] = {};  // what uses the outgoing buffers; 0 if nothing does
    int sending = 0;
  };

  [[noreturn]] void rethrow(const Trouble& trouble);
  [[noreturn]] void lost(const WireError& error, int peer);
  void look() noexcept;
  void look_at_the_time();
  WireMessage standing_receive(int host);
  void stand(int host);
  // Reads the card that the standing receive of a host has got.
  Card take_card(int host);
  // Waits for the card of this operation; those of operations that were skipped here count only if they tell of trouble.
  Card next_card(const Call& call, int host);
  void throw_if_told(int host, const Card& card);
  void compare(int host, const Card& card, std::size_t payload_bytes);
  // Like send_cards(), from any thread.
  std::vector<Wire::Handle> tell_all(const Card& card);
  void tell_trouble(const Trouble& trouble);

  std::shared_ptr<Endpoint> outer_;
  Endpoint inner_;
  const HostMap map_;
  Wire& wire_;
  const Words words_;
  std::size_t capacity_;
  std::vector<CardBox> boxes_;  // by host
  std::vector<std::pair<std::unique_ptr<std::byte[]>, std::size_t>> rooms_;
  bool is_met_ = false;  // the ranks of this host have met in this operation
  Card own_card_;
  std::mutex telling_;  // guards told_
  std::vector<std::unique_ptr<Card>> told_;  // cards that tell of trouble; they stay, because nobody waits until they are sent
  std::once_flag over_;  // the group is broken, or this rank has left it
  bool has_left_ = false;
  // What the lane's thread waits for now.
  std::atomic<std::int64_t> wait_deadline_ns_{0}, wait_paused_ns_{0};
  std::atomic<int> awaited_peer_{-1};
  Seq asked_for_ = 0;  // the last operation for whose late ranks the watcher has asked
  HostMail mail_;
  Watcher watcher_;  // last: it uses the others
};

}  // namespace phalanx
