// The order of a rank's collectives: each runs after the one before, on whichever thread is free to run it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "endpoint.hpp"
#include "trouble.hpp"

namespace phalanx {

// The outcome of an asynchronous operation. Thread-safe.
class Ticket {
 public:
  bool is_done() const noexcept { return is_done_.load(std::memory_order_acquire); }
  std::optional<Trouble> trouble() const;
  void finish(std::optional<Trouble> trouble);
  // Returns false if it is not done by the deadline.
  bool wait_until(std::int64_t deadline_ns);

 private:
  std::atomic<bool> is_done_{false};
  mutable std::mutex mutex_;  // guards trouble_
  std::condition_variable condition_;
  std::optional<Trouble> trouble_;
};

// If nothing is queued, a blocking call runs on the caller's thread. Queued operations run on a native thread, which
// starts with the first of them, or on a thread that waits for one, whichever comes first. Thread-safe.
class Lane {
 public:
  using Action = std::function<void(Endpoint&)>;

  explicit Lane(std::shared_ptr<Endpoint> endpoint) : endpoint_(std::move(endpoint)) {}
  ~Lane();

  template <class Run>
  void run(const Run& action) {
    if (std::unique_lock running(running_, std::try_to_lock); running.owns_lock() && num_queued_.load() == 0) {
      attempt(action);
      return;
    }
    const auto ticket = submit(action);
    wait_for_caller(*ticket);
    if (const auto trouble = ticket->trouble()) throw *trouble;
  }
  // The same on the native thread, whoever else is free: for actions with waits that a signal can't interrupt.
  template <class Run>
  void run_apart(const Run& action) {
    is_apart_.store(true);
    const auto ticket = submit(action);
    wait_for_caller(*ticket);
    if (const auto trouble = ticket->trouble()) throw *trouble;
  }
  std::shared_ptr<Ticket> submit(Action action);
  // Returns false if it is not done by the deadline.
  bool wait(Ticket& ticket, std::int64_t deadline_ns);
  // Returns when everything queued has run.
  void drain();
  // Stops the thread and runs what is still queued; if the group has a fault, that ends at once.
  void close();

 private:
  struct Entry {
    Action action;
    std::shared_ptr<Ticket> ticket;
  };
  // Peers wait for an operation that won't come if the action throws anything but a Trouble, such as for lack of memory.
  template <class Run>
  void attempt(const Run& action) {
    try {
      action(*endpoint_);
    } catch (const Trouble&) {
      throw;
    } catch (const std::exception& error) {
      give_up(words_of(error));
    }
  }
  [[noreturn]] void give_up(const std::string& why);  // tells the peers
  void work();
  void start_thread();
  void wait_for_caller(Ticket& ticket);
  bool run_next();  // needs running_
  std::optional<Entry> take();

  std::shared_ptr<Endpoint> endpoint_;
  std::mutex running_;  // held by the thread that runs operations
  std::mutex mutex_;    // guards queue_, is_closing_, thread_
  // On the heap: after fork its waiters do not exist, and destroying it would wait for them for ever.
  std::unique_ptr<std::condition_variable> condition_ = std::make_unique<std::condition_variable>();
  std::deque<Entry> queue_;
  std::atomic<std::size_t> num_queued_{0};  // includes the one being run from the queue
  std::atomic<bool> is_apart_{false};  // threads that wait run nothing themselves
  bool is_closing_ = false;
  std::thread thread_;
};

}  // namespace phalanx
