// Collectives of device memory, over the driver that PHALANX_CUDA_DRIVER names: a simulated one.
#include <cstring>
#include <random>
#include <utility>

#include "../core/faults.hpp"
#include "../cuda/operation.hpp"
#include "long_runs.hpp"
#include "ranks.hpp"
#include "simulated_driver.hpp"

namespace {

using namespace phalanx;
using namespace ranks;
using cuda::DeviceOperation, cuda::DeviceRank, cuda::Form, cuda::Gpu;
using simulated::require_driver, simulated::Setting;

constexpr std::uint64_t kCount = 5000;

// One rank that reduces and gathers.
class Rank {
 public:
  explicit Rank(const EndpointPtr& endpoint)
      : endpoint_(*endpoint), gpu_(Gpu::at(0)), rank_(endpoint_, gpu_, [](const std::string&) {}), stream_(gpu_.take_stream()),
        values_(reinterpret_cast<std::int32_t*>(simulated::device_memory(gpu_, kCount * 4))),
        gathered_(reinterpret_cast<std::int32_t*>(simulated::device_memory(gpu_, kCount * 4 * std::uint64_t(endpoint_.num_ranks())))) {}
  ~Rank() { gpu_.give_stream(stream_); }

  void reduce(int round) {
    for (std::uint64_t i = 0; i < kCount; ++i) values_[i] = own(endpoint_.rank(), round, i);
    run(call_of(Operation::kAllReduce, kCount), Form::kList, {{view(values_, kCount), true, true, {}}});
    for (std::uint64_t i = 0; i < kCount; i += 97) {
      std::int32_t sum = 0;
      for (int rank = 0; rank < endpoint_.num_ranks(); ++rank) sum += own(rank, round, i);
      CHECK_EQUAL(values_[i], sum);
    }
  }

  void gather(int round) {
    const auto n = std::uint64_t(endpoint_.num_ranks());
    for (std::uint64_t i = 0; i < kCount; ++i) values_[i] = own(endpoint_.rank(), round, i);
    std::memset(gathered_, 0xff, kCount * 4 * n);
    run(call_of(Operation::kAllGather, kCount), Form::kSingle,
        {{view(values_, kCount), true, false, {}}, {view(gathered_, kCount * n), false, true, {}}});
    for (std::uint64_t i = 0; i < kCount * n; i += 89) CHECK_EQUAL(gathered_[i], own(int(i / kCount), round, i % kCount));
  }

 private:
  static std::int32_t own(int rank, int round, std::uint64_t i) { return std::int32_t(rank * 1000 + round * 7 + int(i % 31)); }
  static TensorView view(std::int32_t* data, std::uint64_t count) {
    return {reinterpret_cast<std::byte*>(data), DType::kInt32, count, {}, {}};
  }
  void run(Call call, Form form, std::vector<cuda::Operand> operands) {
    call.is_on_device = true;
    DeviceOperation(rank_, std::make_shared<const cuda::Moment>(gpu_, stream_), form, std::move(operands)).run(endpoint_, call);
  }

  Endpoint& endpoint_;
  Gpu& gpu_;
  DeviceRank rank_;
  cuda::CudaStream stream_;
  std::int32_t *values_, *gathered_;
};

// A rank without values of its own, and a stream to call from.
struct BareRank {
  explicit BareRank(const EndpointPtr& of) : endpoint(*of), rank(endpoint, gpu, [](const std::string&) {}) {}
  ~BareRank() { gpu.give_stream(stream); }

  void reduce(std::int32_t* values, std::uint64_t count) {
    Call call = call_of(Operation::kAllReduce, count);
    call.is_on_device = true;
    const TensorView view{reinterpret_cast<std::byte*>(values), DType::kInt32, count, {}, {}};
    DeviceOperation(rank, std::make_shared<const cuda::Moment>(gpu, stream), Form::kList, {{view, true, true, {}}})
        .run(endpoint, call);
  }
  std::int32_t* take(std::uint64_t count) { return reinterpret_cast<std::int32_t*>(simulated::device_memory(gpu, count * 4)); }
  void free(std::int32_t* values) {
    const cuda::Current current(gpu);
    cuda::cuda_driver().check(cuda::cuda_driver().free(std::bit_cast<cuda::CudaPointer>(values)), "free memory");
  }

  Endpoint& endpoint;
  Gpu& gpu = Gpu::at(0);
  DeviceRank rank;
  const cuda::CudaStream stream = gpu.take_stream();
};

void reduce_and_gather(const EndpointPtr& endpoint) {
  Rank rank(endpoint);
  for (int round = 0; round < 40; ++round) {
    rank.reduce(round);
    rank.gather(round);
  }
}

}  // namespace

TEST(data_is_right_between_processes) {
  require_driver();
  for (const int n : {2, 3}) run_processes(small_shape(n), reduce_and_gather);
}

TEST(data_is_right_through_the_host) {
  require_driver();
  const Setting closed("SIMULATED_NO_IPC", "1");
  run_processes(small_shape(3), reduce_and_gather);
}

TEST(data_is_right_however_many_operations_lie_between) {
  require_driver();
  const Setting delay("SIMULATED_DELAY_US", "3000");  // who does not wait for the leader is too early
  run_processes(small_shape(3), [](const EndpointPtr& endpoint) {
    Rank rank(endpoint);
    for (const Seq count : kVeryMany) {
      rank.reduce(1);
      rank.gather(2);
      skip_operations(endpoint, count);
    }
    rank.reduce(3);
    rank.gather(4);
  });
}

