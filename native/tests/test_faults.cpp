// What goes wrong on one rank is known to all, at once and by name.
#include "plain_collectives.hpp"

using namespace ranks;

namespace {

void all_reduce_of(Endpoint& self, std::size_t count, double timeout_s = 10, DType dtype = DType::kFloat32) {
  std::vector<std::byte> data(count * item_bytes(dtype));
  all_reduce(self, call_of(Operation::kAllReduce, count, dtype, 0, timeout_s), data.data(), {});
}

void broadcast_of(Endpoint& self, std::size_t count, int root, double timeout_s = 10) {
  std::vector<std::byte> data(count);
  broadcast(self, call_of(Operation::kBroadcast, count, DType::kUInt8, root, timeout_s), data.data(), count);
}

void reduce_of(Endpoint& self, std::size_t count, int root) {
  std::vector<std::byte> data(count);
  reduce_to_root(self, call_of(Operation::kReduce, count, DType::kUInt8, root, 10), data.data());
}

// Rank 2 of three does something else. All must hear of it: in this operation, or in the barriers that follow.
template <class Usual, class Other>
void check_mismatch(const Usual& usual, const Other& other) {
  run_threads(small_shape(3), [&](const EndpointPtr& endpoint) {
    PlainCollectives<float> plain(*endpoint, 1);
    for (int i = 0; i < 5; ++i) plain.all_reduce(5000);
    const Trouble trouble = trouble_of([&] {
      if (endpoint->rank() == 2) other(*endpoint); else usual(*endpoint);
      for (int i = 0; i < 2; ++i) barrier(*endpoint, call_of(Operation::kBarrier, 0, DType::kInt32, 0, 10));
    });
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kMismatch));
    CHECK(trouble.is_fatal);
    CHECK_EQUAL(int(trouble_of([&] { plain.barrier(); }).kind), int(FaultKind::kMismatch));
  });
}

}  // namespace

TEST(ranks_that_disagree_on_the_count) {
  for (const std::size_t count : {10u, 500u, 20000u})
    check_mismatch([=](Endpoint& e) { all_reduce_of(e, count); }, [=](Endpoint& e) { all_reduce_of(e, count + 1); });
  check_mismatch([](Endpoint& e) { all_reduce_of(e, 10); }, [](Endpoint& e) { all_reduce_of(e, 20000); });
}

TEST(ranks_that_disagree_on_the_dtype) {
  check_mismatch([](Endpoint& e) { all_reduce_of(e, 10); }, [](Endpoint& e) { all_reduce_of(e, 10, 10, DType::kInt32); });
}

TEST(ranks_that_disagree_on_the_operation) {
  check_mismatch([](Endpoint& e) { all_reduce_of(e, 10); }, [](Endpoint& e) { broadcast_of(e, 40, 0); });
  check_mismatch([](Endpoint& e) { all_reduce_of(e, 9000); }, [](Endpoint& e) { broadcast_of(e, 36000, 2); });
  check_mismatch([](Endpoint& e) { barrier(e, call_of(Operation::kBarrier)); }, [](Endpoint& e) { all_reduce_of(e, 10); });
}

// Nobody waits for everybody in these: the disagreement comes out with the next operation that does.
TEST(ranks_that_disagree_on_a_small_rooted_operation) {
  check_mismatch([](Endpoint& e) { broadcast_of(e, 40, 0); }, [](Endpoint& e) { broadcast_of(e, 40, 2); });
  check_mismatch([](Endpoint& e) { broadcast_of(e, 40, 0); }, [](Endpoint& e) { reduce_of(e, 40, 0); });
}

