// Messages between two ranks: matched by source and tag, in any order, whole or through a stream of chunks.
//
// Small messages are copied into the channel and the sender goes on. Large ones are offered first. When the receiver has
// a matching receive, it grants the message. Then the sender writes chunks into its own outbound buffers, and the
// receiver copies them out. Neither side ever touches the other's private memory.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "endpoint.hpp"

namespace phalanx {

inline constexpr int kAnySource = -1;

// A send matches only receives of its own kind. A message of device memory takes several steps: a notice, then bodies and
// answers. The journal has one entry for all of them, from the notice to tell_end().
enum class MailSpace : std::uint8_t { kProgram, kNotice, kBody, kAnswer };

// Moves a transfer instead of the mailbox, by means of other transfers.
class Mover {
 public:
  // Like Mailbox::wait.
  virtual bool wait(std::int64_t deadline_ns, bool is_final) = 0;

 protected:
  ~Mover() = default;
};

// One send or receive under way.
struct Transfer {
  Call call;  // what the program called, for the journal; `root` is the peer that it named
  MailSpace space = MailSpace::kProgram;
  bool is_sending = false;
  DType dtype = DType::kUInt8;
  std::uint64_t tag = 0;
  MessageMark mark;  // in the journal
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> keep;
  std::function<void()> on_done;  // called once, under the mailbox's lock
  Mover* mover = nullptr;

  std::atomic<bool> is_done{false};
  std::optional<Trouble> trouble;  // set before is_done
  int source = -1;                 // set before is_done
  std::uint64_t message = 0;
  std::uint64_t chunks = 0;        // bulk: produced (sender) or taken (receiver)
  std::size_t moved = 0;           // eager: bytes sent or received
  bool is_detached = false;        // perhaps no thread waits for it: the mailbox's own thread moves it

  bool is_send() const noexcept { return is_sending; }
  bool is_journaled() const noexcept { return space == MailSpace::kProgram || space == MailSpace::kNotice; }
  int peer() const noexcept { return call.root; }
};

// Thread-safe. A thread that waits moves all messages of its rank. When no thread waits, a native thread does.
class Mailbox {
 public:
  explicit Mailbox(std::shared_ptr<Endpoint> endpoint);
  ~Mailbox();

  // `keep` lives as long as the transfer.
  std::shared_ptr<Transfer> start(const Call& call, std::uint64_t tag, std::byte* data, std::size_t bytes,
                                  std::shared_ptr<void> keep = nullptr);
  // The same. The caller has filled in all members above is_done except `mark`.
  void start(const std::shared_ptr<Transfer>& transfer);
  // The message that `notice` began is over; `peer` was on the other side.
  void tell_end(const Transfer& notice, int peer);
  // A message that something else moves, for the journal; `peer` was on the other side.
  MessageMark note_begin(const Call& call);
  void note_end(const MessageMark& mark, const Call& call, int peer);
  // From here on the native thread moves it.
  void detach(const std::shared_ptr<Transfer>& transfer);
  // Returns false if it is not done by the deadline; it goes on. With `is_final`, withdraws it instead, and throws the trouble.
  bool wait(const std::shared_ptr<Transfer>& transfer, std::int64_t deadline_ns, bool is_final);
  // End receives that have found no message.
  void cancel_receives();
  // Ends what is under way and stops the thread.
  void close();
  // A send of up to this many bytes ends without a receive.
  std::size_t eager_limit() const noexcept { return eager_limit_; }

 private:
  struct Unexpected {
    int source;
    MailSpace space;
    std::uint64_t tag;
    std::uint64_t bytes;
    DType dtype;
    std::vector<std::byte> payload;       // eager: all of it, as it comes in
    std::size_t missing = 0;              // eager: bytes still to come
    std::uint64_t message = 0;            // bulk
    std::shared_ptr<Transfer> self_send;  // the send, if this rank sends to itself
    std::shared_ptr<Transfer> claimed_by = nullptr;  // eager: the receive that waits for the missing bytes
  };
  struct Incoming {  // bulk messages that found their receive
    std::shared_ptr<Transfer> receive;
    std::uint64_t message;
    bool is_granted = false;
    bool is_refused = false;
  };

