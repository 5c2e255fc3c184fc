#include "rank.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "../core/platform.hpp"

namespace phalanx::device {
namespace {

constexpr std::int64_t kSpinNs = 200'000, kYieldNs = 2'000'000;  // then sleep: the GPU is busy with something long
constexpr useconds_t kSleepUs = 50;
constexpr std::int64_t kHoldNs = 60'000'000'000;  // how long to wait for a leader that has claimed
constexpr std::int64_t kGraceNs = 100'000'000;    // a leader knows better why it is late: let it be the first to say so
constexpr std::uint64_t kVectorBytes = 16;
constexpr unsigned kVectorsPerThread = 4;
constexpr unsigned kBlocksPerMultiprocessor = 8;

std::uint64_t first_word(const CudaUuid& uuid) {
  std::uint64_t words[2];
  std::memcpy(words, uuid.bytes, sizeof words);
  return words[0] ^ words[1];
}

std::uint64_t own_process() {
  return std::uint64_t(getpid()) << 32 ^ process_start_ticks(getpid()) ^ own_pid_namespace() << 16;
}

// The lowest rank on each GPU.
std::vector<int> leaders_of(const std::vector<Card>& cards) {
  std::set<std::uint64_t> led;
  std::vector<int> leaders;
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    if (led.insert(cards[rank].header.gpu).second) leaders.push_back(int(rank));
  }
  return leaders;
}

bool can_all_share(const std::vector<Card>& cards) {
  const bool is_one_process =
      std::ranges::all_of(cards, [&](const Card& card) { return card.header.process == cards[0].header.process; });
  return std::ranges::all_of(cards, [&](const Card& card) {
    return card.header.sharing == Sharing::kHandles || (card.header.sharing == Sharing::kPointers && is_one_process);
  });
}

const char* reduction_kernel(std::size_t num_sources) {
  switch (num_sources) {
    case 2: return "reduce_2";
    case 4: return "reduce_4";
    case 8: return "reduce_8";
    default: return "reduce_any";
  }
}

// A sum of complex numbers is the sum of their parts.
DType part_type(DType dtype) {
  if (dtype == DType::kComplex64) return DType::kFloat32;
  return dtype == DType::kComplex128 ? DType::kFloat64 : dtype;
}

// Calls `look` until it says true: at first all the time, then now and then. `look` may throw.
template <class Look>
void poll(bool is_crowded, const Look& look) {
  const std::int64_t start = monotonic_ns();
  for (;;) {
    if (look()) return;
    const std::int64_t passed = monotonic_ns() - start;
    if (passed > kYieldNs) usleep(kSleepUs);
    else if (passed > kSpinNs || is_crowded) sched_yield();
    else cpu_relax();
  }
}

}  // namespace

DeviceRank::DeviceRank(Endpoint& endpoint, Gpu& gpu, Warn warn)
    : endpoint_(endpoint), gpu_(gpu), warn_(std::move(warn)), stream_(gpu.take_stream()), process_(own_process()),
      is_single_process_(endpoint.layout().member(endpoint.rank()).is_thread.load() != 0), imports_(gpu) {}

bool DeviceRank::run(const Call& call, const Operands& operands) {
  const Current current(gpu_);
  try {
    if (!is_single_process_) await(call, operands.ready->event(), endpoint_.rank());
    const bool is_done = decide(call, meet(call, operands));
    endpoint_.end();
    return is_done;
  } catch (const Trouble&) {
    release();
    hold_until_untouched();
    throw;
  }
}

// After the group's fault was set: what peers wait for is over, one way or another.
void DeviceRank::release() noexcept {
  if (!endpoint_.is_at_step(endpoint_.rank(), kClaimed)) return;
  if (const CudaDriver* driver = cuda_if_usable()) driver->synchronize_stream(stream_);
  endpoint_.post_step(kReleased);
}

void DeviceRank::hold_until_untouched() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the fault is out before the words are looked at
  const std::int64_t until = monotonic_ns() + kHoldNs;
  for (int leader = 0; leader < endpoint_.num_ranks(); ++leader) {
    while (leader != endpoint_.rank() && endpoint_.is_at_step(leader, kClaimed) && monotonic_ns() < until) {
      endpoint_.peers().find_dead();
      if (endpoint_.layout().member(leader).state.load() != MemberState::kPresent) break;
      usleep(kSleepUs);
    }
  }
}

void DeviceRank::await(const Call& call, CudaEvent event, int rank) {
  if (event == nullptr) return;
  const Deadline deadline(call.deadline_ns, call.paused_ns);
  int looks = 0;
  poll(endpoint_.is_crowded(), [&] {
    const CudaResult result = cuda().query_event(event);
    if (result != kCudaNotReady) {
      cuda().check(result, "finish the work before the operation");
      return true;
    }
    if (++looks % 64 == 0) {
      endpoint_.throw_if_faulty();
      if (deadline.left_ns() <= 0) endpoint_.fail(FaultKind::kTimeout, rank, "stream");
      if (Endpoint::is_interrupted()) endpoint_.fail(FaultKind::kInterrupted, endpoint_.rank(), "");
    }
    return false;
  });
}