// A rank that looks late must not take what its peers did since for what they did then.
TEST(a_late_comparison_is_of_the_same_operation) {
  on_threads_and_processes(3, [](const EndpointPtr& endpoint) {
    PlainCollectives<std::uint8_t> plain(*endpoint, 1);
    for (std::size_t i = 0; i < 3000; ++i) {
      plain.broadcast(3, int(i % 3));
      if (i % 2 == 0) plain.barrier();
      for (std::size_t ahead = 0; ahead < i % 32; ++ahead) plain.broadcast(4 + ahead, int((i + 1) % 3));
    }
  });
}

TEST(ranks_that_disagree_on_the_root) {
  for (const std::size_t bytes : {5000u, 7000u, 40000u})
    check_mismatch([=](Endpoint& e) { broadcast_of(e, bytes, 0); }, [=](Endpoint& e) { broadcast_of(e, bytes, 2); });
}

// Both take themselves for the root, and both want the whole stage.
TEST(two_ranks_that_take_themselves_for_the_root) {
  check_mismatch([](Endpoint& e) { broadcast_of(e, 40000, e.rank()); }, [](Endpoint& e) { broadcast_of(e, 40000, 2); });
}

TEST(all_to_all_sizes_that_do_not_fit) {
  run_threads(small_shape(2), [](const EndpointPtr& endpoint) {
    std::vector<std::byte> data(64);
    std::byte* pointers[] = {data.data(), data.data()};
    const std::size_t in[] = {8, 8}, out[] = {8, endpoint->rank() == 0 ? std::size_t(16) : std::size_t(8)};
    const Trouble trouble = trouble_of([&] {
      all_to_all(*endpoint, call_of(Operation::kAllToAll), pointers, in, pointers, out);
      barrier(*endpoint, call_of(Operation::kBarrier));
    });
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kMismatch));
    CHECK_EQUAL(trouble.reporter, 0);
  });
}

TEST(a_rank_that_does_not_come_is_named) {
  run_threads(small_shape(3), [](const EndpointPtr& endpoint) {
    PlainCollectives<float> plain(*endpoint, 1);
    plain.barrier();
    if (endpoint->rank() == 1) {
      wait_until([&] { return endpoint->layout().header().fault.state.load() == 2; });
      return;
    }
    const std::int64_t start = monotonic_ns();
    const Trouble trouble = trouble_of([&] { all_reduce_of(*endpoint, 9000, 0.3); });
    CHECK(check::seconds_since(start) >= 0.29);
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kTimeout));
    CHECK_EQUAL(trouble.culprit, 1);
    CHECK_EQUAL(trouble.seq, 2u);
  });
}

TEST(a_rank_that_leaves_is_named) {
  run_threads(small_shape(3), [](const EndpointPtr& endpoint) {
    PlainCollectives<float> plain(*endpoint, 1);
    plain.all_reduce(9000);
    if (endpoint->rank() == 1) return;
    const Trouble trouble = trouble_of([&] { plain.all_reduce(9000); });
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kPeerLeft));
    CHECK_EQUAL(trouble.culprit, 1);
  });
}

TEST(what_a_rank_did_before_it_left_still_counts) {
  run_threads(small_shape(3), [](const EndpointPtr& endpoint) {
    PlainCollectives<float> plain(*endpoint, 1);
    for (int i = 0; i < 10; ++i) plain.broadcast(500, 0);
    for (int i = 0; i < 5; ++i) plain.gather(500, 2);
  });
}

TEST(refusals_are_told_and_the_group_goes_on) {
  on_threads_and_processes(4, [](const EndpointPtr& endpoint) {
    PlainCollectives<float> plain(*endpoint, 1);
    for (int i = 0; i < 200; ++i) {
      plain.refusal(i % 2 == 0 ? 3 : 6000, i % 4);
      if (i % 3 == 0) plain.all_reduce(std::size_t(i) * 40);
    }
  });
}

TEST(a_rank_that_only_refuses_does_not_run_away) {
  run_threads(small_shape(2), [](const EndpointPtr& endpoint) {
    for (int i = 0; i < 100; ++i) {
      if (endpoint->rank() == 1) {
        endpoint->refuse(call_of(Operation::kAllReduce, 5), "no " + std::to_string(i));
      } else {
        CHECK_EQUAL(trouble_of([&] { all_reduce_of(*endpoint, 5); }, 10).detail.text, "no " + std::to_string(i));
      }
    }
  });
}

