// Messages between hosts: matching, both ends first, ends that differ, ranks that leave, die or are late.
#include <atomic>
#include <random>

#include "fake_wire.hpp"

using namespace ranks;

namespace {

const std::vector<std::vector<int>> kTwoHosts = {{0, 1}, {2, 3}};
constexpr std::size_t kLarge = 3 * kMailBytes + 5;

using MessagePtr = std::shared_ptr<HostMessage>;

Call mail_call(Operation operation, int peer, std::uint64_t tag, std::size_t bytes, double timeout_s) {
  Call call = call_of(operation, bytes, DType::kUInt8, far_number(peer), timeout_s);
  call.tag = tag;
  call.num_dims = 1;
  call.shape[0] = bytes;
  call.size_bytes = bytes;
  return call;
}

MessagePtr start(HostGroup& group, Operation operation, int peer, std::vector<std::uint8_t>& data, std::uint64_t tag = 0, double timeout_s = 20) {
  return group.mail().start(mail_call(operation, peer, tag, data.size(), timeout_s), reinterpret_cast<std::byte*>(data.data()), data.size(), nullptr);
}

void finish(HostGroup& group, const MessagePtr& message) { group.mail().wait(message, message->call.deadline_ns, true); }

void send(HostGroup& group, int peer, std::vector<std::uint8_t> data, std::uint64_t tag = 0) {
  finish(group, start(group, Operation::kSend, peer, data, tag));
}

std::vector<std::uint8_t> recv(HostGroup& group, int peer, std::size_t bytes, std::uint64_t tag = 0, double timeout_s = 20) {
  std::vector<std::uint8_t> data(bytes);
  finish(group, start(group, Operation::kRecv, peer, data, tag, timeout_s));
  return data;
}

std::vector<std::uint8_t> filled(std::size_t bytes, int salt) {
  std::vector<std::uint8_t> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = std::uint8_t(i * 7 + std::size_t(salt));
  return data;
}

int across(const HostGroup& group) { return (group.rank() + 2) % 4; }

}  // namespace

TEST(messages_of_all_sizes_arrive) {
  Hosts(kTwoHosts).run([](HostGroup& group) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kMailBytes, kMailBytes + 1, kLarge}) {
      for (const bool is_first : {true, false}) {
        const int peer = across(group), me = group.rank();
        if ((me < 2) == is_first) {
          send(group, peer, filled(bytes, me));
        } else {
          CHECK(recv(group, peer, bytes) == filled(bytes, peer));
        }
      }
    }
  });
}

