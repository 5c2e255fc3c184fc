// Messages of device memory, over the driver that PHALANX_CUDA_DRIVER names: a simulated one, whose memory is the host's.
#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "../cuda/messages.hpp"
#include "mail.hpp"
#include "simulated_driver.hpp"

namespace {

using namespace phalanx;
using namespace ranks;
using cuda::Gpu;
using simulated::require_driver, simulated::Setting;

bool is_at(const std::byte* data, const Bytes& expected) { return std::equal(expected.begin(), expected.end(), data); }

// A rank's device mail; memory is taken from the driver and kept until the process ends.
class DeviceRankMail {
 public:
  explicit DeviceRankMail(const EndpointPtr& endpoint)
      : mailbox(endpoint), mail(endpoint, mailbox, [](const std::string&) {}), gpu_(Gpu::at(0)), stream_(gpu_.take_stream()) {}
  ~DeviceRankMail() {
    mailbox.close();
    mail.close();
  }

  std::byte* memory(std::size_t bytes) { return simulated::device_memory(gpu_, bytes); }
  std::byte* memory(const Bytes& bytes) {
    std::byte* address = memory(bytes.size());
    if (!bytes.empty()) std::memcpy(address, bytes.data(), bytes.size());
    return address;
  }
  void free(std::byte* address) {
    const cuda::Current current(gpu_);
    cuda::cuda_driver().check(cuda::cuda_driver().free(std::bit_cast<cuda::CudaPointer>(address)), "free memory");
  }
  // Written by the stream, after what is on it: with SIMULATED_DELAY_US much later than the call.
  void write(std::byte* to, const Bytes& bytes) {
    const cuda::Current current(gpu_);
    const auto address = std::bit_cast<cuda::CudaPointer>(to);
    cuda::cuda_driver().check(cuda::cuda_driver().copy_from_host(address, bytes.data(), bytes.size(), stream_), "copy");
  }
  std::shared_ptr<cuda::DeviceMessage> start(Operation operation, int peer, std::uint64_t tag, TensorView view, bool is_async,
                                               double timeout_s = 20) {
    Call call = call_of(operation, view.count, view.dtype, peer, timeout_s);
    call.tag = tag;
    call.is_async = is_async;
    call.size_bytes = view.bytes();
    return mail.start(call, view, std::make_shared<const cuda::Moment>(gpu_, stream_));
  }
  std::shared_ptr<cuda::DeviceMessage> start(Operation operation, int peer, std::uint64_t tag, std::byte* data,
                                               std::size_t bytes, bool is_async, double timeout_s = 20) {
    return start(operation, peer, tag, TensorView{data, DType::kUInt8, bytes, {}, {}}, is_async, timeout_s);
  }
  void finish(const std::shared_ptr<cuda::DeviceMessage>& message) {
    CHECK(mailbox.wait(message, message->call.deadline_ns, true));
  }
  void send(int peer, std::uint64_t tag, const Bytes& bytes, double timeout_s = 20) {
    finish(start(Operation::kSend, peer, tag, memory(bytes), bytes.size(), false, timeout_s));
  }
  int receive(int peer, std::uint64_t tag, const Bytes& expected, double timeout_s = 20) {
    std::byte* data = memory(expected.size());
    const auto message = start(Operation::kRecv, peer, tag, data, expected.size(), false, timeout_s);
    finish(message);
    CHECK(is_at(data, expected));
    return message->source;
  }

  Mailbox mailbox;
  cuda::DeviceMail mail;