  // An eager message that has arrived in part, and where its next parts go.
  struct Partial {
    std::shared_ptr<Transfer> receive;  // straight into its tensor
    Unexpected* unexpected = nullptr;   // or kept until a receive asks for it
  };

  // All functions below need mutex_. Those that return bool say whether they moved anything.
  bool progress();
  bool tell_moved(bool has_moved) noexcept;  // for the search for deadlocks; returns its argument
  void count_detached(int change) noexcept;
  bool progress_with(int peer);
  bool drain(int source);
  void begin_eager(int source, const Envelope& envelope);
  void add_part(int source, const Envelope& envelope, const std::byte* payload);
  void deliver(const std::shared_ptr<Transfer>& receive, Unexpected&& message);
  std::shared_ptr<Transfer> match_receive(int source, MailSpace space, std::uint64_t tag);
  bool match_unexpected(const std::shared_ptr<Transfer>& receive);
  bool push_sends(int destination);
  bool push_part(Transfer& send);
  bool answer_grants(int destination);
  std::size_t bulk_chunk(std::size_t bytes) const noexcept;
  void begin_outbound();
  bool pump_outbound();
  bool pump_incoming(int source);
  void reserve_buffers(int destination, std::size_t bytes);
  void finish(Transfer& transfer, std::optional<Trouble> trouble = std::nullopt);
  void fail_all(const Trouble& trouble);
  bool withdraw(const std::shared_ptr<Transfer>& transfer);
  // End a transfer that is not done. If a part of it is already in the channel, the group can't be used any more.
  void give_up(const std::shared_ptr<Transfer>& transfer, const Trouble& trouble);
  // Whether all ranks that a transfer could go on with have left.
  bool is_forsaken(const Transfer& transfer) const;
  // A peer has left, or all have (kAnySource): end the transfers that need it.
  void forget(int peer);
  void settle(const std::shared_ptr<Transfer>& transfer);
  void check_deadlines();

  void ring(int peer) noexcept;
  void check_trouble(const std::shared_ptr<Transfer>& transfer);
  template <class Done>
  bool drive(Done done, const std::shared_ptr<Transfer>& transfer, std::int64_t deadline_ns, bool is_final);
  void work();

  std::shared_ptr<Endpoint> endpoint_;
  const Layout& layout_;
  const int rank_;
  const int num_ranks_;
  const std::size_t eager_limit_;

  std::mutex mutex_;  // guards everything below
  std::list<std::shared_ptr<Transfer>> receives_;               // posted, not matched
  std::list<Unexpected> unexpected_;
  std::vector<Partial> partial_;                                // per source
  std::vector<std::deque<std::shared_ptr<Transfer>>> sends_;    // per destination: not yet in the channel
  std::vector<std::vector<std::shared_ptr<Transfer>>> offered_; // per destination: bulk, not granted
  std::deque<std::shared_ptr<Transfer>> granted_;               // bulk, waiting for the outbound buffers
  std::shared_ptr<Transfer> outbound_;
  std::size_t bulk_head_ = 0;                                   // where in the outbound buffers the next message begins
  std::vector<std::deque<Incoming>> incoming_;                  // per source
  std::vector<std::uint64_t> sent_, ring_head_, messages_, drained_;
  std::vector<std::uint64_t> taken_, ring_taken_;               // per destination: the last values seen of its words
  bool is_bulk_reserved_ = false;
  std::vector<bool> is_ring_reserved_;  // per destination
  SharedWriter ring_writer_, bulk_writer_;
  std::list<std::shared_ptr<Transfer>> detached_;
  // On the heap: after fork its waiters do not exist, and destroying it would wait for them for ever.
  std::unique_ptr<std::condition_variable> condition_ = std::make_unique<std::condition_variable>();
  std::thread thread_;

  std::atomic<std::size_t> num_detached_{0};  // written under mutex_
  std::atomic<bool> is_closing_{false};       // written under mutex_
};

}  // namespace phalanx
