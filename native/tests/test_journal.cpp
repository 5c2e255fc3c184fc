// What a rank writes down of itself: the last operations, a trace of all, and deadlines that stand still for a debugger.
#include "../core/journal.hpp"

#include <sys/resource.h>

#include <cstdlib>
#include <fstream>

#include "../core/collectives/collectives.hpp"
#include "mail.hpp"

using namespace ranks;

namespace {

std::string temporary_path() {
  char name[] = "/tmp/phalanx-trace-XXXXXX";
  if (mkdtemp(name) == nullptr) throw check::Failure("no folder for the trace");
  return std::string(name) + "/rank-0-1.raw";
}

// A trace file that is gone with the test.
struct TemporaryTrace {
  explicit TemporaryTrace(std::size_t limit_bytes = 64 << 20)
      : path(temporary_path()), file(std::make_shared<TraceFile>(path, 3, limit_bytes)) {}
  ~TemporaryTrace() {
    unlink(path.c_str());
    rmdir(path.substr(0, path.rfind('/')).c_str());
  }
  struct Operation {
    Seq number;
    std::int64_t start_ns, end_ns;
  };
  std::vector<Operation> operations() const {
    std::ifstream stream(path, std::ios::binary);
    std::vector<Operation> found;
    alignas(8) char record[kRecordBytes];
    while (stream.read(record, sizeof(record))) {
      const auto kind = *reinterpret_cast<const RecordKind*>(record);
      if (kind == RecordKind::kEnd) break;
      if (kind != RecordKind::kCollective && kind != RecordKind::kMessage) continue;
      const auto& read = *reinterpret_cast<const TraceOperation*>(record);
      found.push_back({read.number, read.start_ns, read.end_ns.load()});
    }
    return found;
  }

  std::string path;
  std::shared_ptr<TraceFile> file;
};

Call barrier_call(double timeout_s = 20) { return call_of(Operation::kBarrier, 0, DType::kInt32, 0, timeout_s); }

}  // namespace

TEST(the_last_operations_are_kept_with_their_ends) {
  run_threads(small_shape(2), [](const EndpointPtr& endpoint) {
    constexpr Seq kCount = 3 * kJournalEntries + 5;
    for (Seq i = 0; i < kCount; ++i) barrier(*endpoint, barrier_call());
    for (Seq seq = 1; seq <= kCount; ++seq) {
      const JournalEntry& entry = endpoint->layout().journal(endpoint->rank(), seq);
      CHECK_EQUAL(entry.seq.load() == seq, seq + kJournalEntries > kCount);
    }
    const JournalEntry& last = endpoint->layout().journal(endpoint->rank(), kCount);
    CHECK(last.end_ns.load() >= last.start_ns.load());
    CHECK(last.end_ns.load() <= monotonic_ns());
  });
}

TEST(messages_are_kept_with_the_peer_that_they_found) {
  run_threads(small_shape(2), [](const EndpointPtr& endpoint) {
    Mail mail(endpoint);
    const Layout& layout = endpoint->layout();
    if (endpoint->rank() == 0) {
      mail.send(1, 5, message_of(1, 100));
    } else {
      mail.receive(kAnySource, 5, message_of(1, 100));
      const JournalEntry& entry = layout.message(1, 1);
      CHECK_EQUAL(entry.seq.load(), 1u);
      CHECK_EQUAL(entry.where.load() >> 32, 0u);
      CHECK_EQUAL(entry.count.load(), 5u);
      CHECK(entry.end_ns.load() != 0);
    }
    meet_by_mail(mail, 1 - endpoint->rank());
    CHECK_EQUAL(layout.progress(endpoint->rank()).messages.load(), 3u);
  });
}

