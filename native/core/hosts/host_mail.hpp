// Messages between ranks of different hosts: docs/internals/hosts.md has the protocol.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../mailbox.hpp"
#include "mail_card.hpp"
#include "wire.hpp"

namespace phalanx {

class HostGroup;
class HostMail;

// A message to or from a rank of another host.
struct HostMessage final : Transfer, Mover, std::enable_shared_from_this<HostMessage> {
  HostMessage(HostMail& owner, const Call& what, int far_rank, std::byte* memory, std::size_t size);

  bool wait(std::int64_t deadline_ns, bool is_final) override;

  HostMail& mail;
  const int far;                // the other rank, by its number in the group
  std::uint64_t number = 0;     // among those of its tag
  MailCard card;                // this side's
  std::uint64_t data_tag = 0;   // of a large message: the tag of the wire with which its data travels
  Wire::Handle data_handle = 0;
  bool is_told = false;         // the other side may use this message's memory, or wait for it
  bool is_watched = false;
};

// Thread-safe. Whoever calls it must not hold the GIL, because the wire takes it.
class HostMail {
 public:
  // Both must live longer.
  HostMail(HostGroup& group, Mailbox& mailbox) : group_(group), mailbox_(mailbox) {}
  ~HostMail() { close(); }
  HostMail(const HostMail&) = delete;

  // `call.root` is far_number() of the other rank. `keep` must keep the memory alive; it may outlive the message.
  std::shared_ptr<HostMessage> start(const Call& call, std::byte* data, std::size_t bytes, std::shared_ptr<void> keep);
  // Like Mailbox::wait.
  bool wait(const std::shared_ptr<HostMessage>& message, std::int64_t deadline_ns, bool is_final);
  // Ends receives that have found no message, before the group is closed.
  void cancel_receives();
  // Waits until the other sides have taken what small sends have left behind, or until it is interrupted.
  void flush(std::int64_t deadline_ns);
  // Gives up messages whose time is up. On the watcher's thread.
  void check_deadlines();
  // The group is broken: every message under way ends so. The wire is cut.
  void fail_all(const Trouble& trouble);
  // Tells the other sides that the group is broken here, or that this rank leaves, and waits a moment until they have it.
  void say_goodbye(MailKind kind, FaultKind fault, const std::string& text) noexcept;
  bool has_lines();
  // After close(): a thread still uses this object and the wire, and may do so until the process ends.
  bool has_stuck_threads() const noexcept { return has_stuck_threads_; }
  // The wire is closed or cut: ends the threads.
  void close();

 private:
  static constexpr std::size_t kStanding = 4;  // receives for frames
  static constexpr std::uint64_t kWindow = 64;  // frames of a line that the other side has not taken
  using MessagePtr = std::shared_ptr<HostMessage>;
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // a tag, and the number of a message
  using Buffer = std::unique_ptr<std::byte[]>;

  struct Frame {
    Buffer buffer;
    std::size_t bytes = 0;
    MessagePtr with;  // its data is received before the frame goes, or sent behind it
    Wire::Handle handle = 0;
  };
  struct Arrived {
    MailCard card;
    std::vector<std::byte> data;
  };
  struct Line {
    explicit Line(int rank) : peer(rank) {}
    const int peer;
    std::deque<Frame> queue;       // about to go
    std::deque<Frame> gone;        // the other side has not taken them, as far as is known
    bool is_pumping = false;       // a thread starts what is in the queue
    std::uint64_t num_frames = 0, num_taken_there = 0;
    std::uint64_t num_taken = 0, num_told = 0;  // frames of the other side that were taken, and that it knows of
    std::deque<MessagePtr> waiting;  // small sends for which the window has no room
    std::map<std::uint64_t, std::uint64_t> next_send, next_receive;  // by tag
    std::map<Key, MessagePtr> sends, receives;  // under way
    std::map<Key, Arrived> arrived;  // before their receives were called
    std::map<Key, MailCard> ready;   // receives that were called before their sends
    std::optional<std::string> lost;  // why there is no connection any more
    bool has_left = false;
    bool is_connecting = true;  // the reader is, which nothing can end if the other side is gone
    std::array<Buffer, kStanding> buffers;
    std::thread reader;
  };
  struct Disagreement {
    MessagePtr message;
    MailCard other;
  };

  // All functions below need mutex_, and keep it.
  Line& line_to(int peer);
  void send(Line& line, const MessagePtr& message);
  void send_small(Line& line, const MessagePtr& message);
  void receive(Line& line, const MessagePtr& message);
  void deliver(Line& line, const MessagePtr& message, const MailCard& card, const std::byte* data);
  void announce(Line& line, const MessagePtr& message, bool has_room_for_data);
  void release_waiting(Line& line);
  void queue_frame(Line& line, MailCard card, const std::byte* data, std::size_t bytes, MessagePtr with = nullptr);
  void take_offer(Line& line, const MailCard& card, const std::byte* data);
  void take_ready(Line& line, const MailCard& card);
  void disagree(const MessagePtr& message, const MailCard& other) { disagreements_.push_back({message, other}); }
  bool withdraw(Line& line, const MessagePtr& message);
  void finish(const MessagePtr& message, std::optional<Trouble> trouble = std::nullopt);
  void fail_message(Line& line, const MessagePtr& message, const Trouble& trouble);
  void fail_line(Line& line, const Trouble& trouble);
  void forsake(Line& line);
  Trouble left_by(int peer) const;
  std::vector<MessagePtr> under_way(const Line* only = nullptr) const;
  Buffer take_buffer();

  // These let go of mutex_ in between.
  using Lock = std::unique_lock<std::mutex>;
  void pump(Lock& lock, Line& line);
  void settle(Lock& lock);  // the messages whose two sides differ
  void give_up(Lock& lock, const MessagePtr& message, const Trouble& trouble);
  void take_data(Lock& lock, Line& line, const MailCard& card);

  // Threads. They do not need mutex_.
  void read(Line& line);
  void take_frame(Line& line, const std::byte* frame);
  void end_of_line(Line& line, const std::string& why);
  void await_sent();
  // Breaks the group because of a trouble that was noticed here.
  void break_group(const Trouble& trouble);
  std::string name_of(int peer) const;

  HostGroup& group_;
  Mailbox& mailbox_;
  std::mutex mutex_;  // guards everything below
  // On the heap: after fork its waiters do not exist, and destroying it would wait for them for ever.
  std::unique_ptr<std::condition_variable> condition_ = std::make_unique<std::condition_variable>();
  std::map<int, std::unique_ptr<Line>> lines_;  // they stay until the end
  std::deque<MessagePtr> sending_;  // large data that is under way
  std::thread sender_;
  std::uint64_t next_data_tag_ = 0;
  std::vector<Disagreement> disagreements_;
  std::vector<MessagePtr> stale_;  // receives of the wire that will never be used; their memory must stay
  std::vector<Buffer> free_;
  bool is_closing_ = false;
  bool has_stuck_threads_ = false;
};

}  // namespace phalanx
