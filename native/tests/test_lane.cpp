// The order of a rank's operations, whoever runs them, and how long one waits for them.
#include "../core/collectives/collectives.hpp"
#include "../core/lane.hpp"
#include "ranks.hpp"

using namespace ranks;

namespace {

// Both ranks of a group in this process, one endpoint each. Rank 1 comes to an operation when the test says so.
struct Pair {
  Pair() : segment(create_group_segment(small_shape(2))), first(endpoint_on(segment, 0)), second(endpoint_on(segment, 1)) {}
  Segment segment;
  EndpointPtr first, second;
};

Lane::Action barrier_within(double timeout_s) {
  return [call = call_of(Operation::kBarrier, 0, DType::kInt32, 0, timeout_s)](Endpoint& self) { barrier(self, call); };
}

}  // namespace

TEST(operations_run_in_the_order_they_were_submitted) {
  run_threads(small_shape(2), [](const EndpointPtr& endpoint) {
    Lane lane(endpoint);
    std::vector<int> order;  // each action runs after the one before, so it needs no lock
    std::shared_ptr<Ticket> last;
    for (int i = 0; i < 2000; ++i) {
      const auto action = [&order, i, call = call_of(Operation::kBarrier)](Endpoint& self) {
        barrier(self, call);
        order.push_back(i);
      };
      if (i % 7 == 3) lane.run(action); else last = lane.submit(action);
      if (i % 50 == 0) CHECK(lane.wait(*last, INT64_MAX));
    }
    lane.drain();
    CHECK_EQUAL(order.size(), 2000u);
    for (int i = 0; i < 2000; ++i) CHECK_EQUAL(order[std::size_t(i)], i);
  });
}

TEST(several_threads_share_a_lane) {
  const Segment segment = create_group_segment(small_shape(1));
  const auto lane = std::make_unique<Lane>(endpoint_on(segment, 0));
  int num_run = 0;  // guarded by the lane
  Problems problems;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      problems.add(t, check::problem_of([&] {
        for (int i = 0; i < 500; ++i) {
          const auto action = [&](Endpoint& self) {
            barrier(self, call_of(Operation::kBarrier));
            ++num_run;
          };
          if ((i + t) % 3 == 0) lane->run(action); else CHECK(lane->wait(*lane->submit(action), INT64_MAX));
        }
      }));
    });
  }
  for (auto& thread : threads) thread.join();
  problems.raise();
  CHECK_EQUAL(num_run, 2000);
}

// Whoever waits may run what is queued, but no longer than it wants to wait. Several times: either thread may come first.
TEST(a_wait_ends_in_time_though_the_operation_does_not) {
  for (int round = 0; round < 5; ++round) {
    const Pair pair;
    Lane lane(pair.first);
    const auto ticket = lane.submit(barrier_within(4));
    const std::int64_t start = monotonic_ns();
    CHECK(!lane.wait(*ticket, seconds_from_now(0.05)));
    CHECK(check::seconds_since(start) < 1);
    CHECK(!lane.wait(*ticket, monotonic_ns()));
    barrier(*pair.second, call_of(Operation::kBarrier));
    CHECK(lane.wait(*ticket, seconds_from_now(5)));
    CHECK(!ticket->trouble());
  }
}

TEST(a_wait_behind_others_ends_in_time) {
  for (int round = 0; round < 5; ++round) {
    const Pair pair;
    Lane lane(pair.first);
    const auto earlier = lane.submit(barrier_within(4));
    const auto later = lane.submit(barrier_within(4));
    CHECK(!lane.wait(*later, seconds_from_now(0.05)));
    for (int i = 0; i < 2; ++i) barrier(*pair.second, call_of(Operation::kBarrier));
    CHECK(lane.wait(*later, seconds_from_now(5)));
    CHECK(earlier->is_done());
  }
}

TEST(trouble_reaches_the_ticket_and_the_blocking_caller) {
  const Pair pair;
  Lane lane(pair.first);
  const auto ticket = lane.submit(barrier_within(0.05));
  CHECK(lane.wait(*ticket, INT64_MAX));
  CHECK(ticket->trouble().has_value());
  CHECK_EQUAL(int(ticket->trouble()->kind), int(FaultKind::kTimeout));
  const auto queued = lane.submit(barrier_within(5));
  CHECK_EQUAL(int(trouble_of([&] { lane.run(barrier_within(5)); }).kind), int(FaultKind::kTimeout));
  CHECK(queued->is_done());
}

TEST(closing_ends_what_is_queued_once_there_is_a_fault) {
  const Pair pair;
  Lane lane(pair.first);
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (int i = 0; i < 10; ++i) tickets.push_back(lane.submit(barrier_within(20)));
  set_fault(pair.first->layout(), FaultKind::kAborted, 0, 0, 0, {"over"});
  const std::int64_t start = monotonic_ns();
  lane.close();
  CHECK(check::seconds_since(start) < 1);
  for (const auto& ticket : tickets) CHECK(ticket->is_done() && ticket->trouble()->kind == FaultKind::kAborted);
}

// The caller's memory goes when it returns, so nothing of its call may be left in the queue.
TEST(an_interrupted_blocking_call_leaves_nothing_behind) {
  const Pair pair;
  Lane lane(pair.first);
  const auto earlier = lane.submit(barrier_within(3));
  wait_until([&] { return pair.first->layout().progress(0).arrived.load() == 1; });
  const auto action_is_alive = std::make_shared<int>(1);
  {
    const Interruption interruption;
    const Trouble trouble = trouble_of([&] {
      lane.run([action_is_alive, call = call_of(Operation::kBarrier)](Endpoint& self) { barrier(self, call); });
    });
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kInterrupted));
  }
  CHECK_EQUAL(action_is_alive.use_count(), 1);
  CHECK(lane.wait(*earlier, INT64_MAX));
}

TEST(peers_learn_at_once_that_a_blocking_operation_has_no_memory) {
  const Pair pair;
  Lane lane(pair.first);
  const Trouble trouble = trouble_of([&] { lane.run([](Endpoint&) { throw std::bad_alloc(); }); });
  CHECK_EQUAL(int(trouble.kind), int(FaultKind::kAborted));
  CHECK_EQUAL(trouble.culprit, 0);
  CHECK_EQUAL(trouble.detail.text, std::string("there is not enough memory for this operation"));
  const Trouble told = trouble_of([&] { barrier(*pair.second, call_of(Operation::kBarrier, 0, DType::kInt32, 0, 30)); });
  CHECK_EQUAL(int(told.kind), int(FaultKind::kAborted));
  CHECK_EQUAL(told.culprit, 0);
}

// An operation may run out of memory. On the native thread nobody would catch that.
TEST(an_exception_that_is_no_trouble_ends_the_operation_not_the_process) {
  require_fork();
  Child child([] {
    const Pair pair;
    Lane lane(pair.first);
    const auto ticket = lane.submit([](Endpoint&) { throw OutOfMemory(2, 1); });
    wait_until([&] { return ticket->is_done(); }, 3);
    CHECK(ticket->trouble().has_value());
  });
  CHECK_EQUAL(child.wait(10), 0);
}
