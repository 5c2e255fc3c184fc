#include "endpoint.hpp"

#include <pthread.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "text.hpp"

namespace phalanx {
namespace {

constexpr std::int64_t kSleepSliceNs = 50'000'000;  // how often a sleeper looks for dead peers

std::atomic<std::uint32_t> fork_generation{0};

// The endpoints of this process, for paused_ns(). A forked child has none. The inherited lock may be held for ever by a
// thread that the child does not have, so the child gets a new one.
struct Living {
  std::mutex mutex;
  std::vector<const Endpoint*> endpoints;
  std::int64_t looked_ns = 0;  // when paused_ns() last looked
};
std::atomic<Living*> living{new Living};

void watch_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    fork_generation.fetch_add(1);
    living.store(new Living);
  });
  (void)registered;
}

Layout layout_for(const GroupShape& shape, std::byte* base) {
  return Layout(base, shape.num_ranks, shape.chunk_bytes, shape.eager_bytes, shape.bulk_bytes);
}

// A rank spins for about as long as a peer on another core needs. After that it yields. Where cores are free this costs
// little more, and where other programs have taken them it lets the peers run.
Patience patience_for(bool is_crowded) { return is_crowded ? Patience{300, 2'000'000} : Patience{5'000, 1'000'000}; }

// The same amount for every core, whether one rank runs there or several. All ranks together use at most half of the shared
// cache.
std::size_t turn_bytes(const GroupShape& shape, int cores, int crowd) {
  const std::size_t num_buffers = std::size_t(shape.num_ranks) * kStageSets * kStageBuffers;
  const std::size_t most = shared_cache_bytes() == 0 ? shape.chunk_bytes : shared_cache_bytes() / 2 / num_buffers;
  return std::min(most, shape.chunk_bytes * std::size_t(cores) / std::size_t(std::max(cores, crowd)));
}

template <std::size_t N>
void fill_with_random_bytes(std::uint8_t (&bytes)[N]) {
  static_assert(N <= 256);  // more may come in parts
  while (getrandom(bytes, N, 0) != N) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "getrandom");
  }
}

}  // namespace

thread_local Waiter* Endpoint::waiter = nullptr;

namespace {

// A rank that was killed in the debugger stays marked until a peer of that group looks for dead peers, so check that it still
// lives.
bool is_debugged(const Member& member) {
  if (member.is_debugged.load(std::memory_order_relaxed) == 0 || member.state.load() != MemberState::kPresent) return false;
  if (member.pid_namespace.load() != own_pid_namespace()) return true;
  return process_start_ticks(member.pid.load()) == member.start_ticks.load();
}

bool is_anybody_debugged(const Living& here) {
  for (const Endpoint* endpoint : here.endpoints) {
    for (int rank = 0; rank < endpoint->num_ranks(); ++rank) {
      if (is_debugged(endpoint->layout().member(rank))) return true;
    }
  }
  return false;
}

std::atomic<std::int64_t> paused{0};
constexpr std::int64_t kLongestLookNs = 100'000'000;

}  // namespace

std::int64_t paused_ns_so_far() noexcept { return paused.load(std::memory_order_relaxed); }

std::int64_t paused_ns() {
  Living& here = *living.load();
  const std::lock_guard lock(here.mutex);
  const std::int64_t now = monotonic_ns(), passed = now - std::exchange(here.looked_ns, now);
  if (is_anybody_debugged(here)) paused.fetch_add(std::min(passed, kLongestLookNs), std::memory_order_relaxed);
  return paused_ns_so_far();
}

std::size_t group_bytes(const GroupShape& shape) { return layout_for(shape, nullptr).total_bytes(); }