// The victim is killed at any point of the protocol; it is named, and nobody waits for long.
TEST(a_killed_rank_is_named_wherever_it_was) {
  require_driver();
  require_fork();
  std::minstd_rand random(11);
  for (int turn = 0; turn < 24; ++turn) {
    const int victim = turn % 3;
    const Segment segment = create_group_segment(small_shape(3));
    std::vector<Child> children;
    for (int rank = 0; rank < 3; ++rank) {
      children.push_back(fork_rank(segment, rank, [&](const EndpointPtr& endpoint) {
        Rank own(endpoint);
        try {
          for (int round = 0; round < 1'000'000; ++round) own.reduce(round);
        } catch (const Trouble& trouble) {
          CHECK(trouble.kind == FaultKind::kPeerDied);
          CHECK_EQUAL(trouble.culprit, victim);
        }
      }));
    }
    const Layout layout = layout_of(segment);
    wait_until([&] { return layout.progress(0).finished.load() > 20; });
    usleep(random() % 3000);
    children[std::size_t(victim)].kill();
    for (int rank = 0; rank < 3; ++rank) {
      const int status = children[std::size_t(rank)].wait(15);
      if (rank != victim) CHECK_EQUAL(status, 0);
    }
  }
}

TEST(memory_that_its_owner_has_freed_is_closed_by_the_leader) {
  require_driver();
  run_processes(small_shape(3), [](const EndpointPtr& endpoint) {
    BareRank own(endpoint);
    for (int round = 0; round < 50; ++round) {
      std::int32_t* values = own.take(kCount);
      std::fill_n(values, kCount, round);
      own.reduce(values, kCount);
      CHECK_EQUAL(values[kCount - 1], 3 * round);
      CHECK(own.rank.imports().size() <= 8);  // of two peers
      own.free(values);
    }
  });
}

TEST(memory_that_was_freed_is_told_of_again_after_an_operation_that_was_refused) {
  require_driver();
  run_processes(small_shape(2), [](const EndpointPtr& endpoint) {
    BareRank own(endpoint);
    std::int32_t *first = own.take(16), *second = own.take(16);
    own.reduce(first, 16);
    own.free(first);
    own.reduce(second, 16);  // now the owner knows
    if (endpoint->rank() == 0) {
      endpoint->refuse(call_of(Operation::kAllReduce, 16), "no");
      CHECK_EQUAL(own.rank.imports().size(), std::size_t(2));
    } else {
      const Trouble trouble = trouble_of([&] { own.reduce(second, 16); });
      CHECK(!trouble.is_fatal);
    }
    own.reduce(second, 16);
    CHECK_EQUAL(own.rank.imports().size(), std::size_t(endpoint->rank() == 0 ? 1 : 0));
  });
}

TEST(the_rank_whose_stream_was_last_leads) {
  require_driver();
  run_processes(small_shape(3), [](const EndpointPtr& endpoint) {
    BareRank own(endpoint);
    std::int32_t* values = own.take(16);
    const auto keep_busy = [&] {
      const Setting delay("SIMULATED_DELAY_US", "30000");
      const cuda::Current current(own.gpu);
      const auto at = std::bit_cast<cuda::CudaPointer>(values);
      cuda::cuda_driver().check(cuda::cuda_driver().copy_on_device(at, at, 64, own.stream), "keep the stream busy");
    };
    std::size_t opened = 0;
    const auto leads = [&] { return own.rank.imports().size() > std::exchange(opened, own.rank.imports().size()); };
    own.reduce(values, 16);
    CHECK_EQUAL(leads(), endpoint->rank() == 0);  // nobody had to wait
    if (endpoint->rank() == 2) keep_busy();
    own.reduce(values, 16);
    CHECK_EQUAL(leads(), endpoint->rank() == 2);
    if (endpoint->rank() != 0) keep_busy();
    own.reduce(values, 16);
    const bool is_first_time = leads();
    CHECK(!is_first_time || endpoint->rank() == 1);  // whichever of the two it was
  });
}

// Threads last: a process that has used CUDA can't fork any more that do.

TEST(data_is_right_between_threads) {
  require_driver();
  for (const int n : {1, 2, 5}) run_threads(small_shape(n), reduce_and_gather);
}

TEST(data_is_right_between_threads_when_the_gpu_is_slow) {
  require_driver();
  const Setting delay("SIMULATED_DELAY_US", "300");
  run_threads(small_shape(3), reduce_and_gather);
}

TEST(an_abort_ends_all_threads_wherever_they_are) {
  require_driver();
  const Setting delay("SIMULATED_DELAY_US", "200");
  std::minstd_rand random(7);
  for (int turn = 0; turn < 10; ++turn) {
    const useconds_t pause = random() % 4000;
    run_threads(small_shape(3), [&](const EndpointPtr& endpoint) {
      Rank rank(endpoint);
      try {
        for (int round = 0; round < 100'000; ++round) {
          rank.reduce(round);
          if (endpoint->rank() == 1 && round == 3) {
            usleep(pause);
            set_fault(endpoint->layout(), FaultKind::kAborted, 1, 1, endpoint->seq());
          }
        }
      } catch (const Trouble& trouble) {
        CHECK(trouble.kind == FaultKind::kAborted);
        return;
      }
      throw check::Failure("nobody heard of the abort");
    });
  }
}
