// Messages: matching, sizes, order, and many at once.
#include <random>

#include "mail.hpp"

using namespace ranks;

namespace {
// The edges of inline, eager and bulk messages, and several chunks, in the small shape.
const std::size_t kSizes[] = {0, 1, 64, 65, 1000, 2047, 2048, 2049, 4096, 4097, 12288, 12289, 50001};
}  // namespace

TEST(messages_of_every_size_arrive) {
  on_threads_and_processes(2, [](const EndpointPtr& endpoint) {
    Mail mail(endpoint);
    for (int round = 0; round < 20; ++round) {
      for (const std::size_t size : kSizes) {
        const Bytes data = message_of(size + std::size_t(round), size);
        if ((endpoint->rank() + round) % 2 == 0) mail.send(1 - endpoint->rank(), 3, data);
        else mail.receive(1 - endpoint->rank(), 3, data);
      }
    }
  });
}

TEST(tags_match_out_of_order) {
  on_threads_and_processes(2, [](const EndpointPtr& endpoint) {
    Mail mail(endpoint);
    for (const std::size_t size : {10u, 700u, 9000u}) {
      std::vector<Bytes> data;
      std::vector<std::shared_ptr<Transfer>> sends;
      for (std::uint64_t tag = 0; tag < 12; ++tag) data.push_back(message_of(tag, size + tag));
      if (endpoint->rank() == 0) {
        for (std::uint64_t tag = 0; tag < 12; ++tag) sends.push_back(mail.start_send(1, tag, data[tag]));
        for (const auto& send : sends) mail.finish(send);
      } else {
        for (std::uint64_t tag = 12; tag-- > 0;) mail.receive(0, tag, data[tag]);
      }
    }
  });
}

TEST(messages_of_one_tag_keep_their_order) {
  on_threads_and_processes(2, [](const EndpointPtr& endpoint) {
    Mail mail(endpoint);
    std::mt19937 shared(3);
    for (std::uint64_t id = 0; id < 500; ++id) {
      const Bytes data = message_of(id, shared() % 4 == 0 ? shared() % 20000 : shared() % 100);
      if (endpoint->rank() == 0) mail.send(1, 5, data); else mail.receive(0, 5, data);
    }
  });
}

TEST(any_source_takes_from_everybody) {
  on_threads_and_processes(4, [](const EndpointPtr& endpoint) {
    Mail mail(endpoint);
    for (const std::size_t size : {8u, 500u, 9000u}) {
      if (endpoint->rank() != 0) {
        for (int i = 0; i < 20; ++i) mail.send(0, size, message_of(size, size));
        continue;
      }
      std::vector<int> from(4);
      for (int i = 0; i < 60; ++i) ++from[std::size_t(mail.receive(kAnySource, size, message_of(size, size)))];
      for (int peer = 1; peer < 4; ++peer) CHECK_EQUAL(from[std::size_t(peer)], 20);
    }
  });
}

TEST(a_rank_can_write_to_itself) {
  run_threads(small_shape(1), [](const EndpointPtr& endpoint) {
    Mail mail(endpoint);
    for (const std::size_t size : {0u, 10u, 3000u, 20000u}) {
      Bytes data = message_of(size, size), first(size), second(size);
      const auto early = mail.start_receive(0, 1, first);
      mail.finish(mail.start_send(0, 1, data));
      mail.finish(early);
      const auto send = mail.start_send(0, 2, data);
      CHECK(!send->is_done.load());
      const auto late = mail.start_receive(kAnySource, 2, second);
      mail.finish(late);
      mail.finish(send);
      CHECK(first == data && second == data && late->source == 0);
    }
  });
}

TEST(a_wrong_size_is_told_and_the_next_message_arrives) {
  on_threads_and_processes(2, [](const EndpointPtr& endpoint) {
    Mail mail(endpoint);
    for (const std::size_t size : {10u, 1000u, 9000u}) {
      const bool is_bulk = size > 2048;
      for (const bool is_expected : {true, false}) {  // whether the receive is there first
        Bytes data(size), other(size + 1);
        if (endpoint->rank() == 0) {
          if (is_expected) mail.receive(1, 7, Bytes(1));
          const auto send = mail.start_send(1, 1, data);
          if (!is_expected) mail.send(1, 7, Bytes(1));
          if (!is_bulk) mail.finish(send);
          else CHECK_EQUAL(int(trouble_of([&] { mail.finish(send); }, 5).kind), int(FaultKind::kMismatch));
        } else {
          if (!is_expected) mail.receive(0, 7, Bytes(1));
          const auto receive = mail.start_receive(0, 1, other);
          if (is_expected) mail.send(0, 7, Bytes(1));
          const Trouble trouble = trouble_of([&] { mail.finish(receive); }, 5);
          CHECK_EQUAL(int(trouble.kind), int(FaultKind::kMismatch));
          CHECK(!trouble.is_fatal);
        }
        if (endpoint->rank() == 0) mail.send(1, 1, message_of(1, size)); else mail.receive(0, 1, message_of(1, size));
      }
    }
  });
}