Segment create_group_segment(const GroupShape& shape) {
  const Layout sizes = layout_for(shape, nullptr);
  Segment segment = Segment::create("phalanx:" + shape.name, sizes.total_bytes(), sizes.control_bytes());
  auto& header = *reinterpret_cast<Header*>(segment.data());  // the file is all zeros, a valid initial state
  header.magic = kMagic;
  header.num_ranks = static_cast<std::uint32_t>(shape.num_ranks);
  header.crowd = static_cast<std::uint32_t>(std::max(shape.crowd, shape.num_ranks));
  const int cores = shape.cores != 0 ? shape.cores : usable_cores();
  header.is_crowded = static_cast<int>(header.crowd) > cores;
  header.chunk_bytes = shape.chunk_bytes;
  header.eager_bytes = shape.eager_bytes;
  header.bulk_bytes = shape.bulk_bytes;
  header.turn_bytes = turn_bytes(shape, cores, static_cast<int>(header.crowd));
  header.total_bytes = segment.size();
  fill_with_random_bytes(header.nonce);
  store_beginning(header.name, shape.name);
  const Layout layout = layout_for(shape, segment.data());
  for (int rank = 0; rank < shape.num_ranks; ++rank) layout.member(rank).exit_status.store(kStatusUnknown);
  return segment;
}

Endpoint::Endpoint(Segment segment, int rank, bool is_thread)
    : segment_(std::move(segment)),
      layout_(layout_of(segment_)),
      rank_(rank),
      num_ranks_(layout_.num_ranks()),
      patience_(patience_for(layout_.header().is_crowded != 0)),
      journal_(layout_, rank),
      callers_(layout_.member(rank)),
      slot_writer_(layout_.header().is_crowded != 0, Place::kHot),
      stage_writer_(layout_.header().is_crowded != 0, Place::kTurning),
      spread_(layout_, rank, num_ranks_),
      peers_(layout_, rank, num_ranks_) {
  if (rank < 0 || rank >= num_ranks_) throw std::runtime_error("rank outside the group");
  watch_forks();
  fork_generation_ = fork_generation.load();
  Member& member = layout_.member(rank);
  std::int32_t nobody = 0;  // the first process to write its pid owns the rank; others must not touch the owner's words
  if (!member.pid.compare_exchange_strong(nobody, getpid()))
    throw std::runtime_error("rank " + std::to_string(rank) + " of this group is taken already");
  member.is_thread.store(is_thread);
  member.start_ticks.store(process_start_ticks(getpid()));
  member.pid_namespace.store(own_pid_namespace());
  member.thread.store(static_cast<std::uint64_t>(syscall(SYS_gettid)));
  MemberState absent = MemberState::kAbsent;
  if (!member.state.compare_exchange_strong(absent, MemberState::kPresent))
    throw std::runtime_error("rank " + std::to_string(rank) + " of this group was declared dead before it came");
  Living& here = *living.load();
  const std::lock_guard lock(here.mutex);
  here.endpoints.push_back(this);
}

Endpoint::~Endpoint() {
  {
    Living& here = *living.load();
    const std::lock_guard lock(here.mutex);
    std::erase(here.endpoints, this);
  }
  leave();
}

bool Endpoint::is_owner() const noexcept { return fork_generation_ == fork_generation.load(std::memory_order_relaxed); }

void Endpoint::leave() noexcept {
  if (!is_owner()) return;  // a forked child is not the rank
  MemberState present = MemberState::kPresent;
  if (layout_.member(rank_).state.compare_exchange_strong(present, MemberState::kLeft)) wake_everybody(layout_);
  segment_.close_descriptor();
  peers_.let_go();
}

void Endpoint::begin(const Call& call) {
  seq_.store(seq() + 1, std::memory_order_relaxed);  // first, so that an error has this operation's number
  throw_if_faulty();
  if (seq() > kPosts) await_departure(call, seq() - kPosts);
  if (!unseen_.empty() && unseen_.front() + kPosts <= seq()) compare_oldest_unseen();  // its post is about to be reused
  is_written_down_ = false;
  if (call.is_on_device) write_down(call);
  place_ = 0;
}

void Endpoint::publish(const Call& call, const std::byte* data, std::size_t bytes, std::uint64_t extra) {
  Post& post = layout_.post(rank_, seq());
  // A peer may be in compare_unseen: it must see that the old post is gone before it sees anything of the new one.
  post.seq.store(0, std::memory_order_relaxed);
  post.signature.store(call.signature(), std::memory_order_release);
  post.count.store(call.count, std::memory_order_release);
  post.extra = extra;
  post.factor = call.factor;
  post.place = place_;
  slot_writer_.write(bytes <= kInlineBytes ? post.payload : layout_.slot(rank_, seq()), data, bytes);
  tell_core();
  // For await_departure. Peers see it before the post; the store of the post is the one that pairs with sleepers.
  layout_.progress(rank_).arrived.store(seq(), std::memory_order_release);
  // Pairs with the load in await_arrivals: payload and signature are visible first.
  post.seq.store(seq(), std::memory_order_seq_cst);
  write_down(call);
  wake_sleepers();
}

