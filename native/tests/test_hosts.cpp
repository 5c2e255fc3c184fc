// Groups over hosts: every collective with every plan, on even and uneven hosts; calls that differ; faults in the middle.
#include "fake_wire.hpp"
#include "plain_collectives.hpp"

using namespace ranks;

namespace {

using Table = std::vector<std::vector<int>>;

// 0 and 1 elements, both sides of what travels behind a card, several chunks.
const std::vector<std::size_t> kCounts =
    kIsSanitized ? std::vector<std::size_t>{0, 1, 1025, 16385} : std::vector<std::size_t>{0, 1, 21, 1025, 4097, 16384, 16385, 70001};

void each_of_every_size(const Table& table) {
  Hosts(table).run([](HostGroup& group) {
    PlainCollectives<std::int32_t, HostGroup> plain(group, 1);
    for (const std::size_t count : kCounts) {
      plain.all_reduce(count, ReduceOp::kMax);
      plain.each(count);
    }
  });
}

void random_series(const Table& table, std::uint32_t seed, int operations, std::size_t most) {
  Hosts(table).run([=](HostGroup& group) { run_random_series(group, seed, operations, most); });
}

}  // namespace

TEST(two_hosts_of_one_rank) { each_of_every_size({{0}, {1}}); }
TEST(two_hosts_of_two_ranks) { each_of_every_size({{0, 1}, {2, 3}}); }
TEST(ranks_dealt_out_cyclically) { each_of_every_size({{0, 2}, {1, 3}}); }
TEST(three_hosts_with_different_numbers_of_ranks) { each_of_every_size({{0, 3, 4}, {1}, {2, 5}}); }
TEST(a_rank_alone_on_the_first_host) { each_of_every_size({{0}, {1, 2, 3}}); }

TEST(several_chunks) {
  for (const Table& table : {Table{{0, 1}, {2, 3}}, Table{{0}, {1, 2}, {3}}}) {
    Hosts(table).run([](HostGroup& group) {
      PlainCollectives<float, HostGroup> plain(group, 1);
      const std::size_t count = (kIsSanitized ? 1 : 3) * (kHostChunkBytes / sizeof(float)) + 12345;
      plain.all_reduce(count);
      plain.reduce(count, 1);
      plain.reduce(count, 3);
      plain.broadcast(count, 2);
    });
  }
}

TEST(random_series_on_two_hosts) { random_series({{0, 1}, {2, 3}}, 1, kIsSanitized ? 200 : 1000, 30000); }
TEST(random_series_on_uneven_hosts) { random_series({{0, 4, 5}, {1, 2}, {3}}, 2, kIsSanitized ? 100 : 600, 30000); }

// What the hosts send is counted, without the cards.
TEST(bytes_between_hosts_are_the_fewest) {
  for (const Table& table : {Table{{0, 1}, {2, 3}}, Table{{0, 2}, {1, 3}}, Table{{0, 1}, {2, 3}, {4, 5}}}) {
    const std::size_t hosts = table.size(), num_ranks = hosts * 2, count = kIsSanitized ? 1 << 18 : 1 << 20, bytes = count * sizeof(float);
    const auto sent = [&](const std::function<void(PlainCollectives<float, HostGroup>&)>& run) {
      Hosts world(table);
      world.run([&](HostGroup& group) {
        PlainCollectives<float, HostGroup> plain(group, 1);
        run(plain);
      });
      return world.network().sent_bytes() - hosts * (hosts - 1) * 2 * sizeof(Card);  // one for the call, one for leaving
    };
    CHECK_EQUAL(sent([&](auto& plain) { plain.all_reduce(count); }), 2 * bytes * (hosts - 1));
    CHECK_EQUAL(sent([&](auto& plain) { plain.broadcast(count, 1); }), bytes * (hosts - 1));
    CHECK_EQUAL(sent([&](auto& plain) { plain.reduce(count, 1); }), bytes * (hosts - 1));
    CHECK_EQUAL(sent([&](auto& plain) { plain.all_gather(std::vector<std::size_t>(num_ranks, count)); }), num_ranks * bytes * (hosts - 1));
    CHECK_EQUAL(sent([&](auto& plain) { plain.reduce_scatter(std::vector<std::size_t>(num_ranks, count)); }), num_ranks * bytes * (hosts - 1));
  }
}

