// One rank's end of a group: posts what it does, waits for what peers do, and notices when they can't.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "call.hpp"
#include "callers.hpp"
#include "deadline.hpp"
#include "faults.hpp"
#include "journal.hpp"
#include "layout.hpp"
#include "peers.hpp"
#include "reading.hpp"
#include "segment.hpp"
#include "shared_writer.hpp"
#include "spread.hpp"
#include "trouble.hpp"

namespace phalanx {

struct GroupShape {
  std::string name;
  int num_ranks = 1;
  int crowd = 1;
  int cores = 0;  // 0: those that this process may use
  std::size_t chunk_bytes = 512 * 1024;
  std::size_t eager_bytes = 128 * 1024;
  std::size_t bulk_bytes = 1024 * 1024;
};

// Memory a group of this shape takes.
std::size_t group_bytes(const GroupShape& shape);
// A fresh segment, ready for ranks to attach. Throws OutOfMemory.
Segment create_group_segment(const GroupShape& shape);

// How long a rank tries before it sleeps: first it spins, then it yields its core.
struct Patience {
  std::int64_t spin_ns;
  std::int64_t yield_ns;
};

enum class StageUse { kHalf, kWhole };

inline constexpr std::int64_t kGlanceNs = 2'000;

// The caller of an operation. The engine informs it of a wait, and asks it whether to end the wait.
class Waiter {
 public:
  // The wait will take longer than a glance, so the caller may release what it holds. May be called more than once.
  virtual void begin_waiting() noexcept = 0;
  // True ends the wait with kInterrupted.
  virtual bool is_interrupted() = 0;

 protected:
  ~Waiter() = default;
};

// How an operation fills a buffer: with `parts` equal parts. Each has `total` bytes in all, and `stride` of them in each chunk.
struct Filling {
  std::size_t parts;
  std::size_t total;
  std::size_t stride;
};

// Where the ranks' chunks of one operation lie. Each rank chooses where its own begin, and says so in its post.
struct Stage {
  const Layout* layout;
  std::size_t offset;
  std::size_t chunk_bytes;
  std::size_t set;
  Seq seq;
  int me;
  std::uint64_t own_place = 0;

  // A place combines the number of the first step's buffer with an offset into every buffer, in whole cache lines.
  std::byte* at(int rank, std::uint64_t step) const {
    const std::uint64_t place = rank == me ? own_place : layout->post(rank, seq).place;
    return layout->stage(rank) + offset + (place + step) % kStageBuffers * chunk_bytes + place / kCacheLine * kCacheLine;
  }
  // The size of each rank's part of a chunk, in whole cache lines.
  std::size_t part_bytes(int num_ranks) const { return chunk_bytes / std::size_t(num_ranks) / kCacheLine * kCacheLine; }
};

// Not thread-safe by itself: Lane gives it to one thread at a time. Any thread may read the journal and the fault.
class Endpoint {
 public:
  Endpoint(Segment segment, int rank, bool is_thread);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;

  int rank() const noexcept { return rank_; }
  int num_ranks() const noexcept { return num_ranks_; }
  const Layout& layout() const noexcept { return layout_; }
  Peers& peers() noexcept { return peers_; }
  // Any thread may ask.
  Seq seq() const noexcept { return seq_.load(std::memory_order_relaxed); }

  // The waiter of the operations that this thread runs, or null.
  static thread_local Waiter* waiter;
  static void begin_waiting() noexcept {
    if (waiter != nullptr) waiter->begin_waiting();
  }
  static bool is_interrupted() { return waiter != nullptr && waiter->is_interrupted(); }

  // -- an operation: begin, publish, await..., end
  void begin(const Call& call);
  void publish(const Call& call, const std::byte* payload, std::size_t bytes, std::uint64_t extra = 0);
  void end() noexcept {
    journal_.end();
    layout_.progress(rank_).finished.store(seq(), std::memory_order_release);
  }
  // Tell peers in the same operation that this rank's arguments were refused.
  void refuse(const Call& call, const std::string& text);

  void await_arrival(const Call& call, int peer) { await_arrivals(call, peer, peer + 1); }
  void await_arrivals(const Call& call) {
    await_arrivals(call, 0, num_ranks_);
    all_arrived_ = seq();
    if (!unseen_.empty()) [[unlikely]]
      compare_all_unseen();
  }
  // This rank goes on without looking at what its peers called; it compares that later.
  void leave_unseen() { unseen_.push_back(seq()); }
  const std::byte* payload(int peer, std::size_t bytes) const noexcept {
    return bytes <= kInlineBytes ? layout_.post(peer, seq()).payload : layout_.slot(peer, seq());
  }

  // -- chunks: steps within the operation Where this operation's chunks lie. With halves, the next operation can begin
  // while slow peers still read this one's. The whole stage gives larger chunks, but its writer must first wait for all
  // other ranks, so only one rank may claim it.
  Stage stage(StageUse use) const noexcept;
  // The same, and this rank may write to its own stage. Claim a half before you publish, because the post contains its place.
  Stage claim_stage(const Call& call, StageUse use, const Filling& filling);
  SharedWriter& writer() noexcept { return stage_writer_; }
  SharedWriter& slot_writer() noexcept { return slot_writer_; }
  void post_step(std::uint64_t step);
  void await_step(const Call& call, std::uint64_t step, int first, int last);
  // Whether `step` is the last step of this operation that the rank has posted. It loads step_of twice, because the rank may go
  // on to the next operation in between.
  bool is_at_step(int rank, std::uint64_t step) const noexcept {
    const Progress& progress = layout_.progress(rank);
    return progress.step_of.load(std::memory_order_seq_cst) == seq() && progress.step.load(std::memory_order_seq_cst) == step &&
           progress.step_of.load(std::memory_order_seq_cst) == seq();
  }