void Endpoint::refuse(const Call& call, const std::string& text) {
  Call refusal = call;
  refusal.operation = Operation::kRefused;
  begin(refusal);
  const std::string_view kept = beginning_of(text, kSlotBytes - 1);
  std::memcpy(layout_.slot(rank_, seq()), kept.data(), kept.size());
  layout_.slot(rank_, seq())[kept.size()] = std::byte{0};
  publish(refusal, nullptr, 0);
  end();
}

void Endpoint::await_arrivals(const Call& call, int first, int last) {
  const Seq seq = this->seq();
  await(call, first, last, [this, seq](int peer) {
    return layout_.post(peer, seq).seq.load(std::memory_order_seq_cst) == seq;
  });
  for (int peer = first; peer < last; ++peer) {
    if (peer != rank_) compare(call, peer);
  }
}

void Endpoint::compare(const Call& call, int peer) {
  const Post& post = layout_.post(peer, seq());
  const std::uint64_t signature = post.signature.load(std::memory_order_relaxed);
  if (signature == call.signature() && post.count.load(std::memory_order_relaxed) == call.count) [[likely]]
    return;
  if (operation_of(signature) == Operation::kRefused) {
    end();
    throw Trouble(FaultKind::kPeerFailed, peer, rank_, seq(), {reinterpret_cast<const char*>(layout_.slot(peer, seq()))},
                  false);
  }
  fail(FaultKind::kMismatch, peer);
}

void Endpoint::compare_oldest_unseen() {
  compare_unseen(unseen_.front());
  unseen_.clear();  // ranks that disagree go on disagreeing: comparing one operation in kPosts finds it, at no cost
}

void Endpoint::compare_all_unseen() {
  for (const Seq seq : unseen_) compare_unseen(seq);
  unseen_.clear();
}

void Endpoint::compare_unseen(Seq seq) {
  const Post& mine = layout_.post(rank_, seq);
  const std::uint64_t signature = mine.signature.load(std::memory_order_relaxed);
  const std::uint64_t count = mine.count.load(std::memory_order_relaxed);
  for (int peer = 0; peer < num_ranks_; ++peer) {
    const Post& post = layout_.post(peer, seq);
    if (post.seq.load(std::memory_order_seq_cst) != seq) continue;  // already overwritten: too late to compare
    const std::uint64_t its_signature = post.signature.load(std::memory_order_acquire);
    const std::uint64_t its_count = post.count.load(std::memory_order_acquire);
    if (post.seq.load(std::memory_order_seq_cst) != seq) continue;
    if (operation_of(its_signature) == Operation::kRefused || (its_signature == signature && its_count == count)) continue;
    set_fault(layout_, FaultKind::kMismatch, peer, rank_, seq);
    fail(FaultKind::kMismatch, peer);
  }
}

Stage Endpoint::claim_stage(const Call& call, StageUse use, const Filling& filling) {
  write_down(call);
  if (!is_stage_reserved_) {
    try {
      reserve(layout_.stage(rank_), layout_.stage_bytes());
    } catch (const OutOfMemory& shortage) {
      fail(FaultKind::kOutOfMemory, rank_, shortage_of(shortage));
    }
    is_stage_reserved_ = true;
  }
  // All ranks give an operation the same number, so they agree on the half.
  const std::size_t half = seq() % kStageSets;
  for (std::size_t set = 0; set < kStageSets; ++set) {
    if (use == StageUse::kHalf && set != half) continue;
    if (stage_used_[set] != 0) await_departure(call, stage_used_[set]);
    stage_used_[set] = seq();
  }
  if (use == StageUse::kHalf) place_ = take_turn(half, filling);
  return stage(use);
}

