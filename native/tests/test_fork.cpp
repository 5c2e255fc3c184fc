// A rank that forks: the child is not the rank, and nothing it does, not even its end, disturbs the group.
#include "../core/lane.hpp"
#include "mail.hpp"
#include "plain_collectives.hpp"

using namespace ranks;

namespace {

// All that a rank holds, with both native threads running and idle.
struct Rank {
  explicit Rank(const EndpointPtr& given)
      : endpoint(given), lane(std::make_unique<Lane>(given)), mailbox(std::make_unique<Mailbox>(given)) {
    CHECK(lane->wait(*lane->submit([](Endpoint&) {}), INT64_MAX));
    const auto call = call_of(Operation::kRecv, 1, DType::kUInt8, given->rank());
    const auto receive = mailbox->start(call, 1, &byte, 1);
    mailbox->detach(receive);
    mailbox->start(call_of(Operation::kSend, 1, DType::kUInt8, given->rank()), 1, &byte, 1);
    wait_until([&] { return receive->is_done.load(); });
  }
  std::byte byte{};
  EndpointPtr endpoint;
  std::unique_ptr<Lane> lane;
  std::unique_ptr<Mailbox> mailbox;
};

int fork_and_destroy(std::unique_ptr<Rank>& rank, EndpointPtr& endpoint) {
  Child child([&] {
    CHECK(!endpoint->is_owner());
    rank.reset();
    endpoint.reset();
  });
  return child.wait(3);
}

}  // namespace

TEST(a_child_can_destroy_what_it_inherited) {
  run_processes(small_shape(2), [](EndpointPtr endpoint) {
    auto rank = std::make_unique<Rank>(endpoint);
    PlainCollectives<float> plain(*endpoint, 1);
    for (int i = 0; i < 5; ++i) {
      plain.all_reduce(5000);
      CHECK_EQUAL(fork_and_destroy(rank, endpoint), 0);
      CHECK(endpoint->layout().member(endpoint->rank()).state.load() == MemberState::kPresent);
      plain.all_reduce(5000);
    }
    rank->lane->run([](Endpoint& self) { barrier(self, call_of(Operation::kBarrier)); });
  });
}

TEST(a_child_made_in_the_middle_of_an_operation) {
  run_processes(small_shape(2), [](EndpointPtr endpoint) {
    std::atomic<bool> is_over{false};
    Problems problems;
    std::thread forking([&] {
      problems.add(endpoint->rank(), check::problem_of([&] {
        while (!is_over.load()) CHECK_EQUAL(Child([] {}).wait(3), 0);
      }));
    });
    PlainCollectives<float> plain(*endpoint, 1);
    const std::string problem = check::problem_of([&] {
      for (int i = 0; i < 300; ++i) plain.all_reduce(std::size_t(i) * 30);
    });
    is_over = true;
    forking.join();
    problems.add(endpoint->rank(), problem);
    problems.raise();
  });
}

TEST(a_rank_is_dead_though_its_child_lives) {
  require_fork();
  const Segment segment = create_group_segment(small_shape(2));
  const auto survivor = endpoint_on(segment, 0);
  Child victim = fork_rank(segment, 1, [](const EndpointPtr& endpoint) {
    const Child grandchild([&] {
      prctl(PR_SET_PDEATHSIG, 0);  // it outlives the rank, until the survivor has noticed
      wait_until([&] { return endpoint->layout().header().fault.state.load() == 2; }, 10);
    });
    PlainCollectives<float>(*endpoint, 1).all_reduce(5000);
    wait_until([] { return false; });
  });
  PlainCollectives<float> plain(*survivor, 1);
  plain.all_reduce(5000);
  victim.kill();
  CHECK_EQUAL(int(trouble_of([&] { plain.all_reduce(5000); }).kind), int(FaultKind::kPeerDied));
}