TEST(hosts_that_call_different_things) {
  for (const int odd : {0, 1}) {
    Hosts({{0, 1}, {2, 3}}).run([&](HostGroup& group) {
      std::vector<std::int32_t> data(10);
      const std::uint64_t count = group.map().host() == odd ? 7 : 10;
      const Trouble trouble = trouble_of([&] { all_reduce(group, call_of(Operation::kAllReduce, count), reinterpret_cast<std::byte*>(data.data()), {}); });
      CHECK_EQUAL(int(trouble.kind), int(FaultKind::kMismatch));
      CHECK_EQUAL(trouble.culprit, kElsewhere);
      CHECK(trouble.detail.text.find("operation 1 of " + std::to_string(17 - count)) != std::string::npos);
    });
  }
}

TEST(ranks_of_one_host_that_call_different_things) {
  Hosts({{0, 1}, {2, 3}, {4}}).run([](HostGroup& group) {
    std::vector<std::int32_t> data(100'000);
    const std::uint64_t count = group.rank() == 3 ? 90'000 : 100'000;
    const Trouble trouble = trouble_of([&] { all_reduce(group, call_of(Operation::kAllReduce, count), reinterpret_cast<std::byte*>(data.data()), {}); });
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kMismatch));
    if (group.map().host() == 1) {
      CHECK(trouble.culprit >= 0);
    } else {
      CHECK_EQUAL(trouble.culprit, kElsewhere);
      CHECK(trouble.detail.text.starts_with("host 1: trouble "));
    }
  });
}

TEST(a_rank_that_dies_in_the_middle) {
  Hosts hosts({{0, 1}, {2, 3}});
  hosts.run([&](HostGroup& group) {
    PlainCollectives<float, HostGroup> plain(group, 1);
    plain.all_reduce(10);
    if (group.rank() == 3) return declare_dead(layout_of(hosts.outer(1)), 1, 256 + 9);
    std::vector<float> data(3'000'000);
    const Trouble trouble = trouble_of([&] { all_reduce(group, call_of(Operation::kAllReduce, data.size(), DType::kFloat32), reinterpret_cast<std::byte*>(data.data()), {}); }, 3.0);
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kPeerDied));
    CHECK_EQUAL(trouble.culprit, group.rank() == 2 ? 1 : kElsewhere);
  });
}

TEST(a_host_that_is_late) {
  Hosts({{0, 1}, {2}}).run([](HostGroup& group) {
    barrier(group, call_of(Operation::kBarrier));
    if (group.rank() == 2) return void(usleep(4'000'000));
    const Trouble trouble = trouble_of([&] { barrier(group, call_of(Operation::kBarrier, 0, DType::kInt32, 0, 0.5)); }, 3.0);
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kTimeout));
    CHECK_EQUAL(trouble.culprit, kElsewhere);
    CHECK_EQUAL(trouble.detail.text, "host 1 (rank 2) did not come");
  });
}

TEST(a_rank_of_which_the_launchers_know_that_it_is_late) {
  Hosts hosts({{0, 1}, {2, 3}});
  hosts.late = "rank 2 did not come";
  std::atomic<int> num_told = 0;
  hosts.run([&](HostGroup& group) {
    barrier(group, call_of(Operation::kBarrier));
    const int rank = group.rank();
    if (rank == 2) {  // the leader: nobody else of its host can tell the others
      while (num_told < 3) usleep(1000);
      return;
    }
    const Trouble trouble = trouble_of([&] { barrier(group, call_of(Operation::kBarrier, 0, DType::kInt32, 0, 0.5)); }, 10.0);
    ++num_told;
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kTimeout));
    CHECK_EQUAL(trouble.culprit, rank == 3 ? 0 : kElsewhere);
    if (rank != 3) CHECK_EQUAL(trouble.detail.text, "rank 2 did not come");
  });
}

