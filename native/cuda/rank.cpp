#include "rank.hpp"

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "../core/platform.hpp"

namespace phalanx::cuda {
namespace {

constexpr std::int64_t kSpinNs = 200'000, kYieldNs = 2'000'000;  // then sleep: the GPU is busy with something long
constexpr useconds_t kSleepUs = 20, kCrowdedSleepUs = 50;
constexpr unsigned long kSlackNs = 1'000;
constexpr std::int64_t kHoldNs = 60'000'000'000;  // how long to wait for a leader that has claimed
constexpr std::int64_t kGraceNs = 100'000'000;    // a leader knows better why it is late: let it be the first to say so
constexpr int kLooksPerQuestion = 64;
constexpr std::uint64_t kVectorBytes = 16;
constexpr unsigned kVectorsPerThread = 4;
constexpr unsigned kBlocksPerMultiprocessor = 8, kBlocksAtOnce = 2;  // as many as kernels/pieces.cu has compiled for

std::uint64_t first_word(const CudaUuid& uuid) {
  std::uint64_t words[2];
  std::memcpy(words, uuid.bytes, sizeof words);
  return words[0] ^ words[1];
}

std::uint64_t own_process() {
  return std::uint64_t(getpid()) << 32 ^ process_start_ticks(getpid()) ^ own_pid_namespace() << 16;
}

Kernel reduction_kernel(std::size_t num_sources) {
  switch (num_sources) {
    case 2: return Kernel::kReduce2;
    case 4: return Kernel::kReduce4;
    case 8: return Kernel::kReduce8;
    default: return Kernel::kReduceAny;
  }
}

// A sum of complex numbers is the sum of their parts.
DType part_type(DType dtype) {
  if (dtype == DType::kComplex64) return DType::kFloat32;
  return dtype == DType::kComplex128 ? DType::kFloat64 : dtype;
}

// While it lives, this thread's sleeps end when they should; by default Linux lets them take 50 us more.
class SharpSleep {
 public:
  SharpSleep() noexcept : slack_ns_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, kSlackNs); }
  ~SharpSleep() {
    if (slack_ns_ > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_ns_));
  }
  SharpSleep(const SharpSleep&) = delete;

 private:
  const int slack_ns_;
};

// Calls `look` until it says true: at first all the time, then now and then. `look` may throw.
template <class Look>
void poll(bool is_crowded, const Look& look) {
  const std::int64_t start = monotonic_ns();
  std::optional<SharpSleep> sharp;
  for (;;) {
    if (look()) return;
    const std::int64_t passed = monotonic_ns() - start;
    if (passed > kYieldNs) {
      if (!sharp) sharp.emplace();
      usleep(is_crowded ? kCrowdedSleepUs : kSleepUs);
    } else if (passed > kSpinNs || is_crowded) {
      sched_yield();
    } else {
      cpu_relax();
    }
  }
}

}  // namespace

DeviceRank::DeviceRank(Endpoint& endpoint, Gpu& gpu, Warn warn)
    : endpoint_(endpoint), gpu_(gpu), warn_(std::move(warn)), stream_(gpu.take_stream()), process_(own_process()),
      is_single_process_(endpoint.layout().member(endpoint.rank()).is_thread.load() != 0), imports_(gpu) {}