 private:
  Gpu& gpu_;
  cuda::CudaStream stream_;
};

constexpr std::size_t kSmall = 2048;  // the most of small_shape() that does not wait for a receive
const std::size_t kSizes[] = {0, 1, 4, kSmall - 1, kSmall, kSmall + 1, 3 << 20};

void exchange_all_sizes(const EndpointPtr& endpoint) {
  DeviceRankMail mail(endpoint);
  const int n = endpoint->num_ranks(), next = (endpoint->rank() + 1) % n, before = (endpoint->rank() + n - 1) % n;
  for (std::size_t i = 0; i < std::size(kSizes); ++i) {
    const Bytes expected = message_of(std::uint64_t(before), kSizes[i]);
    std::byte* data = mail.memory(kSizes[i]);
    const auto receive = mail.start(Operation::kRecv, before, i, data, kSizes[i], true);
    mail.send(next, i, message_of(std::uint64_t(endpoint->rank()), kSizes[i]));
    mail.finish(receive);
    CHECK_EQUAL(receive->source, before);
    CHECK(is_at(data, expected));
  }
}

// From rank 0 to the other one.
Operation one_way(const EndpointPtr& endpoint) { return endpoint->rank() == 0 ? Operation::kSend : Operation::kRecv; }

// Both ranks leave together: whoever waits for a message of a rank that has left hears of that instead.
void meet(DeviceRankMail& mail, int peer) {
  mail.send(peer, kDoneTag, Bytes(1));
  mail.receive(peer, kDoneTag, Bytes(1));
}

}  // namespace

TEST(messages_of_all_sizes_arrive_around_a_ring) {
  require_driver();
  if (kCanFork) {
    run_processes(small_shape(2), exchange_all_sizes);
    run_processes(small_shape(3), exchange_all_sizes);
  }
}

TEST(messages_go_through_the_host_when_memory_cant_be_shared) {
  require_driver();
  for (const char* name : {"SIMULATED_NO_IPC", "SIMULATED_NOT_EXPORTABLE"}) {
    const Setting setting(name, "1");
    run_processes(small_shape(2), exchange_all_sizes);
  }
}

TEST(receives_find_their_messages_in_any_order) {
  require_driver();
  run_processes(small_shape(3), [](const EndpointPtr& endpoint) {
    DeviceRankMail mail(endpoint);
    constexpr std::size_t kLarge = 100'000;
    if (endpoint->rank() != 0) {
      std::vector<std::shared_ptr<cuda::DeviceMessage>> sends;
      for (std::uint64_t tag : {1, 2, 3}) {
        const Bytes data = message_of(tag, tag % 2 == 0 ? kLarge : 16);
        sends.push_back(mail.start(Operation::kSend, 0, tag, mail.memory(data), data.size(), true));
      }
      for (const auto& send : sends) mail.finish(send);
      return;
    }
    for (std::uint64_t tag : {3, 2, 1}) {
      const Bytes expected = message_of(tag, tag % 2 == 0 ? kLarge : 16);
      const int first = mail.receive(kAnySource, tag, expected), second = mail.receive(kAnySource, tag, expected);
      CHECK_EQUAL(first + second, 3);
    }
  });
}

TEST(an_asynchronous_message_to_oneself_arrives) {
  require_driver();
  run_processes(small_shape(1), [](const EndpointPtr& endpoint) {
    DeviceRankMail mail(endpoint);
    for (const std::size_t size : kSizes) {
      const Bytes bytes = message_of(1, size);
      std::byte* data = mail.memory(size);
      const auto send = mail.start(Operation::kSend, 0, 7, mail.memory(bytes), size, true);
      const auto receive = mail.start(Operation::kRecv, 0, 7, data, size, true);
      wait_until([&] { return send->is_done.load() && receive->is_done.load(); });  // nobody waits for them
      mail.finish(send);
      mail.finish(receive);
      CHECK(is_at(data, bytes));
    }
  });
}

TEST(a_small_send_does_not_wait_for_its_receive) {
  require_driver();
  run_processes(small_shape(2), [](const EndpointPtr& endpoint) {
    DeviceRankMail mail(endpoint);
    const int other = 1 - endpoint->rank();
    mail.send(other, 0, message_of(1, kSmall));  // both send first
    mail.receive(other, 0, message_of(1, kSmall));
  });
}

