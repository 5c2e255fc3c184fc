// Ranks that outnumber the cores: who moves, and who stays.
#include "../core/spread.hpp"

#include "ranks.hpp"

using namespace ranks;

namespace {

constexpr int kRanks = 4;

// Four ranks of this process, with what they say of where they are; this thread is put on a core, and freed at the end.
class Scene {
 public:
  Scene() : segment_(create_group_segment(small_shape(kRanks))) {
    CHECK(sched_getaffinity(0, sizeof(allowed_), &allowed_) == 0);
    for (int core = 0; core < CPU_SETSIZE && second < 0; ++core) {
      if (CPU_ISSET(core, &allowed_)) (first < 0 ? first : second) = core;
    }
    if (second < 0) throw check::Skipped("needs two cores");
    for (int rank = 0; rank < kRanks; ++rank) endpoints_.push_back(endpoint_on(segment_, rank));
  }
  ~Scene() { sched_setaffinity(0, sizeof(allowed_), &allowed_); }

  // Where this thread is after it has been on the first core as `rank`, with its peers as told. The kernel may move it as well, but
  // not every time.
  int core_after(int rank, const std::vector<int>& told) {
    int num_moved = 0;
    for (int attempt = 0; attempt < 9; ++attempt) {
      for (int peer = 0; peer < kRanks; ++peer) layout().progress(peer).core.store(told[std::size_t(peer)]);
      only({first});
      only({first, second});
      Spread(layout(), rank, kRanks).settle(monotonic_ns());
      num_moved += sched_getcpu() == second;
      cpu_set_t after;
      CHECK(sched_getaffinity(0, sizeof(after), &after) == 0);
      CHECK_EQUAL(CPU_COUNT(&after), 2);
    }
    return num_moved >= 5 ? second : first;
  }
  void let_go(int rank) { endpoints_[std::size_t(rank)].reset(); }

  int first = -1, second = -1;

 private:
  const Layout& layout() const { return endpoints_[kRanks - 1]->layout(); }
  void only(const std::vector<int>& cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : cores) CPU_SET(core, &set);
    CHECK(sched_setaffinity(0, sizeof(set), &set) == 0);
  }

  Segment segment_;
  std::vector<EndpointPtr> endpoints_;
  cpu_set_t allowed_;
};

}  // namespace

TEST(the_highest_rank_of_a_full_core_moves) {
  Scene at;
  CHECK_EQUAL(at.core_after(3, {at.first, at.first, at.first, at.first}), at.second);
  CHECK_EQUAL(at.core_after(2, {at.first, at.first, at.first, at.second}), at.second);
}

TEST(the_others_stay) {
  Scene at;
  CHECK_EQUAL(at.core_after(2, {at.first, at.first, at.first, at.first}), at.first);
}

TEST(nobody_moves_where_ranks_are_even) {
  Scene at;
  CHECK_EQUAL(at.core_after(2, {at.first, at.second, at.first, at.second}), at.first);
  CHECK_EQUAL(at.core_after(3, {at.second, at.second, at.first, at.first}), at.first);
}

TEST(one_more_than_elsewhere_is_even) {
  Scene at;
  at.let_go(0);
  CHECK_EQUAL(at.core_after(2, {at.first, at.first, at.first, at.second}), at.first);
}