bool DeviceRank::run(const Call& call, const Operands& operands) {
  try {
    const std::int64_t ready_ns = is_single_process_ ? 0 : await(call, operands.ready->event(), endpoint_.rank());
    meet(call, operands, ready_ns);
    const bool is_done = decide(call);
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

std::int64_t DeviceRank::await(const Call& call, CudaEvent event, int rank) {
  if (event == nullptr) return 0;
  const Deadline deadline(call.deadline_ns, call.paused_ns);
  int looks = 0;
  poll(endpoint_.is_crowded(), [&] {
    const CudaResult result = cuda_driver().query_event(event);
    if (result != kCudaNotReady) {
      cuda_driver().check(result, "finish the work before the operation");
      return true;
    }
    if (++looks % kLooksPerQuestion == 0) {
      endpoint_.throw_if_faulty();
      if (deadline.left_ns() <= 0) endpoint_.fail(FaultKind::kTimeout, rank, {.awaited = Awaited::kStream});
      if (Endpoint::is_interrupted()) endpoint_.fail(FaultKind::kInterrupted, endpoint_.rank());
    }
    return false;
  });
  return looks == 0 ? 0 : monotonic_ns();
}

void DeviceRank::finish() {
  poll(endpoint_.is_crowded(), [&] {
    const CudaResult result = cuda_driver().query_stream(stream_);
    if (result == kCudaNotReady) return false;
    cuda_driver().check(result, "finish the operation");
    return true;
  });
}

void DeviceRank::fill_card(const Operands& operands, std::int64_t ready_ns) {
  manifest_.clear();
  manifest_.header.gpu = first_word(gpu_.uuid());
  manifest_.header.process = process_;
  manifest_.header.ordinal = std::int8_t(gpu_.ordinal());
  manifest_.header.form = operands.form;
  manifest_.header.sharing = is_single_process_ ? Sharing::kPointers : can_share_ ? Sharing::kHandles : Sharing::kNotPossible;
  manifest_.header.retired = exports_.retired();
  manifest_.header.has_retired = manifest_.header.retired != 0;
  manifest_.header.ready = std::uint64_t(ready_ns);
  manifest_.header.was_busy = ready_ns != 0;
  const char* why = nullptr;
  if (is_single_process_) {
    manifest_.header.ready = std::bit_cast<std::uint64_t>(operands.ready->event());
    manifest_.header.was_busy = manifest_.header.ready != 0;
    for (const Region& region : operands.regions)
      manifest_.regions.push_back({std::bit_cast<std::uint64_t>(region.data), region.bytes, 0});
  } else if (can_share_ && !std::ranges::all_of(operands.regions, [&](const Region& region) { return exports_.add(manifest_, region); })) {
    why = exports_.why().c_str();
  }
  if (why == nullptr && !manifest_.fits()) why = "the group has too many ranks for it, or the list too many tensors";
  if (why == nullptr) return;
  manifest_.regions.clear();
  manifest_.buffers.clear();
  manifest_.handles.clear();
  manifest_.header.sharing = Sharing::kNotPossible;
  warn_(std::string("CUDA tensors of this rank go through the host, which is slow: ") + why);
}

void DeviceRank::meet(const Call& call, const Operands& operands, std::int64_t ready_ns) {
  fill_card(operands, ready_ns);
  manifest_.publish(endpoint_, call);
  endpoint_.await_arrivals(call);  // if somebody was refused nobody reads manifests
  if (manifest_.header.has_retired) exports_.take_retired();
  manifests_.clear();
  for (int rank = 0; rank < endpoint_.num_ranks(); ++rank) manifests_.emplace_back(endpoint_, rank);
  if (is_single_process_)
    is_single_process_ = std::ranges::all_of(manifests_, [&](const ManifestView& manifest) { return manifest.header->process == process_; });
  if (imports_.size() == 0) return;
  for (std::size_t rank = 0; rank < manifests_.size(); ++rank) {
    if (manifests_[rank].header->has_retired) imports_.forget(int(rank), manifests_[rank].header->retired);
  }
  imports_.trim();
}

bool DeviceRank::can_all_share() const noexcept {
  bool are_handles = true, are_pointers = true;
  for (const ManifestView& manifest : manifests_) {
    are_handles = are_handles && manifest.header->sharing == Sharing::kHandles;
    are_pointers = are_pointers && manifest.header->sharing == Sharing::kPointers;
  }
  return are_handles || (are_pointers && is_single_process_);
}

// Alike on all ranks. Threads of one process have the GPU together: there it is always the lowest.
void DeviceRank::find_leaders() {
  const auto since = [&](const ManifestHeader& header) {
    return header.was_busy && header.sharing == Sharing::kHandles ? header.ready : 0;
  };
  leaders_.clear();
  for (std::size_t rank = 0; rank < manifests_.size(); ++rank) {
    const ManifestHeader& own = *manifests_[rank].header;
    const auto header_of = [&](int leader) -> const ManifestHeader& { return *manifests_[std::size_t(leader)].header; };
    const auto leader = std::ranges::find_if(leaders_, [&](int one) { return header_of(one).gpu == own.gpu; });
    if (leader == leaders_.end()) leaders_.push_back(int(rank));
    else if (since(own) > since(header_of(*leader))) *leader = int(rank);
  }
}

bool DeviceRank::decide(const Call& call) {
  const bool can_share = can_all_share();
  if (can_share) find_leaders();
  const bool is_leader = can_share && std::ranges::find(leaders_, endpoint_.rank()) != leaders_.end();
  if (!is_leader) exports_.look_for_freed();
  if (!can_share) return false;
  try {
    if (is_leader && !lead(call)) return agree_to_stage(call);
    return follow(call) || agree_to_stage(call);
  } catch (const DeviceProblem& problem) {
    endpoint_.fail(FaultKind::kPeerFailed, endpoint_.rank(), {problem.what()});
  }
}

bool DeviceRank::lead(const Call& call) {
  try {
    resolve();
  } catch (const DeviceProblem& problem) {
    cannot_share(problem.what());
    endpoint_.post_step(kUnopened);
    return false;
  }
  try {
    make_entries(call, sides_, entries_);
  } catch (const SizesDiffer& sizes) {
    endpoint_.fail(FaultKind::kMismatch, sizes.rank,
                   {.wanted_bytes = sizes.expected_bytes, .found_bytes = sizes.given_bytes});
  }
  for (std::size_t rank = 0; is_single_process_ && rank < manifests_.size(); ++rank) {
    if (manifests_[rank].header->was_busy) await(call, std::bit_cast<CudaEvent>(manifests_[rank].header->ready), int(rank));
  }
  const auto part = std::ranges::find(leaders_, endpoint_.rank()) - leaders_.begin();
  if (leaders_.size() > 1)
    keep_slice(entries_, is_reduction(call.operation) ? item_bytes(call.dtype) : 1, int(part), int(leaders_.size()));
  endpoint_.post_step(kClaimed);
  for (const int leader : leaders_) {
    if (leader == endpoint_.rank()) continue;
    endpoint_.await_step(call, kClaimed, leader, leader + 1);
    if (has_not_opened(leader)) return false;
  }
  endpoint_.throw_if_faulty();
  launch(call);
  exports_.look_for_freed();
  finish();
  endpoint_.post_step(kDone);
  return true;
}

bool DeviceRank::has_not_opened(int leader) const noexcept {
  return endpoint_.is_at_step(leader, kUnopened) || endpoint_.is_at_step(leader, kSeen);
}

bool DeviceRank::follow(const Call& call) {
  Call claiming = call, claimed = call;
  claiming.deadline_ns += kGraceNs;
  claimed.deadline_ns = std::max(call.deadline_ns, monotonic_ns()) + kHoldNs;
  for (const int leader : leaders_) {
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

void DeviceRank::resolve() {
  sides_.resize(manifests_.size());
  for (std::size_t rank = 0; rank < manifests_.size(); ++rank) {
    const ManifestView& manifest = manifests_[rank];
    Side& side = sides_[rank];
    side.clear();
    side.form = manifest.header->form;
    side.factor = endpoint_.layout().post(int(rank), endpoint_.seq()).factor;
    const bool is_own_process = manifest.header->process == process_;
    if (is_own_process && manifest.header->ordinal != gpu_.ordinal()) gpu_.reach(Gpu::at(manifest.header->ordinal));
    bases_.clear();
    for (std::size_t i = 0; i < manifest.header->num_buffers; ++i)
      bases_.push_back(is_own_process ? manifest.buffers[i].base : imports_.open(int(rank), manifest.buffers[i], manifest.handles[i]));
    for (std::size_t i = 0; i < manifest.header->num_regions; ++i) {
      const ManifestRegion& region = manifest.regions[i];
      const bool is_plain = manifest.header->sharing == Sharing::kPointers || region.bytes == 0;
      side.addresses.push_back(is_plain ? region.offset : bases_.at(region.buffer) + region.offset);
      side.bytes.push_back(region.bytes);
    }
  }
}

void DeviceRank::launch(const Call& call) {
  ModuleKey key;
  if (is_reduction(call.operation)) {
    key = {ModuleKind::kReduction, part_type(call.dtype), call.op};
    const std::uint64_t parts = item_bytes(call.dtype) / item_bytes(key.dtype);
    for (std::size_t i = 0; i < entries_.size(); ++i) entries_.first(i) *= parts, entries_.last(i) *= parts;
  }
  const std::size_t per_launch = std::max<std::size_t>(kArgumentWords / entries_.stride(), 1);
  for (std::size_t first = 0; first < entries_.size(); first += per_launch)
    launch_batch(key, first, std::min(per_launch, entries_.size() - first));
}

void DeviceRank::launch_batch(const ModuleKey& key, std::size_t first, std::size_t count) {
  KernelArguments arguments;
  arguments.num_sources = entries_.num_sources;
  arguments.num_targets = entries_.num_targets;
  arguments.stride = entries_.stride();
  arguments.spill = 0;
  arguments.divisor = double(endpoint_.num_ranks());
  const std::uint64_t* words = &entries_.words[first * arguments.stride];
  const std::size_t num_words = count * arguments.stride;
  std::unique_ptr<Scratch> spill;
  if (num_words <= kArgumentWords) {
    std::copy_n(words, num_words, arguments.words);
  } else {
    spill = std::make_unique<Scratch>(gpu_, num_words * sizeof *words);
    arguments.spill = std::bit_cast<std::uint64_t>(spill->data());
    cuda_driver().check(cuda_driver().copy_from_host(arguments.spill, words, num_words * sizeof *words, stream_), "copy to the GPU");
    finish();  // also before `words` go
  }
  std::uint64_t longest = 0;
  for (std::size_t i = first; i < first + count; ++i) longest = std::max(longest, entries_.last(i) - entries_.first(i));
  const bool reduces = key.kind == ModuleKind::kReduction;
  const unsigned num_blocks = blocks_for(longest * (reduces ? item_bytes(key.dtype) : 1), count);
  const Kernel kernel = reduces ? reduction_kernel(arguments.num_sources) : arguments.num_targets == 1 ? Kernel::kCopy1 : Kernel::kCopyAny;
  gpu_.launch(key, kernel, num_blocks, unsigned(count), &arguments, stream_);
  if (spill) spill->keep_until(std::make_shared<const Moment>(gpu_, stream_));
}

// For each entry. A vector for each thread, while all threads fit onto the GPU at once; then several.
unsigned DeviceRank::blocks_for(std::uint64_t bytes, std::size_t num_entries) const noexcept {
  const auto share = [&](unsigned per_multiprocessor) {
    return std::max<std::uint64_t>(std::uint64_t(gpu_.num_multiprocessors()) * per_multiprocessor / num_entries, 1);
  };
  constexpr std::uint64_t kBlockBytes = kThreads * kVectorBytes;
  const std::uint64_t least = (bytes + kBlockBytes * kVectorsPerThread - 1) / (kBlockBytes * kVectorsPerThread);
  const std::uint64_t most = (bytes + kBlockBytes - 1) / kBlockBytes;
  const std::uint64_t at_once = std::max(least, std::min(most, share(kBlocksAtOnce)));
  return unsigned(std::clamp<std::uint64_t>(at_once, 1, share(kBlocksPerMultiprocessor)));
}

void DeviceRank::cannot_share(const std::string& why) {
  can_share_ = false;
  warn_("CUDA tensors of this group go through the host, which is slow: " + why);
}

}  // namespace phalanx::cuda