TEST(a_message_of_another_size_or_type_fails_and_the_next_one_arrives) {
  require_driver();
  run_processes(small_shape(2), [](const EndpointPtr& endpoint) {
    DeviceRankMail mail(endpoint);
    for (const std::size_t sent : {std::size_t(0), std::size_t(16), std::size_t(100'000)}) {
      if (endpoint->rank() == 0) {
        const auto send = [&] { mail.send(1, 0, message_of(1, sent)); };
        if (sent <= kSmall) send();
        else CHECK(trouble_of(send).kind == FaultKind::kMismatch);
        mail.send(1, 0, message_of(2, 64));
      } else {
        const Trouble trouble = trouble_of([&] { mail.receive(0, 0, message_of(1, 32)); });
        CHECK(trouble.kind == FaultKind::kMismatch && !trouble.is_fatal);
        CHECK_EQUAL(trouble.detail.found_bytes, sent);
        CHECK_EQUAL(trouble.detail.wanted_bytes, std::size_t(32));
        mail.receive(0, 0, message_of(2, 64));
      }
      meet(mail, 1 - endpoint->rank());
    }
  });
}

TEST(tensors_in_pieces_are_packed_and_unpacked) {
  require_driver();
  run_processes(small_shape(2), [](const EndpointPtr& endpoint) {
    DeviceRankMail mail(endpoint);
    for (const std::int64_t rows : {5, 700}) {  // small and large, each row eight bytes apart from the next
      const auto count = std::size_t(rows) * 8;
      const Bytes bytes = message_of(3, count * 2);
      std::byte* data = mail.memory(endpoint->rank() == 0 ? bytes : Bytes(count * 2));
      const TensorView view{data, DType::kUInt8, count, {rows, 8}, {16, 1}};
      mail.finish(mail.start(one_way(endpoint), 1 - endpoint->rank(), 0, view, false));
      for (std::size_t i = 0; i < count * 2; ++i) {
        const bool is_expected = i % 16 < 8 || endpoint->rank() == 0;
        CHECK(data[i] == (is_expected ? bytes[i] : std::byte(0)));
      }
      meet(mail, 1 - endpoint->rank());
    }
  });
}

TEST(data_is_read_and_written_after_what_the_streams_do) {
  require_driver();
  const Setting setting("SIMULATED_DELAY_US", "30000");
  run_processes(small_shape(2), [](const EndpointPtr& endpoint) {
    DeviceRankMail mail(endpoint);
    for (const std::size_t size : {std::size_t(16), std::size_t(100'000)}) {
      const Bytes good = message_of(1, size), old = message_of(2, size);
      std::byte* data = mail.memory(size);
      mail.write(data, endpoint->rank() == 0 ? good : old);  // the receiver's must not come after the message
      mail.finish(mail.start(one_way(endpoint), 1 - endpoint->rank(), 0, data, size, false));
      CHECK(is_at(data, good));
      meet(mail, 1 - endpoint->rank());
    }
  });
}

TEST(a_large_send_that_nobody_receives_times_out) {
  require_driver();
  run_processes(small_shape(2), [](const EndpointPtr& endpoint) {
    DeviceRankMail mail(endpoint);
    if (endpoint->rank() == 0) {
      const Trouble trouble = trouble_of([&] { mail.send(1, 0, message_of(1, 100'000), 0.3); });
      CHECK(trouble.kind == FaultKind::kTimeout && trouble.culprit == 1 && trouble.is_fatal);
    } else {
      const Trouble trouble = trouble_of([&] { mail.receive(0, 1, message_of(1, 100'000)); }, 2);
      CHECK(trouble.kind == FaultKind::kTimeout && trouble.is_fatal);
    }
  });
}

TEST(a_receive_that_finds_nothing_times_out_and_the_group_goes_on) {
  require_driver();
  run_processes(small_shape(2), [](const EndpointPtr& endpoint) {
    DeviceRankMail mail(endpoint);
    std::byte* data = mail.memory(64);
    const auto receive = mail.start(Operation::kRecv, 1 - endpoint->rank(), 5, data, 64, true, 0.2);
    wait_until([&] { return receive->is_done.load(); });
    CHECK(receive->trouble && receive->trouble->kind == FaultKind::kTimeout && !receive->trouble->is_fatal);
    meet(mail, 1 - endpoint->rank());
  });
}

TEST(a_killed_receiver_ends_the_send) {
  require_driver();
  require_fork();
  const Segment segment = create_group_segment(small_shape(2));
  const Child victim = fork_rank(segment, 1, [](const EndpointPtr& endpoint) {
    DeviceRankMail mail(endpoint);
    mail.receive(0, 9, Bytes(16));
    raise(SIGKILL);
  });
  Child sender = fork_rank(segment, 0, [](const EndpointPtr& endpoint) {
    DeviceRankMail mail(endpoint);
    mail.send(1, 9, Bytes(16));
    const Trouble trouble = trouble_of([&] { mail.send(1, 0, message_of(1, 100'000)); });
    CHECK(trouble.kind == FaultKind::kPeerDied && trouble.culprit == 1);
  });
  CHECK_EQUAL(sender.wait(), 0);
}

TEST(a_signal_ends_a_wait) {
  require_driver();
  run_processes(small_shape(2), [](const EndpointPtr& endpoint) {
    DeviceRankMail mail(endpoint);
    if (endpoint->rank() == 0) {
      const Interruption interruption;
      CHECK(trouble_of([&] { mail.receive(1, 0, Bytes(16)); }).kind == FaultKind::kInterrupted);
    }
    meet(mail, 1 - endpoint->rank());
  });
}

TEST(closing_ends_messages_under_way) {
  require_driver();
  run_processes(small_shape(1), [](const EndpointPtr& endpoint) {
    std::shared_ptr<cuda::DeviceMessage> receive;
    {
      DeviceRankMail mail(endpoint);
      receive = mail.start(Operation::kRecv, 0, 5, mail.memory(64), 64, true);
    }
    CHECK(receive->is_done.load() && receive->trouble && receive->trouble->kind == FaultKind::kAborted);
  });
}

TEST(memory_that_its_owner_has_freed_is_closed_by_all_who_received_from_it) {
  require_driver();
  run_processes(small_shape(3), [](const EndpointPtr& endpoint) {
    DeviceRankMail mail(endpoint);
    constexpr std::size_t kLarge = 100'000;
    for (int i = 0; i < 40; ++i) {
      if (endpoint->rank() != 0) {
        mail.receive(0, 0, Bytes(kLarge));
        continue;
      }
      std::byte* data = mail.memory(Bytes(kLarge));
      for (int peer : {1, 2}) mail.finish(mail.start(Operation::kSend, peer, 0, data, kLarge, false));
      mail.free(data);
    }
    if (endpoint->rank() == 0) return;
    void* library = dlopen(cuda::cuda_paths().driver.c_str(), RTLD_NOW);
    const auto num_mappings = reinterpret_cast<long (*)()>(dlsym(library, "sim_num_mappings"));
    CHECK(num_mappings() >= 1 && num_mappings() <= 4);
  });
}

// Threads come last: whoever has used the driver can't fork ranks that use it.
TEST(messages_of_all_sizes_arrive_between_threads) {
  require_driver();
  run_threads(small_shape(2), exchange_all_sizes);
  run_threads(small_shape(3), exchange_all_sizes);
}

TEST(many_messages_at_once_arrive_between_threads) {
  require_driver();
  run_threads(small_shape(3), [](const EndpointPtr& endpoint) {
    DeviceRankMail mail(endpoint);
    std::vector<std::shared_ptr<cuda::DeviceMessage>> messages;
    std::vector<std::pair<std::byte*, Bytes>> expected;
    for (std::uint64_t i = 0; i < 60; ++i) {
      for (int peer = 0; peer < endpoint->num_ranks(); ++peer) {
        const std::size_t size = i % 3 == 0 ? 100'000 : i * 40;
        const Bytes own = message_of(i * 3 + std::uint64_t(endpoint->rank()), size);
        messages.push_back(mail.start(Operation::kSend, peer, i % 5, mail.memory(own), size, true));
        expected.emplace_back(mail.memory(size), message_of(i * 3 + std::uint64_t(peer), size));
        messages.push_back(mail.start(Operation::kRecv, peer, i % 5, expected.back().first, size, true));
      }
    }
    for (const auto& message : messages) mail.finish(message);
    for (const auto& [data, bytes] : expected) CHECK(is_at(data, bytes));
  });
}
