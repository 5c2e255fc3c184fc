#include "lane.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

namespace phalanx {

std::optional<Trouble> Ticket::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

void Ticket::finish(std::optional<Trouble> trouble) {
  const std::lock_guard lock(mutex_);
  trouble_ = std::move(trouble);
  is_done_.store(true, std::memory_order_release);
  condition_.notify_all();
}

bool Ticket::wait_until(std::int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  const std::int64_t left = std::max<std::int64_t>(deadline_ns - monotonic_ns(), 0);
  return condition_.wait_for(lock, std::chrono::nanoseconds(left), [this] { return is_done(); });
}

Lane::~Lane() { close(); }

void Lane::close() {
  if (!endpoint_->is_owner()) {  // after fork the thread does not exist, and its locks may stay locked for ever
    if (thread_.joinable()) thread_.detach();
    condition_.release();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  condition_->notify_all();
  if (thread_.joinable()) thread_.join();
  drain();
}

std::shared_ptr<Ticket> Lane::submit(Action action) {
  std::shared_ptr<Ticket> ticket;
  try {
    ticket = std::make_shared<Ticket>();
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) start_thread();  // first, because it may fail
    queue_.push_back({std::move(action), ticket});
    num_queued_.fetch_add(1);
  } catch (const std::bad_alloc& error) {
    give_up(words_of(error));
  }
  condition_->notify_one();
  return ticket;
}

void Lane::give_up(const std::string& why) {
  const int rank = endpoint_->rank();
  const Trouble trouble(FaultKind::kAborted, rank, rank, endpoint_->seq(), {why}, true);
  set_fault(endpoint_->layout(), trouble.kind, rank, rank, trouble.seq, trouble.detail);
  throw trouble;
}

void Lane::start_thread() {
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    give_up(no_thread_text(error));
  }
}

std::optional<Lane::Entry> Lane::take() {
  const std::lock_guard lock(mutex_);
  if (queue_.empty()) return std::nullopt;
  Entry entry = std::move(queue_.front());
  queue_.pop_front();
  return entry;
}

bool Lane::run_next() {
  std::optional<Entry> entry = take();
  if (!entry) return false;
  std::optional<Trouble> trouble;
  try {
    attempt(entry->action);
  } catch (const Trouble& caught) {
    trouble = caught;
  }
  num_queued_.fetch_sub(1);
  entry->action = nullptr;  // release what it holds before any thread sees it done
  entry->ticket->finish(std::move(trouble));
  return true;
}

bool Lane::wait(Ticket& ticket, std::int64_t deadline_ns) {
  constexpr std::int64_t kSliceNs = 20'000'000;
  if (ticket.is_done()) return true;
  Endpoint::begin_waiting();
  std::optional<AwaitsWork> awaits_work;
  if (deadline_ns == INT64_MAX) awaits_work.emplace(endpoint_->member(), endpoint_->callers());  // else it may do more afterwards
  const Deadline deadline(deadline_ns == INT64_MAX ? INT64_MAX / 2 : deadline_ns, paused_ns_so_far());
  while (!ticket.is_done()) {
    // Running it here saves a switch of threads, but it can't be stopped half-way, so only callers without a timeout do it.
    if (deadline_ns == INT64_MAX && !is_apart_.load(std::memory_order_relaxed)) {
      if (std::unique_lock running(running_, std::try_to_lock); running.owns_lock()) {
        while (!ticket.is_done() && run_next()) {
        }
        continue;
      }
    }
    const std::int64_t left = deadline.left_ns();
    if (left <= 0) return false;
    ticket.wait_until(monotonic_ns() + std::min(left, kSliceNs));
    if (Endpoint::is_interrupted())
      throw Trouble(FaultKind::kInterrupted, endpoint_->rank(), endpoint_->rank(), endpoint_->seq(), {}, false);
    if (awaits_work) awaits_work->look_in_vain();
  }
  return true;
}

// The action uses the caller's memory: whatever happens, it must be over before the caller goes on.
void Lane::wait_for_caller(Ticket& ticket) {
  try {
    wait(ticket, INT64_MAX);
  } catch (const Trouble& trouble) {
    set_fault(endpoint_->layout(), trouble.kind, trouble.culprit, trouble.reporter, trouble.seq, trouble.detail);
    Waiter* const waiter = std::exchange(Endpoint::waiter, nullptr);
    wait(ticket, INT64_MAX);
    Endpoint::waiter = waiter;
    throw;
  }
}

void Lane::drain() {
  constexpr unsigned kBetweenLooksUs = 200;
  std::unique_lock running(running_, std::try_to_lock);
  for (; !running.owns_lock(); running.try_lock()) {  // the native thread runs an operation, perhaps one that no peer joins
    if (Endpoint::is_interrupted())
      set_fault(endpoint_->layout(), FaultKind::kInterrupted, endpoint_->rank(), endpoint_->rank(), endpoint_->seq());
    usleep(kBetweenLooksUs);
  }
  while (run_next()) {
  }
}

void Lane::work() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      condition_->wait(lock, [this] { return is_closing_ || !queue_.empty(); });
      if (is_closing_) return;
    }
    const std::lock_guard running(running_);
    run_next();
  }
}

}  // namespace phalanx