// Between an operation's beginning and its publication, memory may run out. The others must not wait for it.
TEST(an_operation_that_runs_out_of_memory_is_told) {
  const Segment segment = create_group_segment(small_shape(2));
  std::atomic<bool> is_over{false};
  Problems problems;
  std::thread poor([&] {
    problems.add(1, check::problem_of([&] {
      const auto endpoint = std::make_shared<Endpoint>(Segment::attach(segment.descriptor()), 1, true);
      munmap(endpoint->layout().stage(1), endpoint->layout().stage_bytes());  // now it can't be reserved
      CHECK(!check::problem_of([&] { all_reduce_of(*endpoint, 9000); }).empty());
      wait_until([&] { return is_over.load(); });
    }));
  });
  problems.add(0, check::problem_of([&] {
    const auto endpoint = endpoint_on(segment, 0);
    CHECK_EQUAL(trouble_of([&] { all_reduce_of(*endpoint, 9000, 5); }).culprit, 1);
  }));
  is_over = true;
  poor.join();
  problems.raise();
}

TEST(an_abort_from_outside_ends_every_wait) {
  run_threads(small_shape(3), [](const EndpointPtr& endpoint) {
    if (endpoint->rank() == 2) {
      wait_until([&] { return endpoint->layout().header().sleepers.load() == 2; });
      set_fault(endpoint->layout(), FaultKind::kAborted, -1, kLauncher, 0, {"enough"});
      return;
    }
    const Trouble trouble = trouble_of([&] { all_reduce_of(*endpoint, 9000); });
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kAborted));
    CHECK_EQUAL(trouble.detail.text, "enough");
  });
}

TEST(an_abort_of_the_ancestor_ends_waits_in_its_descendants) {
  const Segment parent = create_group_segment(small_shape(2));
  run_threads(small_shape(2), [&](const EndpointPtr& endpoint) {
    const auto ancestor = endpoint_on(parent, endpoint->rank());
    endpoint->watch(ancestor);
    if (endpoint->rank() == 1) {
      wait_until([&] { return endpoint->layout().header().sleepers.load() == 1; });
      set_fault(ancestor->layout(), FaultKind::kAborted, -1, kLauncher, 0, {"enough"});
      wait_until([&] { return endpoint->layout().header().sleepers.load() == 0; });
      return;
    }
    CHECK_EQUAL(trouble_of([&] { barrier(*endpoint, call_of(Operation::kBarrier)); }).detail.text, "enough");
  });
}

TEST(an_interruption_ends_the_operation_on_all_ranks) {
  run_threads(small_shape(3), [](const EndpointPtr& endpoint) {
    if (endpoint->rank() == 2) {
      wait_until([&] { return endpoint->layout().header().fault.state.load() == 2; });
      return;
    }
    const auto interruption = endpoint->rank() == 0 ? std::make_unique<Interruption>() : nullptr;
    const Trouble trouble = trouble_of([&] { all_reduce_of(*endpoint, 9000); });
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kInterrupted));
    CHECK_EQUAL(trouble.culprit, 0);
  });
}

TEST(the_first_fault_stays) {
  run_threads(small_shape(4), [](const EndpointPtr& endpoint) {
    const auto text = "by " + std::to_string(endpoint->rank());
    const Trouble trouble = trouble_of([&] { endpoint->fail(FaultKind::kAborted, endpoint->rank(), {text}); });
    CHECK_EQUAL(trouble.detail.text, "by " + std::to_string(trouble.culprit));
    CHECK_EQUAL(trouble_of([&] { endpoint->throw_if_faulty(); }).detail.text, trouble.detail.text);
  });
}