TEST(many_at_once_from_several_threads) {
  on_threads_and_processes(3, [](const EndpointPtr& endpoint) {
    Mail mail(endpoint);
    Problems problems;
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        problems.add(int(t), check::problem_of([&] {
          std::mt19937 shared(std::uint32_t(t) + 10);
          for (std::uint64_t round = 0; round < 60; ++round) {
            const std::size_t size = shared() % 3 == 0 ? shared() % 30000 : shared() % 300;
            std::vector<std::shared_ptr<Transfer>> transfers;
            std::vector<Bytes> in(3, Bytes(size)), out;
            for (int peer = 0; peer < 3; ++peer)
              out.push_back(message_of(std::uint64_t(endpoint->rank() * 3 + peer) + round, size));
            for (int peer = 0; peer < 3; ++peer) {
              transfers.push_back(mail.start_receive(peer, t, in[std::size_t(peer)]));
              transfers.push_back(mail.start_send(peer, t, out[std::size_t(peer)]));
            }
            for (const auto& transfer : transfers) mail.finish(transfer);
            for (int peer = 0; peer < 3; ++peer)
              CHECK(in[std::size_t(peer)] == message_of(std::uint64_t(peer * 3 + endpoint->rank()) + round, size));
          }
        }));
      });
    }
    for (auto& thread : threads) thread.join();
    problems.raise();
  });
}

// In the rings of real groups, of 2 ranks and of 17: up to 64 KiB a message travels in parts, and may be asked for between two
// of them, or have to wait for room.
TEST(messages_in_parts) {
  const Body series = [](const EndpointPtr& endpoint) {
    Mail mail(endpoint);
    std::mt19937 shared(8);
    for (std::uint64_t round = 0; round < 150; ++round) {
      std::vector<Bytes> data;
      for (std::uint64_t i = 0; i < 8; ++i) data.push_back(message_of(i + round, shared() % 70000));
      if (endpoint->rank() == 0) {
        std::vector<std::shared_ptr<Transfer>> sends;
        for (std::uint64_t i = 0; i < 8; ++i) sends.push_back(mail.start_send(1, i, data[i]));
        for (const auto& send : sends) mail.finish(send);
        continue;
      }
      for (std::uint64_t i = 0; i < 8; ++i) {
        const std::uint64_t tag = round % 2 == 0 ? i : 7 - i;
        if (tag == 3 && data[tag].size() <= 65536) {
          Bytes other(data[tag].size() + 1);
          CHECK_EQUAL(int(trouble_of([&] { mail.finish(mail.start_receive(0, tag, other)); }, 10).kind), int(FaultKind::kMismatch));
        } else {
          mail.receive(0, tag, data[tag]);
        }
      }
    }
  };
  for (const std::size_t ring_bytes : {2u << 20, 128u << 10}) {
    GroupShape shape;
    shape.name = "parts";
    shape.num_ranks = 2;
    shape.eager_bytes = ring_bytes;
    run_threads(shape, series);
  }
}

// Messages begin where the one before ended, whatever its chunks were, and go round in the buffers several times.
// Where ranks outnumber cores, they are cut otherwise.
TEST(messages_take_turns_in_the_buffers) {
  const Body series = [](const EndpointPtr& endpoint) {
    Mail mail(endpoint);
    std::mt19937 shared(21);
    for (std::uint64_t round = 0; round < 60; ++round) {
      const std::size_t bytes = shared() % 5 == 0 ? shared() % (3u << 20) : shared() % (256u << 10);
      std::vector<std::shared_ptr<Transfer>> transfers;
      std::vector<Bytes> in(3, Bytes(bytes)), out;
      for (int peer = 0; peer < 3; ++peer) out.push_back(message_of(std::uint64_t(endpoint->rank() * 3 + peer) + round, bytes));
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == endpoint->rank()) continue;
        transfers.push_back(mail.start_receive(peer, round, in[std::size_t(peer)]));
        transfers.push_back(mail.start_send(peer, round, out[std::size_t(peer)]));
      }
      for (const auto& transfer : transfers) mail.finish(transfer);
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == endpoint->rank()) continue;
        CHECK(in[std::size_t(peer)] == message_of(std::uint64_t(peer * 3 + endpoint->rank()) + round, bytes));
      }
    }
  };
  for (const int cores : {3, 1}) {
    GroupShape shape;
    shape.name = "turns";
    shape.num_ranks = 3;
    shape.cores = cores;
    run_threads(shape, series);
  }
}

TEST(detached_transfers_finish_by_themselves) {
  on_threads_and_processes(2, [](const EndpointPtr& endpoint) {
    Mail mail(endpoint);
    std::vector<Bytes> in, out;
    std::vector<std::shared_ptr<Transfer>> transfers;
    for (std::uint64_t i = 0; i < 60; ++i) {
      out.push_back(message_of(i, i % 3 == 0 ? 30000 : i * 10));
      in.emplace_back(out.back().size());
    }
    for (std::uint64_t i = 0; i < 60; ++i) {
      transfers.push_back(mail.start_receive(1 - endpoint->rank(), i, in[i]));
      transfers.push_back(mail.start_send(1 - endpoint->rank(), i, out[i]));
      mail.mailbox().detach(transfers[2 * i]);
      mail.mailbox().detach(transfers[2 * i + 1]);
    }
    for (const auto& transfer : transfers) {
      wait_until([&] { return transfer->is_done.load(); });
      CHECK(!transfer->trouble);
    }
    CHECK(in == out);
    meet_by_mail(mail, 1 - endpoint->rank());
  });
}

// Chunks that are there are taken at once, not one each time the receiver looks for dead peers.
TEST(a_sleeping_receiver_takes_all_chunks) {
  run_threads(small_shape(2), [](const EndpointPtr& endpoint) {
    Mail mail(endpoint);
    int num_slow = 0;
    for (std::uint64_t i = 0; i < 100; ++i) {
      const Bytes data = message_of(i, 3 * 4096);
      if (endpoint->rank() == 1) {
        mail.receive(0, i, data);
        continue;
      }
      wait_until([&] { return endpoint->layout().mail_bell(1).sleepers.load() != 0; });
      const std::int64_t start = monotonic_ns();
      mail.send(1, i, data);
      num_slow += check::seconds_since(start) > 0.04;
    }
    CHECK(num_slow <= 90);  // otherwise all would be; a busy machine makes many slow
  });
}
