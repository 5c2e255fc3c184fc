// Every collective, one-shot and chunked, alone and back to back, on threads and on processes.
#include "plain_collectives.hpp"

using namespace ranks;

namespace {

using Runner = void (*)(const GroupShape&, const Body&);

// 0 and 1 elements, the edges of the inline, one-shot and chunk sizes, and several chunks.
const std::size_t kCounts[] = {0, 1, 20, 21, 127, 129, 513, 1024, 1025, 2048, 2049, 4096, 4097, 10007};

void each_of_every_size(const EndpointPtr& endpoint) {
  PlainCollectives<std::int32_t> plain(*endpoint, 1);
  for (const std::size_t count : kCounts) plain.each(count);
}

Body random_series(std::uint32_t seed, int operations, std::size_t most) {
  return [=](const EndpointPtr& endpoint) { run_random_series(*endpoint, seed, operations, most); };
}

}  // namespace

TEST(one_rank_alone) { on_threads_and_processes(1, each_of_every_size); }
TEST(two_ranks) { on_threads_and_processes(2, each_of_every_size); }
TEST(three_ranks_on_as_many_cores) { on_threads_and_processes(roomy_shape(3), each_of_every_size); }
TEST(three_ranks) { on_threads_and_processes(3, each_of_every_size); }
TEST(eight_ranks_on_fewer_cores) { on_threads_and_processes(8, each_of_every_size); }

TEST(random_series_on_two_ranks) { on_threads_and_processes(2, random_series(1, 2000, 6000)); }
TEST(random_series_on_three_ranks) { on_threads_and_processes(3, random_series(2, 1500, 6000)); }
TEST(random_series_on_eight_ranks) { on_threads_and_processes(8, random_series(3, 600, 6000)); }
TEST(random_series_on_as_many_cores) { on_threads_and_processes(roomy_shape(4), random_series(5, 800, 40000)); }
TEST(random_series_on_half_as_many_cores) {
  GroupShape shape = roomy_shape(4);
  shape.cores = 2;
  on_threads_and_processes(shape, random_series(6, 800, 12000));
}
TEST(random_series_of_small_operations) { on_threads_and_processes(4, random_series(4, 3000, 64)); }

// Roots publish and go on: for a while nobody waits for anybody.
TEST(rooted_operations_run_ahead) {
  on_threads_and_processes(3, [](const EndpointPtr& endpoint) {
    PlainCollectives<std::int32_t> plain(*endpoint, 9);
    for (int i = 0; i < 8000; ++i) {
      plain.broadcast(std::size_t(i) % 900, i / 100 % 3);
      if (i % 3 == 0) plain.gather(std::size_t(i) % 500, i / 50 % 3);
      if (i % 5 == 0) plain.scatter(std::size_t(i) % 300, i / 200 % 3);
      if (i % 7 == 0) plain.reduce(std::size_t(i) % 500, 2);
    }
  });
}

// The whole stage and its halves, in every order and with every root.
TEST(whole_and_half_stages_take_turns) {
  on_threads_and_processes(3, [](const EndpointPtr& endpoint) {
    PlainCollectives<std::int32_t> plain(*endpoint, 11);
    std::mt19937 shared(5);
    for (int i = 0; i < 2000; ++i) {
      const int root = int(shared() % 3);
      switch (shared() % 5) {
        case 0: plain.broadcast(5000 + shared() % 9000, root); break;
        case 1: plain.scatter(5000 + shared() % 3000, root); break;
        case 2: plain.broadcast(1100 + shared() % 900, root); break;
        case 3: plain.all_reduce(2000 + shared() % 5000); break;
        default: plain.gather(1100 + shared() % 5000, root);
      }
    }
  });
}

// Large enough to be written around the cache, in the buffers of real groups.
TEST(results_that_do_not_fit_the_cache) {
  GroupShape shape;
  shape.name = "large";
  shape.num_ranks = 2;
  run_threads(shape, [](const EndpointPtr& endpoint) {
    PlainCollectives<float> plain(*endpoint, 13);
    const std::size_t count = (9u << 20) / sizeof(float) + 3;
    plain.all_reduce(count);
    plain.broadcast(count, 1);
    plain.all_gather({count / 2, count / 2 + 7});
    plain.scatter(count, 0);
    plain.all_to_all([&](int, int) { return count / 2; });
  });
}

namespace {

// A block for one rank. Threads share the mapping, as they share that of the group.
std::shared_ptr<SymmetricBlock> block_for(const Segment& segment, const Endpoint& endpoint, bool is_thread) {
  auto* block = new SymmetricBlock(is_thread ? alias(segment) : Segment::attach(segment.descriptor()), endpoint.rank(),
                                   endpoint.num_ranks(), 1);
  return {block, [is_thread](SymmetricBlock* last) {
            if (is_thread) disown(last->segment());
            delete last;
          }};
}

Body symmetric_series(const Segment& segment, bool is_thread) {
  return [&segment, is_thread](const EndpointPtr& endpoint) {
    const auto block = block_for(segment, *endpoint, is_thread);
    PlainCollectives<float> plain(*endpoint, 15);
    std::mt19937 shared(6);
    for (int i = 0; i < 300; ++i) {
      const std::size_t count = 1 + shared() % (block->stride() / sizeof(float));
      const std::uint32_t mask = shared() % 2 == 0 ? ~0u : shared();  // which ranks' tensors are symmetric
      plain.all_reduce_symmetric(block, count, (mask >> endpoint->rank() & 1) != 0);
      if (shared() % 4 == 0) plain.all_reduce(1 + shared() % 5000);
    }
    plain.barrier();
  };
}

}  // namespace

TEST(symmetric_memory_also_mixed_with_ordinary_memory) {
  for (const GroupShape& shape : {small_shape(2), small_shape(3), small_shape(8), roomy_shape(3)}) {
    const Segment segment = Segment::create("symmetric", std::size_t(shape.num_ranks) * 64 * 1024);
    run_threads(shape, symmetric_series(segment, true));
    if (kCanFork) run_processes(shape, symmetric_series(segment, false));
  }
}
