// The memory of a group, and who may come into it.
#include "../core/segment.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "../core/collectives/collectives.hpp"
#include "ranks.hpp"

using namespace ranks;

namespace {

template <class Error, class Run>
bool throws(const Run& run) {
  try {
    run();
  } catch (const Error&) {
    return true;
  }
  return false;
}

std::size_t num_files(const char* folder) {
  std::size_t count = 0;
  DIR* directory = opendir(folder);
  if (directory == nullptr) return 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

}  // namespace

TEST(what_one_mapping_writes_the_other_reads) {
  Segment first = Segment::create("test", 3 * 4096);
  Segment second = Segment::attach(first.descriptor());
  CHECK_EQUAL(second.size(), 3u * 4096);
  first.data()[5000] = std::byte{42};
  CHECK(second.data()[5000] == std::byte{42});
  first.close_descriptor();
  CHECK_EQUAL(first.descriptor(), -1);
  second.data()[1] = std::byte{7};
  CHECK(first.data()[1] == std::byte{7});
}

TEST(nothing_gets_a_name_and_nothing_stays_open) {
  const std::size_t names = num_files("/dev/shm"), open_files = num_files("/proc/self/fd");
  for (int i = 0; i < 50; ++i) {
    const Segment segment = create_group_segment(small_shape(3));
    CHECK_EQUAL(num_files("/dev/shm"), names);
    const auto endpoint = endpoint_on(segment, 0);
    endpoint->peers().find_dead();
  }
  CHECK_EQUAL(num_files("/proc/self/fd"), open_files);
}

TEST(nobody_can_cut_or_open_the_file) {
  const Segment segment = Segment::create("test", 4096);
  CHECK(ftruncate(segment.descriptor(), 0) != 0);
  CHECK(ftruncate(segment.descriptor(), 8192) != 0);
  struct stat status{};
  CHECK_EQUAL(fstat(segment.descriptor(), &status), 0);
  CHECK_EQUAL(status.st_mode & 0777, 0600u);
}

TEST(too_much_memory_is_refused_with_the_numbers) {
  const std::size_t needed = std::size_t(1) << 50;
  try {
    Segment::create("test", needed);
    CHECK(!"created");
  } catch (const OutOfMemory& error) {
    CHECK_EQUAL(error.needed_bytes, needed);
    CHECK(error.available_bytes < needed);
  }
}

TEST(reserved_pages_are_real) {
  const Segment segment = Segment::create("test", 1 << 20, 4096);
  struct stat before{}, after{};
  fstat(segment.descriptor(), &before);
  reserve(segment.data() + 8192, 65536);
  fstat(segment.descriptor(), &after);
  CHECK(after.st_blocks - before.st_blocks >= 65536 / 512);
}

TEST(other_files_are_not_groups) {
  const Segment other = Segment::create("test", 1 << 16);
  CHECK(throws<std::runtime_error>([&] { Endpoint(Segment::attach(other.descriptor()), 0, true); }));
  const Segment tiny = Segment::create("test", 16);
  CHECK(throws<std::runtime_error>([&] { Endpoint(Segment::attach(tiny.descriptor()), 0, true); }));
  CHECK(throws<std::exception>([] { Segment::attach(-1); }));
  const Segment group = create_group_segment(small_shape(2));
  CHECK(throws<std::runtime_error>([&] { Endpoint(Segment::attach(group.descriptor()), 2, true); }));
  CHECK(throws<std::runtime_error>([&] { Endpoint(Segment::attach(group.descriptor()), -1, true); }));
}

TEST(a_rank_that_is_taken_stays_with_its_owner) {
  require_fork();
  const Segment segment = create_group_segment(small_shape(2));
  const auto owner = endpoint_on(segment, 0);
  Child intruder = fork_rank(segment, 0, [](const EndpointPtr&) {});
  const int status = intruder.wait();
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
  CHECK_EQUAL(owner->layout().member(0).pid.load(), getpid());
  const auto peer = endpoint_on(segment, 1);
  CHECK_EQUAL(peer->peers().find_dead(), -1);
}

TEST(leaving_is_seen_and_is_final) {
  const Segment segment = create_group_segment(small_shape(2));
  endpoint_on(segment, 0);
  const auto peer = endpoint_on(segment, 1);
  CHECK(peer->layout().member(0).state.load() == MemberState::kLeft);
  CHECK(throws<std::runtime_error>([&] { Endpoint(Segment::attach(segment.descriptor()), 0, true); }));
}

// A process that can open no more files must not take its peers for dead.
TEST(peers_are_not_dead_because_descriptors_ran_out) {
  require_fork();
  const Segment segment = create_group_segment(small_shape(2));
  Child peer = fork_rank(segment, 1, [](const EndpointPtr& endpoint) {
    barrier(*endpoint, call_of(Operation::kBarrier));
    barrier(*endpoint, call_of(Operation::kBarrier));
  });
  Child poor = fork_rank(segment, 0, [](const EndpointPtr& endpoint) {
    barrier(*endpoint, call_of(Operation::kBarrier));
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &limit);
    CHECK_EQUAL(endpoint->peers().find_dead(), -1);
    barrier(*endpoint, call_of(Operation::kBarrier));
  });
  CHECK_EQUAL(poor.wait(), 0);
  CHECK_EQUAL(peer.wait(), 0);
}

TEST(memory_that_its_owner_can_cut_is_refused) {
  const int open_file = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(ftruncate(open_file, 4096) == 0);
  CHECK(throws<std::runtime_error>([&] { Segment::attach(open_file, Access::kRead); }));
  CHECK(fcntl(open_file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  CHECK_EQUAL(Segment::attach(open_file, Access::kRead).size(), 4096u);
  close(open_file);
}

TEST(sizes_that_contradict_the_file_are_refused) {
  const Segment segment = create_group_segment(small_shape(3));
  Header& header = *reinterpret_cast<Header*>(segment.data());
  const auto is_refused = [&] { return throws<std::runtime_error>([&] { layout_of(segment); }); };
  CHECK(!is_refused());
  for (const std::uint32_t ranks : {0u, 2u, 4u, 1025u, 1u << 31, ~0u}) {
    header.num_ranks = ranks;
    CHECK(is_refused());
  }
  header.num_ranks = 3;
  for (std::uint64_t* const size : {&header.chunk_bytes, &header.eager_bytes, &header.bulk_bytes}) {
    const std::uint64_t right = *size;
    // The last two make products that overflow to something small.
    for (const std::uint64_t wrong : {right + 4096, std::uint64_t{1} << 62, ~std::uint64_t{0}, (std::uint64_t{1} << 63) + right}) {
      *size = wrong;
      CHECK(is_refused());
    }
    *size = right;
  }
  CHECK(!is_refused());
}