TEST(a_reader_never_sees_a_mixture_of_two_entries) {
  run_threads(small_shape(2), [](const EndpointPtr& endpoint) {
    // Rank 0 writes entries whose parts all say the same number; rank 1 looks all the time.
    const Layout& layout = endpoint->layout();
    constexpr Seq kCount = 200'000;
    Journal journal(layout, endpoint->rank());
    if (endpoint->rank() == 0) {
      for (Seq seq = 1; seq <= kCount; ++seq) {
        Call call = barrier_call();
        call.count = call.shape[0] = seq;
        call.num_dims = 1;
        call.start_ns = std::int64_t(seq);
        journal.begin(seq, call);
      }
      layout.progress(0).finished.store(kCount);
      return;
    }
    while (layout.progress(0).finished.load() != kCount) {
      for (Seq slot = 0; slot < kJournalEntries; ++slot) {
        const JournalEntry& entry = layout.journal(0, slot);
        const Seq before = entry.seq.load(std::memory_order_acquire);
        const std::uint64_t count = entry.count.load(std::memory_order_relaxed);
        const std::uint64_t size = entry.shape[0].load(std::memory_order_relaxed);
        const std::int64_t start = entry.start_ns.load(std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_acquire);
        if (before == 0 || entry.seq.load(std::memory_order_relaxed) != before) continue;
        CHECK_EQUAL(count, before);
        CHECK_EQUAL(size, before);
        CHECK_EQUAL(start, std::int64_t(before));
      }
    }
  });
}

