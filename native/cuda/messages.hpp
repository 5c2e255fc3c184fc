// One rank's messages of device memory: their thread, and the memory that they share with others.
#pragma once

#include <map>
#include <vector>

#include "message.hpp"
#include "rank.hpp"

namespace phalanx::cuda {

// How long to wait between two looks at the GPU: at first not at all.
class Pace {
 public:
  void rest() const;

 private:
  std::int64_t start_ns_ = monotonic_ns();
};

// Apart from the collectives, which run at the same time: it has streams and openings of its own. Thread-safe. Nobody may
// hold what `warn` needs while calling it.
class DeviceMail {
 public:
  DeviceMail(std::shared_ptr<Endpoint> endpoint, Mailbox& mailbox, Warn warn);
  ~DeviceMail() { close(); }
  DeviceMail(const DeviceMail&) = delete;

  // A message that begins now; its operation says which way. Asynchronous ones go on by themselves. `ready` is when its
  // memory may be used. Throws Trouble and DeviceProblem.
  std::shared_ptr<DeviceMessage> start(const Call& call, const TensorView& view, std::shared_ptr<const Moment> ready);
  // After the mailbox was closed: what was under way has ended, and the thread stops.
  void close();

  // -- for its messages
  Endpoint& endpoint() const noexcept { return *endpoint_; }
  Mailbox& mailbox() const noexcept { return mailbox_; }
  std::shared_ptr<DeviceRank> rank_on(Gpu& gpu);
  std::uint64_t next_number() noexcept { return ++num_sent_; }
  // There is something to do for the thread.
  void notify() noexcept;
  Offer offer(DeviceRank& rank, const Region& region, int peer);

  struct Opened {
    CudaPointer address = 0;
    std::shared_ptr<void> use;  // nothing is closed while it lives
  };
  // The offered memory, or nothing when it can't be opened. Needs Current.
  std::optional<Opened> open(DeviceRank& rank, const Offer& offer, int peer);

 private:
  bool is_same_process(int peer) const noexcept;
  void spread_retired(DeviceRank& rank);  // needs sharing_
  void work();

  std::shared_ptr<Endpoint> endpoint_;
  Mailbox& mailbox_;
  Warn warn_;
  std::atomic<std::uint64_t> num_sent_{0};

  std::mutex sharing_;  // guards the next five
  std::map<int, std::shared_ptr<DeviceRank>> ranks_;  // by the number of the GPU
  std::vector<bool> is_shown_;                        // per rank: it may have memory of this one open
  std::vector<std::vector<std::uint64_t>> retired_;   // per rank: what it does not know yet
  bool can_open_ = true;
  const std::shared_ptr<void> uses_ = std::make_shared<int>();  // its owners: this, and each message that reads from others

  std::mutex mutex_;  // guards everything below; nothing else is locked under it
  // On the heap: after fork its waiters are gone, and to destroy it would wait for them for ever.
  std::unique_ptr<std::condition_variable> condition_ = std::make_unique<std::condition_variable>();
  std::vector<std::shared_ptr<DeviceMessage>> messages_;  // asynchronous, under way
  bool has_news_ = false;
  bool is_closing_ = false;
  std::thread thread_;
};

}  // namespace phalanx::cuda