TEST(a_rank_that_is_late_is_named_by_its_host) {
  Hosts({{0, 1}, {2, 3}}).run([](HostGroup& group) {
    barrier(group, call_of(Operation::kBarrier));
    if (group.rank() == 3) return void(usleep(3'000'000));
    const Trouble trouble = trouble_of([&] { barrier(group, call_of(Operation::kBarrier, 0, DType::kInt32, 0, 0.5)); }, 2.0);
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kTimeout));
    CHECK_EQUAL(trouble.culprit, group.rank() == 2 ? 1 : kElsewhere);
    if (group.rank() < 2) CHECK(trouble.detail.text.starts_with("host 1: trouble "));
  });
}

TEST(a_host_that_leaves) {
  Hosts({{0, 1}, {2, 3}}).run([](HostGroup& group) {
    PlainCollectives<float, HostGroup> plain(group, 1);
    plain.barrier();
    if (group.map().host() == 1) return;
    const Trouble trouble = trouble_of([&] { plain.barrier(); });
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kPeerLeft));
    CHECK_EQUAL(trouble.detail.text, "rank 2 on host 1 closed the group");
  });
}

TEST(a_rank_of_which_the_launchers_know_that_it_has_left) {
  Hosts hosts({{0, 1}, {2}});
  hosts.left = "rank 2 on host 1 closed the group";
  hosts.run([&](HostGroup& group) {
    barrier(group, call_of(Operation::kBarrier));
    if (group.rank() == 2) return hosts.network().cut(2);  // its last card is lost
    const Trouble trouble = trouble_of([&] { barrier(group, call_of(Operation::kBarrier)); }, 10.0);
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kPeerLeft));
    CHECK_EQUAL(trouble.detail.text, hosts.left);
  });
}

TEST(a_rank_whose_sizes_differ_from_those_of_all_others) {
  Hosts({{0, 1}, {2, 3}}).run([](HostGroup& group) {
    barrier(group, call_of(Operation::kBarrier));
    const int rank = group.rank();
    const std::size_t bytes = rank == 2 ? 80 : 64;
    std::vector<std::vector<std::byte>> in(4, std::vector<std::byte>(bytes)), out(in);
    std::vector<const std::byte*> inputs;
    std::vector<std::byte*> outputs;
    for (int i = 0; i < 4; ++i) {
      inputs.push_back(in[std::size_t(i)].data());
      outputs.push_back(out[std::size_t(i)].data());
    }
    const std::vector<std::size_t> sizes(4, bytes);
    const Call call = call_of(Operation::kAllToAll, 0, DType::kUInt8);
    const Trouble trouble = trouble_of([&] { all_to_all(group, call, inputs.data(), sizes.data(), outputs.data(), sizes.data()); }, 10.0);
    CHECK_EQUAL(int(trouble.kind), int(FaultKind::kMismatch));
    CHECK_EQUAL(trouble.culprit, rank < 2 ? kElsewhere : 0);
    if (rank < 2) CHECK(trouble.detail.text.starts_with("host 1: trouble "));
  });
}

TEST(a_fault_that_the_launcher_sets_ends_a_wait_for_the_wire) {
  Hosts hosts({{0, 1}, {2}});
  hosts.run([&](HostGroup& group) {
    if (group.rank() == 2) return void(usleep(600'000));
    std::thread launcher;
    if (group.rank() == 0)
      launcher = std::thread([&] {
        usleep(100'000);
        set_fault(layout_of(hosts.outer(0)), FaultKind::kPeerFailed, -1, kLauncher, 0, {"host 1 has been silent for 3 s"});
      });
    const Trouble trouble = trouble_of([&] { barrier(group, call_of(Operation::kBarrier)); }, 1.0);
    if (launcher.joinable()) launcher.join();
    CHECK_EQUAL(trouble.detail.text, "host 1 has been silent for 3 s");
  });
}

TEST(an_average_of_halves_does_not_overflow) {
  Hosts({{0, 1}, {2}}).run([](HostGroup& group) {
    std::vector<std::uint16_t> data(100, 0x7bff);  // the largest half, 65504
    Call call = call_of(Operation::kAllReduce, data.size(), DType::kFloat16);
    call.op = ReduceOp::kAvg;
    all_reduce(group, call, reinterpret_cast<std::byte*>(data.data()), {});
    CHECK_EQUAL(data[99], 0x7bff);
  });
}