TEST(an_entry_is_waited_for_when_its_post_is_out) {
  run_threads(small_shape(2), [](const EndpointPtr& endpoint) {
    // Rank 0 writes every entry only when rank 1 has begun to look for it.
    const Layout& layout = endpoint->layout();
    constexpr Seq kCount = 50;
    for (Seq seq = 1; seq <= kCount; ++seq) {
      int looks = 1000;
      if (endpoint->rank() == 0) {
        CHECK(await_entry(layout, 0, seq, looks) == nullptr);  // not arrived: nothing to wait for
        layout.progress(0).arrived.store(seq);
        while (layout.progress(1).arrived.load() != seq) sched_yield();
        Journal(layout, 0).begin(seq, barrier_call());
        while (layout.progress(1).finished.load() != seq) sched_yield();
      } else {
        while (layout.progress(0).arrived.load() != seq) sched_yield();
        layout.progress(1).arrived.store(seq);
        const JournalEntry* const found = await_entry(layout, 0, seq, looks);
        CHECK(found != nullptr);
        CHECK_EQUAL(found->seq.load(), seq);
        layout.progress(1).finished.store(seq);
      }
    }
    if (endpoint->rank() == 0) return;
    const std::int64_t start = monotonic_ns();
    layout.progress(0).arrived.store(kCount + 1);
    int looks = 1000;
    CHECK(await_entry(layout, 0, kCount + 1, looks) == nullptr);  // never written: the wait has an end
    CHECK(looks > 0 && looks < 1000);
    looks = 0;
    CHECK(await_entry(layout, 0, kCount + 1, looks) == nullptr);  // who has no patience left does not wait
    CHECK_EQUAL(looks, 0);
    CHECK(monotonic_ns() - start < 5'000'000'000);
  });
}

TEST(sizes_are_kept_in_two_words) {
  const std::uint64_t shape[kShapeDims] = {3'000'000, 5, 1, 7, 1'000'000, 2};
  for (std::uint32_t num_dims = 0; num_dims <= kShapeDims; ++num_dims) {
    const PackedShape packed = pack_shape(shape, num_dims);
    for (std::uint32_t dim = 0; dim < num_dims; ++dim)
      CHECK_EQUAL(unpack_dim(packed, num_dims, dim), num_dims > 4 && dim == 0 ? (1u << 21) - 1 : shape[dim]);
  }
  const std::uint64_t large[kShapeDims] = {1ull << 60, 1ull << 61};
  CHECK_EQUAL(unpack_dim(pack_shape(large, 2), 2, 1), 1ull << 61);
}

TEST(a_trace_holds_every_operation_and_outlives_the_group) {
  TemporaryTrace trace;
  run_threads(small_shape(2), [&](const EndpointPtr& endpoint) {
    if (endpoint->rank() == 0) endpoint->journal().trace(trace.file);
    Mail mail(endpoint);
    for (int i = 0; i < 20'000; ++i) barrier(*endpoint, barrier_call());
    meet_by_mail(mail, 1 - endpoint->rank());
    if (endpoint->rank() == 0) endpoint->journal().trace(nullptr);
    barrier(*endpoint, barrier_call());
  });
  trace.file->close();
  const auto found = trace.operations();
  CHECK_EQUAL(found.size(), 20'002u);
  for (std::size_t i = 0; i < 20'000; ++i) {
    CHECK_EQUAL(found[i].number, i + 1);
    CHECK(found[i].end_ns >= found[i].start_ns);
  }
}

TEST(a_trace_without_room_ends_and_the_operations_go_on) {
  TemporaryTrace trace(1 << 20);
  run_threads(small_shape(1), [&](const EndpointPtr& endpoint) {
    endpoint->journal().trace(trace.file);
    for (int i = 0; i < 10'000; ++i) barrier(*endpoint, barrier_call());
  });
  CHECK(trace.file->is_truncated());
  trace.file->close();
  CHECK(trace.operations().size() < 8192);
  CHECK(trace.operations().size() > 8000);
}

TEST(a_trace_that_is_closed_while_others_write_takes_no_more) {
  TemporaryTrace trace;
  run_threads(small_shape(3), [&](const EndpointPtr& endpoint) {
    endpoint->journal().trace(trace.file);
    for (int i = 0; i < 5'000; ++i) {
      barrier(*endpoint, barrier_call());
      if (endpoint->rank() == 0 && i == 2'500) trace.file->close();
    }
  });
  CHECK(trace.operations().size() >= 3 * 2'500);
}

TEST(deadlines_stand_still_while_a_rank_is_debugged) {
  run_threads(small_shape(2), [](const EndpointPtr& endpoint) {
    if (endpoint->rank() == 0) {
      endpoint->set_debugged(true);
      barrier(*endpoint, barrier_call());
      const std::int64_t until = seconds_from_now(0.8);
      wait_until([&] { return monotonic_ns() > until; });  // much longer than the others' patience
      endpoint->set_debugged(false);
      barrier(*endpoint, barrier_call());
    } else {
      barrier(*endpoint, barrier_call());
      barrier(*endpoint, barrier_call(0.2));
    }
  });
}

TEST(time_that_stood_still_counts_for_every_wait_of_the_operation) {
  run_threads(small_shape(3), [](const EndpointPtr& endpoint) {
    barrier(*endpoint, barrier_call());
    const std::int64_t start = monotonic_ns();
    const auto wait_for = [&](double seconds) { wait_until([&] { return monotonic_ns() > start + std::int64_t(seconds * 1e9); }); };
    if (endpoint->rank() == 1) {
      endpoint->set_debugged(true);
      wait_for(0.8);
      endpoint->set_debugged(false);
    } else if (endpoint->rank() == 2) {
      wait_for(0.9);  // after the other, and long after the deadline as it was
    }
    Call call = barrier_call(endpoint->rank() == 0 ? 0.4 : 20);
    call.paused_ns = paused_ns_so_far();
    barrier(*endpoint, call);
  });
}

TEST(a_child_made_by_fork_does_not_touch_the_trace) {
  require_fork();
  TemporaryTrace trace;
  run_threads(small_shape(1), [&](const EndpointPtr& endpoint) {
    endpoint->journal().trace(trace.file);
    barrier(*endpoint, barrier_call());
    Child child([&] { trace.file->close(); });
    CHECK_EQUAL(child.wait(), 0);
    for (int i = 0; i < 100; ++i) barrier(*endpoint, barrier_call());
  });
  trace.file->close();
  CHECK_EQUAL(trace.operations().size(), 101u);
}

TEST(a_rank_that_slept_in_vain_says_so_until_its_next_operation) {
  run_threads(small_shape(2), [](const EndpointPtr& endpoint) {
    Mail mail(endpoint);
    const JournalEntry& sleeping = endpoint->layout().mail_journal(endpoint->rank());
    if (endpoint->rank() == 1) {
      Bytes data(4);
      const auto transfer = mail.start_receive(0, 1, data, 0.1);
      bool is_late = false;
      try {
        mail.finish(transfer);
      } catch (const Trouble& trouble) {
        is_late = trouble.kind == FaultKind::kTimeout;
      }
      CHECK(is_late);
      CHECK_EQUAL(sleeping.seq.load(), 1u);
    }
    barrier(*endpoint, barrier_call());
    CHECK_EQUAL(sleeping.seq.load(), 0u);
  });
}
