// What lies where in a group's segment, and who may write it.
//
// The protocol in one page (docs/internals/shared-memory.md has every word):
//
//  word                     written by            read by    order
//  Post.seq                 its rank              peers      seq_cst after the payload / seq_cst before reading it
//  Progress.step_of         its rank              peers      release with a step of 0 before the first step / seq_cst
//  Progress.step            its rank              peers      seq_cst after a chunk was produced or consumed / seq_cst after
//                                                            step_of; see Endpoint::has_step
//  Progress.arrived         its rank              peers      release on entering operation n, just before Post.seq / seq_cst:
//                                                            "I am done with operation n-1": its peers may reuse what they
//                                                            wrote for it
//  Bell.sleepers, Bell.word sleeper / any poster  both       Dekker: seq_cst store, then seq_cst load, on both sides
//  Channel.*                sender or receiver    the other  seq_cst where the other may sleep for it, else release / acquire
//  Fault.state              first to compare-exchange it     acq_rel to claim it, release after the rest / acquire; set once,
//                                                            never cleared
//
// A rank overwrites what it wrote for operation u (post, slot, stage) only when every peer's `arrived` is above u.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "platform.hpp"
#include "types.hpp"

namespace phalanx {

using Seq = std::uint64_t;

inline constexpr std::uint64_t kMagic = 0x39786e616c616870;  // "phalanx9": the number grows with every change of this file
inline constexpr int kMaxRanks = 1024;
inline constexpr std::size_t kPosts = 32;          // operations a rank may run ahead of the slowest
inline constexpr std::size_t kSlotBytes = 4096;    // payload of a small operation
inline constexpr std::size_t kInlineBytes = 80;    // payload that travels in the post itself
inline constexpr std::size_t kStageSets = 2;       // operations that may use the stage at once
inline constexpr std::size_t kStageBuffers = 2;    // chunks in flight within one operation
inline constexpr std::size_t kJournalEntries = 128;  // collectives, and as many messages, that are remembered
inline constexpr std::size_t kShapeDims = 6;
inline constexpr std::size_t kLocations = 128;
inline constexpr std::size_t kLocationWords = 15;  // 120 characters
inline constexpr std::size_t kLeastToTurn = 4096;  // smaller parts of a chunk have a fixed place: see Endpoint::take_turn
inline constexpr std::size_t kEnvelopes = 16;      // messages in flight per ordered pair
inline constexpr std::size_t kEnvelopeInline = 80;   // a message up to this size travels in its envelope
inline constexpr std::size_t kEagerBytes = 64 * 1024;  // a message up to this size is sent without a grant
inline constexpr std::size_t kEagerPart = 16 * 1024; // a larger one goes in parts, so that both sides copy at once
inline constexpr std::size_t kBulkBuffers = 3;

enum class MemberState : std::uint32_t { kAbsent, kPresent, kLeft, kDead, kCount };

// Why a rank left: its program called close(), dropped its last reference to the group, or ended.
enum class Departure : std::uint32_t { kNone, kClosed, kDropped, kEnded, kCount };

enum class FaultKind : std::uint32_t {
  kNone, kMismatch, kTimeout, kPeerDied, kPeerLeft, kPeerFailed, kAborted, kInterrupted,
  kOutOfMemory, kDeadlock,
  kCount
};

// What a rank waited for when it timed out: its peers, the GPU's stream, or, in Work.wait(), an operation that still goes on.
enum class Awaited : std::uint32_t { kRanks, kStream, kWork, kCount };

// What a process runs in those Python threads that have not called an operation yet, but may: nothing, only code of libraries,
// or code of the program.
enum class OtherThreads : std::uint32_t { kUnknown, kNone, kLibraries, kProgram, kCount };

// More than one thread calls the rank's operations.
inline constexpr std::int32_t kSeveral = -1;

// How a process ended: exit code 0..255, or 256 + signal, or unknown.
inline constexpr std::int32_t kStatusUnknown = -1;

struct alignas(kCacheLine) Member {
  std::atomic<MemberState> state;
  std::atomic<std::int32_t> exit_status;
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint32_t> is_thread;
  std::atomic<std::uint64_t> start_ticks;  // distinguishes a rank from a later process with the same pid
  std::atomic<std::uint64_t> pid_namespace;  // a pid of another namespace means nothing here
  std::atomic<std::uint64_t> thread;         // the kernel's id of the thread that made the endpoint
  std::atomic<std::int32_t> launched_pid;    // known before it joins, if a launcher started it
  std::atomic<std::uint32_t> is_debugged;    // it is stopped in the debugger: deadlines are paused
  // For the search for deadlocks, see Callers: the kernel's id of the thread that calls operations, or kSeveral if there is
  // more than one. `backward_caller` is the same for the threads in which torch runs the backward pass.
  std::atomic<std::int32_t> caller, backward_caller;
  std::atomic<std::uint32_t> awaits_work;    // how many of those threads wait for asynchronous collectives
  std::atomic<std::uint64_t> work_looks;     // how often such a thread has looked in vain
  std::atomic<OtherThreads> other_threads;   // what further Python threads of the process run
  std::atomic<Departure> departure;          // the first reason that was given; written before `state` says kLeft
};
static_assert(sizeof(Member) == 2 * kCacheLine);

struct alignas(2 * kCacheLine) Post {
  std::atomic<Seq> seq;
  // What all ranks must agree on, see Call::signature. Atomic, because a rank that ran ahead compares them later.
  std::atomic<std::uint64_t> signature;
  std::atomic<std::uint64_t> count;
  std::uint64_t extra;      // number of a symmetric allocation, of steps this rank needs, or bytes of its manifest of GPU memory
  double factor;            // premul_sum
  std::uint64_t place;      // where its chunks begin: see Stage
  std::byte payload[kInlineBytes];
};

struct Progress {
  // How far the rank is in a chunked operation: `step_of` names the operation, `step` counts within it. Neither ever wraps.
  alignas(kCacheLine) std::atomic<Seq> step_of;
  std::atomic<std::uint64_t> step;
  alignas(kCacheLine) std::atomic<Seq> arrived;
  std::atomic<Seq> finished;
  std::atomic<std::uint64_t> moved_bytes;   // by finished collectives
  std::atomic<std::uint64_t> mailed_bytes;  // by finished messages
  std::atomic<Seq> messages;                // begun so far
  // Peers look at these while they wait, so they lie apart from what every operation writes.
  alignas(kCacheLine) std::atomic<std::int32_t> core;  // the core it ran on when it last called an operation: a hint
  std::atomic<std::int32_t> sleeps_for;  // a peer + 1, or 0 if it does not sleep; kept after a failure, as evidence
  // For the search for deadlocks: a rank that has looked in vain since the last check, and moved nothing, still needs a peer.
  alignas(kCacheLine) std::atomic<std::uint64_t> mail_moves;  // grows whenever it moves a part of a message
  std::atomic<std::uint64_t> looks;             // how often a thread that sleeps in a collective looked in vain
  std::atomic<std::uint64_t> mail_looks;        // how often a thread that sleeps for a message looked in vain
  std::atomic<std::uint64_t> background_looks;  // the same for the thread that moves asynchronous messages
  std::atomic<std::uint32_t> background_mail;   // how many asynchronous messages are under way
};

struct alignas(kCacheLine) Bell {
  std::atomic<std::uint32_t> word;
  std::atomic<std::uint32_t> sleepers;
};

// One cache line, so that writing it costs little; see pack_shape() for the sizes.
struct alignas(kCacheLine) JournalEntry {
  std::atomic<std::uint64_t> seq;  // 0 while it is being written
  std::atomic<std::int64_t> start_ns;
  std::atomic<std::int64_t> end_ns;  // 0 while it is under way; stays 0 if it failed
  std::atomic<std::uint64_t> what;   // operation, dtype, reduce op, dimensions, root
  std::atomic<std::uint64_t> count;  // of a message: its tag
  std::atomic<std::uint64_t> where;  // number of the source line; bit 30: may do more; bit 31: asynchronous; from 32: the peer of a message
  std::atomic<std::uint64_t> shape[2];
};
static_assert(sizeof(JournalEntry) == kCacheLine);

// A line of the program's source. A program has more lines than the table has room for, so each line has a number of its own.
struct alignas(kCacheLine) Location {
  std::atomic<std::uint64_t> number;  // 0 while it is being written
  std::atomic<std::uint64_t> words[kLocationWords];
};
static_assert(sizeof(Location) == 2 * kCacheLine);

struct Fault {
  std::atomic<std::uint32_t> state;  // 0 none, 1 being written, 2 set
  FaultKind kind;
  std::int32_t culprit;   // a rank, or -1
  std::int32_t reporter;
  Seq seq;
  Awaited awaited;             // of a timeout
  std::uint64_t wanted_bytes;  // sizes that do not fit: what the reporter expects, or how much memory is needed ...
  std::uint64_t found_bytes;   // ... and what the culprit gives, or how much there is
  char text[2048];
};

struct alignas(2 * kCacheLine) Envelope {
  std::atomic<Seq> seq;
  std::uint64_t tag;
  std::uint64_t bytes;        // of the whole message
  union {
    std::uint64_t message;    // bulk: running number in its channel
    std::uint64_t offset;     // eager: which part of the message this is
  };
  std::uint64_t ring_offset;  // where an eager payload lies
  std::uint32_t part_bytes;   // eager
  std::uint8_t dtype;
  std::uint8_t space;
  std::uint16_t is_bulk;
  std::byte payload[kEnvelopeInline];  // begins in the first cache line: the smallest messages need no other
};

// From one rank to one other.
struct Channel {
  alignas(kCacheLine) std::atomic<Seq> taken;          // receiver: envelopes read
  std::atomic<std::uint64_t> ring_taken;               // receiver: eager bytes read
  alignas(kCacheLine) std::atomic<std::uint64_t> grant;  // receiver: bulk message it is ready for
  std::atomic<std::uint64_t> grant_bytes;              // receiver: 0 refuses it (wrong size)
  alignas(kCacheLine) std::atomic<std::uint64_t> bulk_taken;  // receiver: chunks read of the granted message
  alignas(kCacheLine) std::atomic<std::uint64_t> answered;    // sender: last grant it has dealt with
  Envelope envelopes[kEnvelopes];
};

// A rank's outgoing bulk transfer: one at a time, through its own buffers.
struct Outbound {
  alignas(kCacheLine) std::atomic<std::uint64_t> produced;  // chunks of the current transfer
  std::atomic<std::uint64_t> message;                       // (destination + 1) << 52 | message, 0 none
  std::atomic<std::uint64_t> first;                         // where its first chunk lies, counted in chunks
};

struct Header {
  std::uint64_t magic;
  std::uint32_t num_ranks;
  std::uint32_t crowd;       // ranks that compete for this machine's cores: the largest group this one descends from
  std::uint32_t is_crowded;  // whether they outnumber the cores: the creator decides, so that all ranks agree
  std::uint64_t chunk_bytes;
  std::uint64_t eager_bytes;
  std::uint64_t bulk_bytes;
  std::uint64_t turn_bytes;  // how much of each stage buffer Endpoint::take_turn uses
  std::uint64_t total_bytes;
  std::uint8_t nonce[16];
  char name[256];
  alignas(kCacheLine) std::atomic<std::uint32_t> sleepers;       // ranks asleep in a collective
  alignas(kCacheLine) std::atomic<std::uint32_t> mail_sleepers;  // threads asleep in send/recv
  alignas(kCacheLine) Fault fault;
};

// Sizes and offsets. Every rank computes the same ones from four numbers in the header.
class Layout {
 public:
  Layout() = default;
  Layout(std::byte* base, int num_ranks, std::size_t chunk_bytes, std::size_t eager_bytes, std::size_t bulk_bytes)
      : base_(base), n_(static_cast<std::size_t>(num_ranks)), chunk_(chunk_bytes), eager_(eager_bytes), bulk_(bulk_bytes) {
    std::size_t at = 0;
    const auto take = [&](std::size_t bytes) {
      const std::size_t start = at;
      at = (at + bytes + 4095) / 4096 * 4096;
      return start;
    };
    take(sizeof(Header));
    members_ = take(n_ * sizeof(Member));
    bells_ = take(2 * n_ * sizeof(Bell));
    progress_ = take(n_ * sizeof(Progress));
    posts_ = take(n_ * kPosts * sizeof(Post));
    journal_ = take(n_ * kJournalEntries * sizeof(JournalEntry));
    messages_ = take(n_ * kJournalEntries * sizeof(JournalEntry));
    mail_journal_ = take(n_ * sizeof(JournalEntry));
    locations_ = take(n_ * kLocations * sizeof(Location));
    sizes_ = take(n_ * kStageSets * n_ * sizeof(std::uint64_t));
    outbound_ = take(n_ * sizeof(Outbound));
    channels_ = take(n_ * n_ * sizeof(Channel));
    slots_ = take(n_ * kPosts * kSlotBytes);
    control_ = at;
    rings_ = take(n_ * (n_ - 1) * eager_);
    bulks_ = take(n_ * kBulkBuffers * bulk_);
    stages_ = take(n_ * stage_bytes());
    total_ = at;
  }