void DeviceRank::finish() {
  poll(endpoint_.is_crowded(), [&] {
    const CudaResult result = cuda().query_stream(stream_);
    if (result == kCudaNotReady) return false;
    cuda().check(result, "finish the operation");
    return true;
  });
}

Card DeviceRank::make_card(const Operands& operands) {
  Card card;
  card.header.gpu = first_word(gpu_.uuid());
  card.header.process = process_;
  card.header.ordinal = gpu_.ordinal();
  card.header.form = std::uint32_t(operands.form);
  card.header.sharing = is_single_process_ ? Sharing::kPointers : can_share_ ? Sharing::kHandles : Sharing::kNotPossible;
  if (is_single_process_) {
    card.header.ready = std::bit_cast<std::uint64_t>(operands.ready->event());
    for (const Region& region : operands.regions)
      card.regions.push_back({std::bit_cast<std::uint64_t>(region.data), region.bytes, 0});
  } else if (can_share_ && !exports_.add(card, operands.regions)) {
    card.header.sharing = Sharing::kNotPossible;
    warn_("CUDA tensors of this rank go through the host, which is slow: " + exports_.why());
  }
  card.header.retired = exports_.take_retired();
  card.header.num_buffers = std::uint32_t(card.buffers.size());
  card.header.num_regions = std::uint32_t(card.regions.size());
  if (card.bytes() <= kSlotBytes) return card;
  card.buffers.clear();
  card.regions.clear();
  card.header.num_buffers = card.header.num_regions = 0;
  card.header.sharing = Sharing::kNotPossible;
  warn_("CUDA tensors of so many ranks, or in so long a list, go through the host, which is slow");
  return card;
}

std::vector<Card> DeviceRank::meet(const Call& call, const Operands& operands) {
  const Card own = make_card(operands);
  const std::vector<std::byte> packed = own.pack();
  endpoint_.publish(call, packed.data(), packed.size(), packed.size());
  endpoint_.await_arrivals(call);
  std::vector<Card> cards;
  for (int rank = 0; rank < endpoint_.num_ranks(); ++rank) {
    const std::size_t bytes = endpoint_.layout().post(rank, endpoint_.seq()).extra;
    cards.push_back(rank == endpoint_.rank() ? own : Card::unpack(endpoint_.payload(rank, bytes), bytes));
    if (cards.back().header.process != own.header.process) is_single_process_ = false;
  }
  if (imports_.size() != 0) {
    for (std::size_t rank = 0; rank < cards.size(); ++rank) imports_.forget(int(rank), cards[rank].header.retired);
    imports_.trim();
  }
  return cards;
}

bool DeviceRank::decide(const Call& call, const std::vector<Card>& cards) {
  if (!can_all_share(cards)) return false;
  const std::vector<int> leaders = leaders_of(cards);
  const bool is_leader = std::ranges::find(leaders, endpoint_.rank()) != leaders.end();
  try {
    if (is_leader && !lead(call, cards, leaders)) return agree_to_stage(call);
    return follow(call, leaders) || agree_to_stage(call);
  } catch (const DeviceProblem& problem) {
    endpoint_.fail(FaultKind::kPeerFailed, endpoint_.rank(), problem.what());
  }
}

bool DeviceRank::lead(const Call& call, const std::vector<Card>& cards, const std::vector<int>& leaders) {
  std::vector<Side> sides;
  try {
    sides = resolve(cards);
  } catch (const DeviceProblem& problem) {
    cannot_share(problem.what());
    endpoint_.post_step(kUnopened);
    return false;
  }
  Entries entries;
  try {
    entries = make_entries(call, sides);
  } catch (const SizesDiffer& sizes) {
    endpoint_.fail(FaultKind::kMismatch, sizes.rank,
                   "sizes " + std::to_string(sizes.given_bytes) + " " + std::to_string(sizes.expected_bytes));
  }
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    if (cards[rank].header.ready != 0) await(call, std::bit_cast<CudaEvent>(cards[rank].header.ready), int(rank));
  }
  const auto part = std::ranges::find(leaders, endpoint_.rank()) - leaders.begin();
  if (leaders.size() > 1)
    keep_slice(entries, is_reduction(call.operation) ? item_bytes(call.dtype) : 1, int(part), int(leaders.size()));
  endpoint_.post_step(kClaimed);
  for (const int leader : leaders) {
    if (leader == endpoint_.rank()) continue;
    endpoint_.await_step(call, kClaimed, leader, leader + 1);
    if (has_not_opened(leader)) return false;
  }
  endpoint_.throw_if_faulty();
  launch(call, entries);
  finish();
  endpoint_.post_step(kDone);
  return true;
}

