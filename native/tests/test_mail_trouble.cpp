// Messages that do not come to an end: nobody waits for ever, and nobody's memory is touched afterwards.
#include "mail.hpp"

using namespace ranks;

namespace {

// Both ends of a group of two, in one thread: whoever should move on is told to.
struct Pair {
  explicit Pair(const GroupShape& shape = small_shape(2))
      : segment(create_group_segment(shape)), first_endpoint(endpoint_on(segment, 0)),
        second_endpoint(endpoint_on(segment, 1)), first(std::make_unique<Mail>(first_endpoint)),
        second(std::make_unique<Mail>(second_endpoint)) {}
  Segment segment;
  EndpointPtr first_endpoint, second_endpoint;
  std::unique_ptr<Mail> first, second;
};

// Moves messages for a moment. The receive it does so with is withdrawn.
void look(Mail& mail) {
  Bytes nothing(1);
  try {
    const auto transfer = mail.start_receive(0, 123'456, nothing);
    mail.mailbox().wait(transfer, monotonic_ns(), true);
  } catch (const Trouble&) {
  }
}

}  // namespace

TEST(a_receive_nobody_answers_times_out_and_can_be_repeated) {
  Pair pair;
  for (int i = 0; i < 3; ++i) {
    const Trouble trouble = trouble_of([&] { pair.second->receive(0, 1, Bytes(10), 0.05); });
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kTimeout));
    CHECK_EQUAL(trouble.culprit, 0);
    CHECK(!trouble.is_fatal);
  }
  pair.first->send(1, 1, message_of(1, 10));
  pair.second->receive(0, 1, message_of(1, 10));
}

TEST(a_wait_that_is_not_final_lets_the_transfer_go_on) {
  Pair pair;
  Bytes data(10);
  const auto receive = pair.second->start_receive(0, 1, data);
  CHECK(!pair.second->mailbox().wait(receive, seconds_from_now(0.02), false));
  pair.first->send(1, 1, message_of(1, 10));
  pair.second->finish(receive);
  CHECK(data == message_of(1, 10));
}

TEST(small_sends_to_a_rank_that_never_reads_end_in_time) {
  Pair pair;
  const Trouble trouble = trouble_of([&] {
    for (int i = 0; i < 100; ++i) pair.first->send(1, 1, Bytes(10), 0.1);
  });
  CHECK_EQUAL(int(trouble.kind), int(FaultKind::kTimeout));
}

TEST(a_large_send_nobody_takes_is_a_fault_of_the_group) {
  Pair pair;
  const Trouble trouble = trouble_of([&] { pair.first->send(1, 1, Bytes(20000), 0.05); });
  CHECK_EQUAL(int(trouble.kind), int(FaultKind::kTimeout));
  CHECK(trouble.is_fatal);
  CHECK_EQUAL(int(trouble_of([&] { pair.second->send(0, 1, Bytes(1)); }).kind), int(FaultKind::kTimeout));
}

TEST(receiving_from_a_rank_that_left) {
  Pair pair;
  pair.first->send(1, 1, message_of(1, 500));
  pair.first.reset();
  pair.first_endpoint.reset();
  pair.second->receive(0, 1, message_of(1, 500));  // what it sent before still counts
  const Trouble trouble = trouble_of([&] { pair.second->receive(0, 1, Bytes(10)); });
  CHECK_EQUAL(int(trouble.kind), int(FaultKind::kPeerLeft));
  CHECK_EQUAL(trouble.culprit, 0);
}

TEST(receiving_from_anybody_when_everybody_left) {
  Pair pair;
  pair.first.reset();
  pair.first_endpoint.reset();
  CHECK_EQUAL(int(trouble_of([&] { pair.second->receive(kAnySource, 1, Bytes(10), 10); }).kind), int(FaultKind::kPeerLeft));
}

