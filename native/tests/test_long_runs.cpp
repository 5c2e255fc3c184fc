// Groups that have run for days: counts of operations beyond 2^31 and 2^32, and processes with hundreds of groups.
#include <dirent.h>

#include "long_runs.hpp"
#include "plain_collectives.hpp"

using namespace ranks;

namespace {

void use_every_step(PlainCollectives<std::int32_t>& plain, int num_ranks) {
  constexpr std::size_t kChunked = 20'011;
  plain.all_reduce(kChunked);
  plain.reduce(kChunked, 1);
  plain.broadcast(kChunked, 0);
  plain.all_gather(std::vector<std::size_t>(std::size_t(num_ranks), kChunked));
  plain.reduce_scatter(std::vector<std::size_t>(std::size_t(num_ranks), kChunked));
  plain.all_to_all([](int from, int to) { return kChunked / std::size_t(1 + from + to); });
  plain.gather(kChunked, 1);
  plain.scatter(kChunked, 0);
}

int num_descriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

}  // namespace

TEST(chunks_are_right_however_many_operations_lie_between) {
  on_threads_and_processes(3, [](const EndpointPtr& endpoint) {
    PlainCollectives<std::int32_t> plain(*endpoint, 31);
    for (const Seq count : kVeryMany) {
      use_every_step(plain, endpoint->num_ranks());
      skip_operations(endpoint, count);
    }
    use_every_step(plain, endpoint->num_ranks());
  });
}

TEST(a_peer_is_watched_by_one_descriptor_in_all_groups) {
  require_fork();
  constexpr std::size_t kGroups = 40;
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < kGroups; ++i) segments.push_back(create_group_segment(small_shape(2)));
  Child peer([&] {
    std::vector<EndpointPtr> endpoints;
    for (const Segment& segment : segments) endpoints.push_back(endpoint_on(segment, 1));
    wait_until([] { return false; });
  });
  std::vector<EndpointPtr> endpoints;
  for (const Segment& segment : segments) {
    endpoints.push_back(endpoint_on(segment, 0));
    wait_until([&] { return endpoints.back()->layout().member(1).state.load() == MemberState::kPresent; });
  }
  const int before = num_descriptors();
  for (const EndpointPtr& endpoint : endpoints) CHECK_EQUAL(endpoint->peers().find_dead(), -1);
  CHECK_EQUAL(num_descriptors(), before + 1);
  for (std::size_t i = 1; i < kGroups; ++i) endpoints[i]->leave();
  CHECK_EQUAL(num_descriptors(), before + 1);
  peer.kill();
  wait_until([&] { return endpoints[0]->peers().find_dead() == 1; });
  endpoints[0]->leave();
  CHECK_EQUAL(num_descriptors(), before);
}