// Both sides have everything under way before either waits.
TEST(many_messages_in_both_directions) {
  Hosts(kTwoHosts).run([](HostGroup& group) {
    constexpr int kMessages = kIsSanitized ? 100 : 300;
    std::mt19937 random(std::uint32_t(5));  // the same on all ranks
    std::vector<std::size_t> sizes;
    std::vector<std::uint64_t> tags;
    for (int i = 0; i < kMessages; ++i) {
      sizes.push_back(random() % 4 == 0 ? kMailBytes + random() % 100'000 : random() % 2000);
      tags.push_back(random() % 3);
    }
    for (const bool receives_first : {true, false}) {
      std::vector<std::vector<std::uint8_t>> given, got;
      for (int i = 0; i < kMessages; ++i) {
        given.push_back(filled(sizes[std::size_t(i)], group.rank() + i));
        got.emplace_back(sizes[std::size_t(i)]);
      }
      std::vector<MessagePtr> messages;
      const auto start_all = [&](Operation operation, auto& data) {
        for (std::size_t i = 0; i < data.size(); ++i) messages.push_back(start(group, operation, across(group), data[i], tags[i]));
      };
      if (receives_first) start_all(Operation::kRecv, got);
      start_all(Operation::kSend, given);
      if (!receives_first) start_all(Operation::kRecv, got);
      for (const MessagePtr& message : messages) finish(group, message);
      for (int i = 0; i < kMessages; ++i) CHECK(got[std::size_t(i)] == filled(sizes[std::size_t(i)], across(group) + i));
    }
  });
}

TEST(several_threads_exchange_messages_with_several_ranks) {
  Hosts(kTwoHosts).run([](HostGroup& group) {
    std::vector<std::thread> threads;
    Problems problems;
    for (int tag = 0; tag < 2; ++tag) {
      for (const int peer : group.rank() < 2 ? std::vector{2, 3} : std::vector{0, 1}) {
        threads.emplace_back([&, tag, peer] {
          problems.add(group.rank(), check::problem_of([&] {
            for (int i = 0; i < (kIsSanitized ? 30 : 200); ++i) {
              const std::size_t bytes = i % 3 == 0 ? kLarge : std::size_t(i);
              auto given = filled(bytes, i);
              const MessagePtr sent = start(group, Operation::kSend, peer, given, std::uint64_t(tag));
              CHECK(recv(group, peer, bytes, std::uint64_t(tag)) == filled(bytes, i));
              finish(group, sent);
            }
          }));
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    problems.raise();
  });
}

// More than the window has room for: they wait until the other side takes some.
TEST(small_sends_run_ahead_of_their_receives) {
  Hosts(kTwoHosts).run([](HostGroup& group) {
    constexpr int kMessages = 500;
    if (group.rank() == 1) {
      std::vector<std::vector<std::uint8_t>> data;
      std::vector<MessagePtr> messages;
      for (int i = 0; i < kMessages; ++i) data.push_back(filled(10, i));
      for (auto& each : data) messages.push_back(start(group, Operation::kSend, 2, each));
      for (const MessagePtr& message : messages) finish(group, message);
    }
    for (int i = 0; group.rank() == 2 && i < kMessages; ++i) CHECK(recv(group, 1, 10) == filled(10, i));
  });
}

// Small sends are over for the program, so the group must not be left before they have been taken.
TEST(a_rank_that_closes_leaves_its_messages) {
  Hosts(kTwoHosts).run([](HostGroup& group) {
    if (group.rank() == 0) {
      for (int i = 0; i < 5; ++i) send(group, 3, filled(20, i));
      group.mail().flush(seconds_from_now(20));
      return group.leave();
    }
    if (group.rank() != 3) return;
    usleep(200'000);
    for (int i = 0; i < 5; ++i) CHECK(recv(group, 0, 20) == filled(20, i));
    const Trouble trouble = trouble_of([&] { recv(group, 0, 20); }, 5.0);
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kPeerLeft));
    CHECK(!trouble.is_fatal);
  });
}

// Each waits in flush() for a rank that has not called anything for it.
TEST(ranks_that_close_in_a_circle_do_not_wait_for_each_other) {
  Hosts({{0}, {1}, {2}}).run([](HostGroup& group) {
    send(group, (group.rank() + 1) % 3, filled(20, 0));
    const std::int64_t start = monotonic_ns();
    group.mail().flush(seconds_from_now(60));
    CHECK(check::seconds_since(start) < 30);
  });
}

// Nothing comes from rank 3, not even the end of a connection.
TEST(a_rank_does_not_wait_until_a_rank_that_has_gone_takes_its_messages) {
  Hosts hosts(kTwoHosts);
  hosts.gone = {3};
  std::atomic<bool> is_over{false};
  hosts.run([&](HostGroup& group) {
    if (group.rank() != 0) {
      while (!is_over.load()) usleep(10'000);  // a rank that leaves would end the wait of the other
      return;
    }
    send(group, 3, filled(20, 0));
    const std::int64_t start = monotonic_ns();
    group.mail().flush(seconds_from_now(20));
    is_over = true;
    CHECK(check::seconds_since(start) < 15);
  });
}

TEST(ends_that_differ_both_raise_and_the_group_goes_on) {
  for (const bool is_receive_first : {true, false}) {
    for (const std::size_t room : {std::size_t{7}, kMailBytes, kLarge + 1}) {
      Hosts(kTwoHosts).run([&](HostGroup& group) {
        const int me = group.rank();
        if (me % 2 != 0) return;
        for (int round = 0; round < 3; ++round) {
          if (is_receive_first == (me == 0)) usleep(50'000);
          const Trouble trouble = trouble_of([&] { me == 0 ? send(group, 2, filled(kLarge, 0)) : void(recv(group, 0, room)); }, 10.0);
          CHECK_EQUAL(int(trouble.kind), int(FaultKind::kMismatch));
          CHECK(!trouble.is_fatal);
          CHECK(trouble.detail.text.starts_with(me == 0 ? "rank 2 on host 1 called operation" : "rank 0 on host 0 called operation"));
        }
        if (me == 0) send(group, 2, filled(kLarge, 1)); else CHECK(recv(group, 0, kLarge) == filled(kLarge, 1));
      });
    }
  }
}

TEST(a_small_message_that_differs_raises_on_its_receiver) {
  Hosts(kTwoHosts).run([](HostGroup& group) {
    if (group.rank() == 0) {
      send(group, 2, filled(10, 0));
      send(group, 2, filled(10, 1));
      send(group, 2, filled(kLarge, 2));
    }
    if (group.rank() != 2) return;
    for (const std::size_t room : {std::size_t{11}, kLarge}) {
      const Trouble trouble = trouble_of([&] { recv(group, 0, room); }, 10.0);
      CHECK_EQUAL(int(trouble.kind), int(FaultKind::kMismatch));
    }
    CHECK(recv(group, 0, kLarge) == filled(kLarge, 2));
  });
}

TEST(a_receive_whose_time_is_up_leaves_its_place_to_the_next) {
  Hosts(kTwoHosts).run([](HostGroup& group) {
    if (group.rank() == 2) {
      std::vector<std::uint8_t> given(10), other(10);
      const MessagePtr late = start(group, Operation::kRecv, 0, given, 0, 0.1), next = start(group, Operation::kRecv, 0, other);
      const Trouble trouble = trouble_of([&] { finish(group, late); });
      CHECK_EQUAL(int(trouble.kind), int(FaultKind::kTimeout));
      CHECK(!trouble.is_fatal);
      send(group, 0, filled(1, 0));
      finish(group, next);
      CHECK(other == filled(10, 3));
    }
    if (group.rank() == 0) {
      recv(group, 2, 1);
      send(group, 2, filled(10, 3));
    }
  });
}

TEST(a_large_send_whose_time_is_up_breaks_the_group_on_both_hosts) {
  Hosts(kTwoHosts).run([](HostGroup& group) {
    if (group.rank() == 0) {
      auto data = filled(kLarge, 0);
      const Trouble trouble = trouble_of([&] { finish(group, start(group, Operation::kSend, 2, data, 0, 0.3)); }, 3.0);
      CHECK_EQUAL(int(trouble.kind), int(FaultKind::kTimeout));
    }
    if (group.rank() == 2) {
      const Trouble trouble = trouble_of([&] { recv(group, 0, 5, 1); }, 5.0);
      CHECK_EQUAL(trouble.culprit, kElsewhere);
      CHECK_EQUAL(trouble.detail.text, "rank 0 timed out in send: rank 2 on host 1 has not received it");
    }
  });
}

TEST(an_asynchronous_message_ends_at_its_deadline_though_nobody_waits) {
  Hosts(kTwoHosts).run([](HostGroup& group) {
    if (group.rank() != 3) return;
    std::vector<std::uint8_t> data(10);
    const MessagePtr message = start(group, Operation::kRecv, 1, data, 0, 0.1);
    wait_until([&] { return message->is_done.load(); });
    CHECK_EQUAL(int(message->trouble->kind), int(FaultKind::kTimeout));
  });
}

TEST(a_dead_neighbour_ends_messages_on_both_hosts) {
  Hosts hosts(kTwoHosts);
  hosts.run([&](HostGroup& group) {
    send(group, across(group), filled(5, 0));
    recv(group, across(group), 5);
    if (group.rank() == 3) return declare_dead(layout_of(hosts.outer(1)), 1, 256 + 9);
    if (group.rank() == 1) return;
    const Trouble trouble = trouble_of([&] { recv(group, across(group), kLarge); }, 5.0);
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kPeerDied));
    CHECK_EQUAL(trouble.culprit, group.rank() == 2 ? 1 : kElsewhere);
  });
}

TEST(a_wait_can_be_interrupted) {
  Hosts(kTwoHosts).run([](HostGroup& group) {
    if (group.rank() != 0) return;
    const Interruption interruption;
    const Trouble trouble = trouble_of([&] { recv(group, 2, 5); });
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kInterrupted));
    CHECK(!trouble.is_fatal);
  });
}

TEST(a_message_is_in_the_journal_once) {
  Hosts hosts(kTwoHosts);
  hosts.run([&](HostGroup& group) {
    const int peer = across(group);
    for (const std::size_t bytes : {std::size_t{8}, kLarge}) {
      auto data = filled(bytes, 0);
      const MessagePtr sent = start(group, Operation::kSend, peer, data, 9);
      recv(group, peer, bytes, 9);
      finish(group, sent);
    }
    const auto messages = read_messages(group.outer().layout(), group.outer().rank());
    CHECK_EQUAL(messages.size(), std::size_t{4});
    for (const EntryFacts& entry : messages) {
      CHECK_EQUAL(entry.root, far_number(peer));
      CHECK_EQUAL(entry.peer, far_number(peer));
      CHECK_EQUAL(entry.count, std::uint64_t{9});
      CHECK(entry.end_ns != 0);
    }
  });
}