  int num_ranks() const noexcept { return static_cast<int>(n_); }
  std::size_t total_bytes() const noexcept { return total_; }
  // What every operation needs. The rings, bulk buffers and stages come after it; each is reserved by its writer on first use.
  std::size_t control_bytes() const noexcept { return control_; }
  std::size_t stage_bytes() const noexcept { return kStageSets * kStageBuffers * chunk_; }
  std::size_t chunk_bytes() const noexcept { return chunk_; }
  std::size_t eager_bytes() const noexcept { return eager_; }
  std::size_t bulk_bytes() const noexcept { return bulk_; }

  Header& header() const { return *at<Header>(0, 0); }
  Member& member(int rank) const { return *at<Member>(members_, rank); }
  Bell& bell(int rank) const { return *at<Bell>(bells_, rank); }
  Bell& mail_bell(int rank) const { return *at<Bell>(bells_, static_cast<int>(n_) + rank); }
  Progress& progress(int rank) const { return *at<Progress>(progress_, rank); }
  Post& post(int rank, Seq seq) const { return at<Post>(posts_, 0)[std::size_t(rank) * kPosts + seq % kPosts]; }
  JournalEntry& journal(int rank, Seq seq) const {
    return at<JournalEntry>(journal_, 0)[std::size_t(rank) * kJournalEntries + seq % kJournalEntries];
  }
  // The rank's messages, sent or received, by their running number.
  JournalEntry& message(int rank, Seq number) const {
    return at<JournalEntry>(messages_, 0)[std::size_t(rank) * kJournalEntries + number % kJournalEntries];
  }
  // What a rank sleeps for in send or recv; seq is 0 if it does not sleep.
  JournalEntry& mail_journal(int rank) const { return *at<JournalEntry>(mail_journal_, rank); }
  Location& location(int rank, std::size_t number) const {
    return at<Location>(locations_, 0)[std::size_t(rank) * kLocations + number % kLocations];
  }
  // Row of a rank: bytes it sends to each peer in an uneven all_to_all.
  std::uint64_t* sizes(int rank, std::size_t set) const {
    return at<std::uint64_t>(sizes_, 0) + (std::size_t(rank) * kStageSets + set) * n_;
  }
  Outbound& outbound(int rank) const { return *at<Outbound>(outbound_, rank); }
  Channel& channel(int source, int destination) const {
    return at<Channel>(channels_, 0)[std::size_t(source) * n_ + std::size_t(destination)];
  }
  std::byte* ring(int source, int destination) const {
    const std::size_t among_peers = std::size_t(destination) - (destination > source ? 1 : 0);
    return base_ + rings_ + (std::size_t(source) * (n_ - 1) + among_peers) * eager_;
  }
  std::byte* slot(int rank, Seq seq) const {
    return base_ + slots_ + (std::size_t(rank) * kPosts + seq % kPosts) * kSlotBytes;
  }
  std::byte* bulk(int rank) const { return base_ + bulks_ + std::size_t(rank) * kBulkBuffers * bulk_; }
  std::byte* stage(int rank) const { return base_ + stages_ + std::size_t(rank) * stage_bytes(); }

 private:
  template <class T>
  T* at(std::size_t offset, int index) const {
    return reinterpret_cast<T*>(base_ + offset) + index;
  }

  std::byte* base_ = nullptr;
  std::size_t n_ = 0, chunk_ = 0, eager_ = 0, bulk_ = 0, control_ = 0, total_ = 0;
  std::size_t members_ = 0, bells_ = 0, progress_ = 0, posts_ = 0, journal_ = 0, messages_ = 0, mail_journal_ = 0, locations_ = 0, sizes_ = 0,
              outbound_ = 0, channels_ = 0, rings_ = 0, slots_ = 0, bulks_ = 0, stages_ = 0;
};

}  // namespace phalanx
