// Hosts of one process: their ranks are threads, and what they send each other is copied.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

#include "../core/hosts/collectives.hpp"
#include "ranks.hpp"

namespace ranks {

// Everything that is under way between the ranks of a group. Thread-safe.
class FakeNetwork {
 public:
  struct Receive {
    std::byte* data;
    std::size_t room;
    bool is_done = false;
  };

  void send(int from, int to, int tag, const std::byte* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    sent_bytes_ += bytes;
    Queue& queue = queues_[{from, to, tag}];
    queue.messages.emplace_back(data, data + bytes);
    queue.match();
    condition_.notify_all();
  }
  std::shared_ptr<Receive> receive(int from, int to, int tag, std::byte* data, std::size_t room) {
    const std::lock_guard lock(mutex_);
    auto receive = std::make_shared<Receive>(Receive{data, room});
    Queue& queue = queues_[{from, to, tag}];
    queue.receives.push_back(receive);
    queue.match();
    return receive;
  }
  // Throws WireError when either side is cut off.
  void wait(const Receive& receive, int from, int to, std::int64_t limit_ns) {
    std::unique_lock lock(mutex_);
    const bool is_over = condition_.wait_for(lock, std::chrono::nanoseconds(limit_ns), [&] { return receive.is_done || cut_[from] || cut_[to]; });
    if (receive.is_done) return;
    throw WireError(is_over ? "cut" : "a wait took too long");
  }
  bool is_done(const Receive& receive) {
    const std::lock_guard lock(mutex_);
    return receive.is_done;
  }
  // Receives of a rank that is cut off are never filled.
  void cut(int rank) {
    const std::lock_guard lock(mutex_);
    cut_[rank] = true;
    for (auto& [key, queue] : queues_) {
      if (std::get<1>(key) == rank) queue.receives.clear();
    }
    condition_.notify_all();
  }
  std::size_t sent_bytes() {
    const std::lock_guard lock(mutex_);
    return sent_bytes_;
  }

 private:
  struct Queue {
    std::deque<std::vector<std::byte>> messages;
    std::deque<std::shared_ptr<Receive>> receives;
    void match() {
      while (!messages.empty() && !receives.empty()) {
        const std::vector<std::byte>& message = messages.front();
        if (message.size() > receives.front()->room) std::abort();  // as Gloo does
        if (!message.empty()) std::memcpy(receives.front()->data, message.data(), message.size());
        receives.front()->is_done = true;
        messages.pop_front();
        receives.pop_front();
      }
    }
  };

  std::mutex mutex_;  // guards all below
  std::condition_variable condition_;
  std::map<std::tuple<int, int, int>, Queue> queues_;
  std::map<int, bool> cut_;
  std::size_t sent_bytes_ = 0;
};

class FakeWire final : public Wire {
 public:
  FakeWire(FakeNetwork& network, int rank) : network_(network), rank_(rank) {}

  std::vector<Handle> start(std::span<const WireMessage> messages) override {
    const std::lock_guard lock(mutex_);
    std::vector<Handle> handles;
    for (const WireMessage& message : messages) {
      Receive receive{message.peer, nullptr};
      if (message.is_send) {
        network_.send(rank_, message.peer, message.tag, message.data, message.bytes);
      } else {
        receive.what = network_.receive(message.peer, rank_, message.tag, message.data, message.bytes);
      }
      handles.push_back(++last_);
      receives_[last_] = std::move(receive);
    }
    return handles;
  }
  void wait(std::span<const Handle> handles, std::int64_t limit_ns) override {
    for (const Handle handle : handles) {
      const Receive receive = take(handle);
      if (receive.what) network_.wait(*receive.what, receive.peer, rank_, limit_ns);
    }
  }
  bool has_come(Handle handle) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = receives_.find(handle);
    return found != receives_.end() && found->second.what && network_.is_done(*found->second.what);
  }
  void cut() noexcept override { network_.cut(rank_); }
  void close() noexcept override { network_.cut(rank_); }

 private:
  struct Receive {
    int peer;
    std::shared_ptr<FakeNetwork::Receive> what;  // null for a send
  };
  Receive take(Handle handle) {
    const std::lock_guard lock(mutex_);
    return receives_.at(handle);  // kept for has_come()
  }

  FakeNetwork& network_;
  const int rank_;
  std::mutex mutex_;  // guards all below
  std::map<Handle, Receive> receives_;
  Handle last_ = 0;
};

using HostsBody = std::function<void(HostGroup&)>;

inline Words plain_words() {
  return {[](const Card& card) { return "operation " + std::to_string(int(operation_of(card.signature))) + " of " + std::to_string(card.count); },
          [](const Trouble& trouble) {
            return "trouble " + std::to_string(int(trouble.kind)) + " of local rank " + std::to_string(trouble.culprit) + " " + trouble.detail.text;
          },
          [](Seq) { return std::string(); }, [] { return std::string(); }, [] { return std::vector<int>(); }};
}

// Runs a body on all ranks of some hosts, each with the ranks that the table says.
class Hosts {
 public:
  explicit Hosts(std::vector<std::vector<int>> table) : table_(std::move(table)) {
    for (const auto& ranks : table_) {
      outer_.push_back(create_group_segment(small_shape(int(ranks.size()))));
      inner_.push_back(create_group_segment(small_shape(int(ranks.size()))));
      num_ranks_ += int(ranks.size());
    }
  }
  std::string late, left;  // what the launchers know of late ranks, and of a rank that has left
  std::vector<int> gone;   // and of all that have left or ended

  FakeNetwork& network() { return network_; }
  const Segment& outer(int host) const { return outer_[std::size_t(host)]; }

  void run(const HostsBody& body) {
    Problems problems;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      threads.emplace_back([&, rank] { problems.add(rank, check::problem_of([&] { run_rank(rank, body); })); });
    }
    for (std::thread& thread : threads) thread.join();
    problems.raise();
  }

 private:
  void run_rank(int rank, const HostsBody& body) {
    HostMap map(table_, rank);
    const std::size_t host = std::size_t(map.host());
    FakeWire wire(network_, rank);
    const auto outer = endpoint_on(outer_[host], map.local());
    Mailbox mailbox(outer);
    Words words = plain_words();
    words.find_late = [this](Seq) { return late; };
    words.find_left = [this] { return left; };
    words.find_gone = [this] { return gone; };
    HostGroup group(outer, alias(inner_[host]), std::move(map), wire, mailbox, words);
    const std::shared_ptr<void> disowning(nullptr, [&](void*) { disown(group.inner().*member(EndpointSegment{})); });
    body(group);
  }

  std::vector<std::vector<int>> table_;
  std::vector<Segment> outer_, inner_;
  FakeNetwork network_;
  int num_ranks_ = 0;
};

}  // namespace ranks