// Overwriting what a peer has just read is slow, because the cache line must move back from the peer's own cache. So an
// operation that does not fill its buffers begins where the one before it ended, and starts again at the end: when a
// line is written again, it has left that cache. A few lines are faster at a fixed place.
std::uint64_t Endpoint::take_turn(std::size_t half, const Filling& filling) noexcept {
  const auto in_lines = [](std::size_t bytes) { return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine; };
  const std::size_t used = in_lines(std::min(filling.stride, filling.total));
  const std::size_t room = layout_.header().turn_bytes / filling.parts;
  if (used < kLeastToTurn || used > room) return 0;
  Turn& turn = turns_[half];
  const bool has_one_step = filling.total <= filling.stride;
  std::size_t place = in_lines(turn.head / filling.parts);
  if (place + used > room) {
    place = 0;
    turn.first = (turn.first + 1) % kStageBuffers;
  }
  turn.head = (place + used) * filling.parts;
  return place + (has_one_step ? turn.first : 0);
}

Stage Endpoint::stage(StageUse use) const noexcept {
  const std::size_t half = seq() % kStageSets;
  const std::size_t chunk = layout_.chunk_bytes();
  if (use == StageUse::kWhole) return {&layout_, 0, kStageSets * chunk, half, seq(), rank_};
  return {&layout_, half * kStageBuffers * chunk, chunk, half, seq(), rank_, place_};
}

void Endpoint::post_step(std::uint64_t step) {
  Progress& progress = layout_.progress(rank_);
  if (progress.step_of.load(std::memory_order_relaxed) != seq()) {
    // A peer that sees the new operation must not see the old one's count: pairs with has_step.
    progress.step.store(0, std::memory_order_relaxed);
    progress.step_of.store(seq(), std::memory_order_release);
  }
  progress.step.store(step, std::memory_order_seq_cst);
  wake_sleepers();
}

// The peer may go on to a later operation between the two loads; then the count is that of the later operation. If it is too
// small, the next look finds the later operation. If it is large enough, the answer is right, because a rank in a later operation
// has done all steps of this one.
bool Endpoint::has_step(int peer, std::uint64_t step) const noexcept {
  const Progress& progress = layout_.progress(peer);
  const Seq operation = progress.step_of.load(std::memory_order_seq_cst);
  if (operation != seq()) return operation > seq();
  return progress.step.load(std::memory_order_seq_cst) >= step;
}

void Endpoint::await_step(const Call& call, std::uint64_t step, int first, int last) {
  await(call, first, last, [this, step](int peer) { return has_step(peer, step); });
}

void Endpoint::await_departure(const Call& call, Seq u) {
  if (all_arrived_ > u) return;
  await(call, 0, num_ranks_, [this, u](int peer) {
    return layout_.progress(peer).arrived.load(std::memory_order_seq_cst) > u;
  });
  Seq lowest = seq();
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer != rank_) lowest = std::min(lowest, layout_.progress(peer).arrived.load(std::memory_order_acquire));
  }
  all_arrived_ = std::max(all_arrived_, lowest);
}

void Endpoint::wake_sleepers() noexcept {
  // Dekker with await_slowly: we stored the word, then look for sleepers; a sleeper counts itself, then looks at the word.
  if (layout_.header().sleepers.load(std::memory_order_seq_cst) == 0) [[likely]]
    return;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    Bell& bell = layout_.bell(peer);
    if (peer == rank_ || bell.sleepers.load(std::memory_order_seq_cst) == 0) continue;
    bell.word.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(bell.word);
  }
}