  // Wait until every peer has left operation `u`. Then this rank may overwrite what it wrote for it.
  void await_departure(const Call& call, Seq u);

  // -- trouble
  void throw_if_faulty() const { phalanx::throw_if_faulty(judge().layout_); }
  // Sets the fault of the group, if it has none yet, and throws the one it has.
  [[noreturn]] void fail(FaultKind kind, int culprit, const FaultDetail& detail = {});
  // A fault that the launcher sets in `ancestor` is a fault here too.
  void watch(std::shared_ptr<Endpoint> ancestor) { ancestor_ = std::move(ancestor); }
  void throw_if_ancestor_failed();
  // This endpoint carries phases of operations of `outer`, which has the same ranks and lives longer: faults and deaths there end
  // waits here, and trouble here becomes a fault there.
  void serve(Endpoint& outer) noexcept { outer_ = &outer; }
  // For a wait outside the segment: throws if the group or an ancestor has a fault, or if a rank has died.
  void throw_if_broken();
  void leave() noexcept;
  // Meanwhile, the deadlines of all ranks of this group are paused.
  void set_debugged(bool is_debugged) noexcept { layout_.member(rank_).is_debugged.store(is_debugged); }
  bool is_owner() const noexcept;

  // Wait for a condition on each peer in [first, last). `ready(peer)` must use seq_cst loads.
  template <class Ready>
  void await(const Call& call, int first, int last, Ready ready) {
    for (int peer = first; peer < last; ++peer) {
      if (peer == rank_ || ready(peer)) continue;
      const std::function<bool(int)> slow = ready;
      await_slowly(call, first, last, peer, slow);
    }
  }

  Journal& journal() noexcept { return journal_; }
  Callers& callers() noexcept { return callers_; }
  Member& member() const { return layout_.member(rank_); }
  const Patience& patience() const noexcept { return patience_; }
  void tell_core() noexcept {
    std::atomic<std::int32_t>& word = layout_.progress(rank_).core;
    const int core = sched_getcpu();
    if (word.load(std::memory_order_relaxed) != core) word.store(core, std::memory_order_relaxed);
  }
  // Whether spinning would keep the peer from running: it was last seen on this very core.
  bool shares_core_with(int peer) const noexcept {
    return layout_.progress(peer).core.load(std::memory_order_relaxed) == sched_getcpu();
  }
  // Ranks on one core that only yield to each other stay there for ever, even if another core is idle: the kernel looks for a
  // better core only when it wakes a sleeper. So this is true now and then; the rank then sleeps instead of yielding.
  bool wants_to_resettle() noexcept { return !is_crowded() && shared_waits_.fetch_add(1) % 128 == 127; }
  bool is_crowded() const noexcept { return layout_.header().is_crowded != 0; }

 private:
  // Writes the journal entry, before this rank waits for its peers. If it can publish at once, it posts first: the peers need the
  // post, and writing the entry while their posts arrive costs no time. See await_entry().
  void write_down(const Call& call) noexcept {
    if (!std::exchange(is_written_down_, true)) journal_.begin(seq(), call);
  }
  void await_arrivals(const Call& call, int first, int last);
  bool has_step(int peer, std::uint64_t step) const noexcept;
  void compare(const Call& call, int peer);
  void compare_unseen(Seq seq);
  void compare_oldest_unseen();
  void compare_all_unseen();
  void await_slowly(const Call& call, int first, int last, int peer, const std::function<bool(int)>& ready);
  void check_trouble(const Deadline& deadline, int first, int last, const std::function<bool(int)>& ready);
  void wake_sleepers() noexcept;
  void look_in_vain() noexcept;
  const Endpoint& judge() const noexcept { return outer_ != nullptr ? *outer_ : *this; }
  Endpoint& judge() noexcept { return outer_ != nullptr ? *outer_ : *this; }

  Segment segment_;
  Layout layout_;
  int rank_;
  int num_ranks_;
  std::atomic<Seq> seq_{0};         // written by the thread that runs operations
  Seq all_arrived_ = 0;             // every peer is known to have reached this operation
  std::uint64_t take_turn(std::size_t half, const Filling& filling) noexcept;
  struct Turn {
    std::size_t head = 0;   // where the last operation ended, in bytes of a buffer
    std::size_t first = 0;  // the buffer where operations of one step begin
  };
  Turn turns_[kStageSets];
  std::uint64_t place_ = 0;  // of this operation
  Seq stage_used_[kStageSets] = {}; // the operation in which this rank last wrote each set of its stage
  bool is_stage_reserved_ = false;
  std::atomic<std::uint32_t> shared_waits_{0};
  std::vector<Seq> unseen_;         // operations whose calls it has not compared yet, at most kPosts
  std::uint32_t fork_generation_;
  Patience patience_;
  Journal journal_;
  Callers callers_;
  bool is_written_down_ = false;    // whether this operation is in the journal
  SharedWriter slot_writer_, stage_writer_;
  Spread spread_;
  Peers peers_;
  std::shared_ptr<Endpoint> ancestor_;
  Endpoint* outer_ = nullptr;  // see serve()
};

}  // namespace phalanx