bool DeviceRank::has_not_opened(int leader) const noexcept {
  return endpoint_.is_at_step(leader, kUnopened) || endpoint_.is_at_step(leader, kSeen);
}

bool DeviceRank::follow(const Call& call, const std::vector<int>& leaders) {
  Call claiming = call, claimed = call;
  claiming.deadline_ns += kGraceNs;
  claimed.deadline_ns = std::max(call.deadline_ns, monotonic_ns()) + kHoldNs;
  for (const int leader : leaders) {
    if (leader == endpoint_.rank()) continue;
    endpoint_.await_step(claiming, kClaimed, leader, leader + 1);
    endpoint_.await_step(claimed, kDone, leader, leader + 1);
    if (has_not_opened(leader)) return false;
    if (endpoint_.is_at_step(leader, kReleased)) endpoint_.throw_if_faulty();
  }
  return true;
}

bool DeviceRank::agree_to_stage(const Call& call) {
  endpoint_.post_step(kSeen);
  endpoint_.await_step(call, kSeen, 0, endpoint_.num_ranks());
  return false;
}

std::vector<Side> DeviceRank::resolve(const std::vector<Card>& cards) {
  std::vector<Side> sides;
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    const Card& card = cards[rank];
    Side side;
    side.form = Form(card.header.form);
    side.factor = endpoint_.layout().post(int(rank), endpoint_.seq()).factor;
    const bool is_own_process = card.header.process == process_;
    if (is_own_process && card.header.ordinal != gpu_.ordinal()) gpu_.reach(Gpu::at(card.header.ordinal));
    std::vector<CudaPointer> bases;
    for (const CardBuffer& buffer : card.buffers)
      bases.push_back(is_own_process ? buffer.base : imports_.open(int(rank), buffer));
    for (const CardRegion& region : card.regions) {
      const bool is_plain = card.header.sharing == Sharing::kPointers || region.bytes == 0;
      side.addresses.push_back(is_plain ? region.offset : bases.at(region.buffer) + region.offset);
      side.bytes.push_back(region.bytes);
    }
    sides.push_back(std::move(side));
  }
  return sides;
}

void DeviceRank::launch(const Call& call, Entries& entries) {
  ModuleKey key;
  if (is_reduction(call.operation)) {
    key = {ModuleKind::kReduction, part_type(call.dtype), call.op};
    const std::uint64_t parts = item_bytes(call.dtype) / item_bytes(key.dtype);
    for (std::size_t i = 0; i < entries.size(); ++i) entries.first(i) *= parts, entries.last(i) *= parts;
  }
  const std::size_t per_launch = std::max<std::size_t>(kPlanWords / entries.stride(), 1);
  for (std::size_t first = 0; first < entries.size(); first += per_launch)
    launch_batch(key, entries, first, std::min(per_launch, entries.size() - first));
}

void DeviceRank::launch_batch(const ModuleKey& key, Entries& entries, std::size_t first, std::size_t count) {
  Plan plan{};
  plan.num_sources = entries.num_sources;
  plan.num_targets = entries.num_targets;
  plan.stride = entries.stride();
  plan.divisor = double(endpoint_.num_ranks());
  const std::uint64_t* words = &entries.words[first * plan.stride];
  const std::size_t num_words = count * plan.stride;
  std::unique_ptr<Scratch> spill;
  if (num_words <= kPlanWords) {
    std::copy_n(words, num_words, plan.words);
  } else {
    spill = std::make_unique<Scratch>(gpu_, num_words * sizeof *words);
    plan.spill = std::bit_cast<std::uint64_t>(spill->data());
    cuda().check(cuda().copy_from_host(plan.spill, words, num_words * sizeof *words, stream_), "copy to the GPU");
    finish();  // also before `words` go
  }
  std::uint64_t longest = 0;
  for (std::size_t i = first; i < first + count; ++i) longest = std::max(longest, entries.last(i) - entries.first(i));
  const bool reduces = key.kind == ModuleKind::kReduction;
  const std::uint64_t bytes = longest * (reduces ? item_bytes(key.dtype) : 1);
  const std::uint64_t per_block = kThreads * kVectorBytes * kVectorsPerThread;
  const std::uint64_t most = std::max<std::uint64_t>(
      std::uint64_t(gpu_.num_multiprocessors()) * kBlocksPerMultiprocessor / count, 1);
  const auto num_blocks = unsigned(std::clamp<std::uint64_t>((bytes + per_block - 1) / per_block, 1, most));
  const char* kernel = reduces ? reduction_kernel(plan.num_sources) : plan.num_targets == 1 ? "copy_1" : "copy_any";
  gpu_.launch(key, kernel, num_blocks, unsigned(count), &plan, stream_);
  if (spill) spill->keep_until(std::make_shared<const Moment>(gpu_, stream_));
}

void DeviceRank::cannot_share(const std::string& why) {
  can_share_ = false;
  warn_("CUDA tensors of this group go through the host, which is slow: " + why);
}

}  // namespace phalanx::device