TEST(closing_ends_what_other_threads_wait_for) {
  Pair pair;
  Problems problems;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      problems.add(t, check::problem_of([&] {
        const Trouble trouble = trouble_of([&] { pair.second->receive(0, std::uint64_t(t), Bytes(10)); }, 5);
        CHECK_EQUAL(int(trouble.kind), int(FaultKind::kAborted));
      }));
    });
  }
  wait_until([&] { return pair.second_endpoint->layout().mail_bell(1).sleepers.load() == 3; });
  pair.second->mailbox().close();
  for (auto& thread : threads) thread.join();
  problems.raise();
}

TEST(a_fault_ends_every_wait_at_once) {
  Pair pair;
  Bytes detached_data(30000), data(10);
  const auto detached = pair.second->start_receive(0, 9, detached_data);
  pair.second->mailbox().detach(detached);
  std::thread aborting([&] {
    wait_until([&] { return pair.second_endpoint->layout().mail_bell(1).sleepers.load() == 2; });
    set_fault(pair.second_endpoint->layout(), FaultKind::kAborted, -1, kLauncher, 0, {"stop"});
  });
  const Trouble trouble = trouble_of([&] { pair.second->receive(0, 1, data); }, 2);
  aborting.join();
  CHECK_EQUAL(int(trouble.kind), int(FaultKind::kAborted));
  CHECK_EQUAL(trouble.detail.text, "stop");
  wait_until([&] { return detached->is_done.load(); }, 2);
  CHECK(detached->trouble && detached->trouble->kind == FaultKind::kAborted);
}

namespace {

// The receive is interrupted when half of the message is there, and its memory goes.
void interrupt_receive(Pair& pair, std::size_t bytes, std::size_t bytes_before) {
  Bytes out = message_of(1, bytes);
  for (int i = 0; i < 2; ++i) pair.first->send(1, 5, Bytes(bytes_before));
  const auto send = pair.first->start_send(1, 1, out);
  auto in = std::make_unique<Bytes>(bytes);
  const auto receive = pair.second->start_receive(0, 1, *in);
  {
    const Interruption interruption;
    CHECK_EQUAL(int(trouble_of([&] { pair.second->finish(receive); }).kind), int(FaultKind::kInterrupted));
  }
  const bool is_over = receive->is_done.load();
  in.reset();
  for (int i = 0; i < 20; ++i) {
    look(*pair.first);
    look(*pair.second);  // the address sanitizer sees it
  }
  CHECK(is_over);
}

}  // namespace

// What comes later must not go where the memory was.
TEST(an_interrupted_large_receive_does_not_write_later) {
  Pair pair;
  interrupt_receive(pair, 30000, 1);
}

TEST(an_interrupted_receive_in_parts_does_not_write_later) {
  GroupShape shape = small_shape(2);
  shape.eager_bytes = 128 * 1024;
  Pair pair(shape);
  interrupt_receive(pair, 60000, 50000);  // behind what came before there is room for one part only
}

TEST(a_large_receive_that_timed_out_does_not_write_later) {
  Pair pair;
  Bytes out = message_of(1, 30000);
  const auto send = pair.first->start_send(1, 1, out);
  Bytes other(10);
  const auto detached = pair.second->start_receive(0, 2, other, 5);
  auto in = std::make_unique<Bytes>(30000);
  const auto receive = pair.second->start_receive(0, 1, *in, 0.05);
  CHECK_EQUAL(int(trouble_of([&] { pair.second->finish(receive); }).kind), int(FaultKind::kTimeout));
  CHECK(receive->is_done.load());  // nothing of it is left in the mailbox
}

TEST(a_detached_large_send_ends_by_its_deadline) {
  Pair pair;
  Bytes data(30000);
  const auto send = pair.first->start_send(1, 1, data, 0.1);
  pair.first->mailbox().detach(send);
  wait_until([&] { return send->is_done.load(); }, 2);
  CHECK(send->trouble && send->trouble->kind == FaultKind::kTimeout);
}