namespace {

// While this object lives, the rank counts as asleep, waiting for `peer`.
class Asleep {
 public:
  Asleep(const Layout& layout, int rank, int peer)
      : header_(layout.header()), bell_(layout.bell(rank)), sleeps_for_(layout.progress(rank).sleeps_for) {
    sleeps_for_.store(peer + 1, std::memory_order_relaxed);
    bell_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    header_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  }
  ~Asleep() {
    if (std::uncaught_exceptions() == 0) sleeps_for_.store(0, std::memory_order_relaxed);
    header_.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    bell_.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  Header& header_;
  Bell& bell_;
  std::atomic<std::int32_t>& sleeps_for_;
};

}  // namespace

void Endpoint::await_slowly(const Call& call, int first, int last, int peer, const std::function<bool(int)>& ready) {
  constexpr int kLooks = 16;
  for (int i = 0; i < kLooks; ++i) {
    if (ready(peer)) return;
    cpu_relax();
  }
  std::int64_t now = monotonic_ns();
  const std::int64_t glance_until = now + kGlanceNs, spin_until = now + patience_.spin_ns;
  while (!shares_core_with(peer) && now < spin_until) {
    for (int i = 0; i < kLooks; ++i) {
      if (ready(peer)) return journal_.passed(now);
      cpu_relax();
    }
    now = monotonic_ns();
    if (now > glance_until) begin_waiting();
  }
  begin_waiting();
  if (is_crowded()) {
    spread_.settle(now);
    tell_core();
  }
  const bool is_shared = shares_core_with(peer);
  const std::int64_t yield_until = is_shared && wants_to_resettle() ? 0 : spin_until + patience_.yield_ns;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (ready(peer)) return journal_.passed(monotonic_ns());
      sched_yield();
    }
  } while (monotonic_ns() < yield_until);
  Bell& bell = layout_.bell(rank_);
  const Asleep asleep(layout_, rank_, peer);
  const Deadline deadline(call.deadline_ns, call.paused_ns);
  for (;;) {
    const std::uint32_t word = bell.word.load(std::memory_order_seq_cst);
    if (ready(peer)) return journal_.passed(monotonic_ns());
    check_trouble(deadline, first, last, ready);
    look_in_vain();
    const std::int64_t left = std::max<std::int64_t>(deadline.left_ns(), 1);
    futex_wait(bell.word, word, std::min(left, kSleepSliceNs));
    if (ready(peer)) return journal_.passed(monotonic_ns());
  }
}

// For the search for deadlocks. A caller may run its asynchronous operations itself while it waits for them: see Lane::wait.
void Endpoint::look_in_vain() noexcept {
  layout_.progress(rank_).looks.fetch_add(1, std::memory_order_release);
  if (waiter != nullptr && callers_.is_one()) member().work_looks.fetch_add(1, std::memory_order_release);
}

void Endpoint::throw_if_ancestor_failed() {
  for (const Endpoint* ancestor = judge().ancestor_.get(); ancestor != nullptr; ancestor = ancestor->ancestor_.get()) {
    const Fault& fault = ancestor->layout_.header().fault;
    if (fault.state.load(std::memory_order_acquire) == 2 && fault.reporter == kLauncher)
      throw Trouble(fault.kind, -1, kLauncher, 0, {fault.text}, true);
  }
}

void Endpoint::throw_if_broken() {
  throw_if_faulty();
  throw_if_ancestor_failed();
  if (const int dead = judge().peers_.find_dead(); dead >= 0) fail(FaultKind::kPeerDied, dead);
}

void Endpoint::check_trouble(const Deadline& deadline, int first, int last, const std::function<bool(int)>& ready) {
  throw_if_faulty();
  throw_if_ancestor_failed();
  int dead = judge().peers_.find_dead();
  int left = -1;
  int missing = -1;
  int num_missing = 0;
  for (int peer = first; peer < last; ++peer) {
    if (peer == rank_ || ready(peer)) continue;
    if (missing < 0) missing = peer;
    ++num_missing;
    // A peer posts everything before it leaves, so look once more after seeing that it left.
    if (left < 0 && judge().layout_.member(peer).state.load() == MemberState::kLeft && !ready(peer)) left = peer;
  }
  if (num_missing == 0) return;
  if (left >= 0) {
    // Perhaps it left because of a death or a fault, which is then the better reason to report.
    throw_if_faulty();
    dead = judge().peers_.find_dead();
  }
  if (dead >= 0) fail(FaultKind::kPeerDied, dead);
  if (left >= 0) fail(FaultKind::kPeerLeft, left);
  if (deadline.left_ns() <= 0) fail(FaultKind::kTimeout, num_missing == 1 ? missing : -1);
  if (is_interrupted()) fail(FaultKind::kInterrupted, rank_);
}

void Endpoint::fail(FaultKind kind, int culprit, const FaultDetail& detail) {
  if (outer_ != nullptr) outer_->fail(kind, culprit, detail);
  if (!set_fault(layout_, kind, culprit, rank_, seq(), detail)) {
    // Another process is writing the first fault. Report that one, unless the process died while it wrote.
    for (int i = 0; i < 100; ++i) {
      throw_if_faulty();
      usleep(1000);
    }
  }
  throw Trouble(kind, culprit, rank_, seq(), detail, true);
}

}  // namespace phalanx
