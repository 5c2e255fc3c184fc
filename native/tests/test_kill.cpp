// A rank killed at any point: every survivor learns it within a second, by name.
#include <sys/mman.h>
#include <sys/ptrace.h>

#include <random>

#include "../core/process_status.hpp"
#include "mail.hpp"
#include "plain_collectives.hpp"

using namespace ranks;

namespace {

constexpr int kRanks = 3;
constexpr int kVictim = 1;

// What the survivors tell the test, in memory that all of them map.
struct Report {
  std::atomic<std::int64_t> thrown_ns;
  std::atomic<int> kind;
  std::atomic<int> culprit;
};

class Reports {
 public:
  Reports()
      : data_(static_cast<Report*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Reports() { munmap(data_, 4096); }
  Report& of(int rank) const { return data_[rank]; }

 private:
  Report* data_;
};

using Loop = std::function<void(const EndpointPtr&)>;

void repeat_collectives(const EndpointPtr& endpoint, std::size_t count) {
  PlainCollectives<float> plain(*endpoint, 3);
  for (;;) {
    plain.all_reduce(count);
    plain.broadcast(count, kVictim);
    plain.all_gather(std::vector<std::size_t>(kRanks, count));
    plain.reduce(count, 0);
    plain.scatter(count, kVictim);
    plain.all_to_all([&](int, int) { return count; });
    plain.gather(count, 2);
    plain.reduce_scatter(std::vector<std::size_t>(kRanks, count));
  }
}

void repeat_mail(const EndpointPtr& endpoint) {
  Mail mail(endpoint);
  const int me = endpoint->rank(), next = (me + 1) % kRanks, before = (me + kRanks - 1) % kRanks;
  for (std::uint64_t i = 0;; ++i) {
    const std::size_t size = i % 3 * 9000 + 10;
    Bytes out = message_of(std::uint64_t(me) + i, size), in(size);
    const auto send = mail.start_send(next, 1, out);
    const auto receive = mail.start_receive(before, 1, in);
    mail.finish(send);
    mail.finish(receive);
    CHECK(in == message_of(std::uint64_t(before) + i, size));
  }
}

// One group with a victim. Kills it in `kill`, which gets the victim and the layout, and looks at the survivors.
class Murder {
 public:
  Murder(const Loop& survivors, const Loop& victim)
      : segment_(create_group_segment(small_shape(kRanks))),
        layout_(segment_.data(), kRanks, small_shape(kRanks).chunk_bytes, small_shape(kRanks).eager_bytes,
                small_shape(kRanks).bulk_bytes) {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == kVictim) children_.push_back(fork_rank(segment_, rank, victim));
      else children_.push_back(fork_rank(segment_, rank, [&, rank](const EndpointPtr& endpoint) { survive(endpoint, rank, survivors); }));
    }
  }

  Child& victim() { return children_[kVictim]; }
  const Layout& layout() const { return layout_; }
  bool has_fault() const { return layout_.header().fault.state.load() == 2; }

  // `is_told`: the victim may have told something else before it died.
  void check(bool is_told = false) {
    const std::int64_t killed_ns = monotonic_ns();
    victim().kill();
    Problems problems;
    for (int rank = 0; rank < kRanks; ++rank) {
      const int status = children_[std::size_t(rank)].wait(10);
      if (rank == kVictim) continue;
      const Report& report = reports_.of(rank);
      const double took_s = double(report.thrown_ns.load() - killed_ns) * 1e-9;
      if (status != 0) problems.add(rank, "ended with wait status " + std::to_string(status));
      else if (took_s > patience()) problems.add(rank, "noticed after " + std::to_string(took_s) + " s");
      else if (!is_told && (report.kind != int(FaultKind::kPeerDied) || report.culprit != kVictim))
        problems.add(rank, "blamed " + std::to_string(report.culprit) + " with kind " + std::to_string(report.kind));
    }
    problems.raise();
  }

 private:
  void survive(const EndpointPtr& endpoint, int rank, const Loop& loop) const {
    Report& report = reports_.of(rank);
    try {
      loop(endpoint);
    } catch (const Trouble& trouble) {
      report.kind = int(trouble.kind);
      report.culprit = trouble.culprit;
      report.thrown_ns = monotonic_ns();
    }
    // The group is over: whatever comes next must not hang either.
    trouble_of([&] { barrier(*endpoint, call_of(Operation::kBarrier)); });
  }

  Reports reports_;
  Segment segment_;
  Layout layout_;
  std::vector<Child> children_;
};

// The victim stops here, and is led on by the test instruction by instruction.
void stop_for_tracing() {
  CHECK_EQUAL(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr), 0);
  raise(SIGSTOP);
}

// False if it was not there any more.
bool step(pid_t pid, std::size_t instructions) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) return false;
  for (std::size_t i = 0; i < instructions; ++i) {
    if (ptrace(PTRACE_SINGLESTEP, pid, nullptr, nullptr) != 0) return false;
    if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) return false;
  }
  return true;
}

void kill_by_instructions(const Loop& survivors, const Loop& victim, const std::vector<std::size_t>& instructions,
                          bool is_told = false) {
  for (const std::size_t count : instructions) {
    Murder murder(survivors, [&](const EndpointPtr& endpoint) {
      stop_for_tracing();
      victim(endpoint);
    });
    CHECK(step(murder.victim().pid(), count));
    murder.check(is_told);
  }
}

std::vector<std::size_t> random_counts(std::size_t how_many, std::size_t below) {
  std::mt19937 random{std::uint32_t(below)};
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i < how_many; ++i) counts.push_back(random() % below);
  return counts;
}

}  // namespace

TEST(killed_at_any_instruction_of_a_small_operation) {
  require_fork();
  const Loop loop = [](const EndpointPtr& endpoint) { repeat_collectives(endpoint, 20); };
  kill_by_instructions(loop, loop, random_counts(25, 3000));
}

TEST(killed_at_any_instruction_of_a_large_operation) {
  require_fork();
  const Loop loop = [](const EndpointPtr& endpoint) { repeat_collectives(endpoint, 5000); };
  kill_by_instructions(loop, loop, random_counts(10, 20000));
}

TEST(killed_at_any_instruction_of_a_message) {
  require_fork();
  kill_by_instructions(repeat_mail, repeat_mail, random_counts(10, 12000));
}

TEST(killed_at_any_instruction_of_setting_a_fault) {
  require_fork();
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i < 60; ++i) counts.push_back(i * (kIsSanitized ? 12 : 6));
  kill_by_instructions([](const EndpointPtr& endpoint) { barrier(*endpoint, call_of(Operation::kBarrier)); },
                       [](const EndpointPtr& endpoint) {
                         set_fault(endpoint->layout(), FaultKind::kAborted, kVictim, kVictim, 1, {"stop"});
                         wait_until([] { return false; });
                       },
                       counts, true);
}

TEST(killed_at_every_step_of_a_series) {
  require_fork();
  const Loop loop = [](const EndpointPtr& endpoint) { repeat_collectives(endpoint, 5000); };
  for (Seq seq = 1; seq <= 16; ++seq) {
    for (std::uint64_t step = 0; step < 3; ++step) {
      Murder murder(loop, loop);
      const Progress& progress = murder.layout().progress(kVictim);
      wait_until([&] { return progress.arrived.load() >= seq && ((progress.step_of.load() == seq && progress.step.load() >= step) || progress.arrived.load() > seq); });
      murder.check();
    }
  }
}

TEST(killed_at_random_times) {
  require_fork();
  std::mt19937 random(4);
  for (int i = 0; i < 40; ++i) {
    const std::size_t count = i % 2 == 0 ? 20 : 5000;
    const Loop loop = [&](const EndpointPtr& endpoint) {
      if (i % 4 == 3) repeat_mail(endpoint); else repeat_collectives(endpoint, count);
    };
    Murder murder(loop, loop);
    wait_until([&] { return murder.layout().member(kVictim).state.load() == MemberState::kPresent; });
    usleep(random() % 20000);
    murder.check();
  }
}

TEST(killed_in_the_middle_of_a_large_message) {
  require_fork();
  for (std::uint64_t chunk = 0; chunk < 6; ++chunk) {
    Murder murder(repeat_mail, repeat_mail);
    const Outbound& outbound = murder.layout().outbound(kVictim);
    wait_until([&] { return outbound.message.load() != 0 && outbound.produced.load() >= chunk % 3; });
    murder.check();
  }
}

// Nobody waits for the launcher, but what it says about a rank counts.
TEST(a_death_the_launcher_declares) {
  require_fork();
  const Segment segment = create_group_segment(small_shape(2));
  const auto survivor = endpoint_on(segment, 0);
  declare_dead(survivor->layout(), 1, 256 + SIGKILL);
  const Trouble trouble = trouble_of([&] { barrier(*survivor, call_of(Operation::kBarrier)); });
  CHECK_EQUAL(int(trouble.kind), int(FaultKind::kPeerDied));
  CHECK_EQUAL(survivor->peers().exit_status(1), 256 + SIGKILL);
}

TEST(the_exit_status_of_a_killed_rank_is_known) {
  require_fork();
  const Segment segment = create_group_segment(small_shape(2));
  const auto survivor = endpoint_on(segment, 0);
  Child victim = fork_rank(segment, 1, [](const EndpointPtr&) { wait_until([] { return false; }); });
  wait_until([&] { return survivor->layout().member(1).state.load() == MemberState::kPresent; });
  victim.kill();
  CHECK_EQUAL(trouble_of([&] { barrier(*survivor, call_of(Operation::kBarrier)); }).culprit, 1);
  CHECK_EQUAL(survivor->peers().exit_status(1), 256 + SIGKILL);
}

TEST(the_start_and_the_end_of_a_process_are_found_whatever_its_name_is) {
  require_fork();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_NAME, "a\nb) Z 1\n");
    _exit(7);
  }
  siginfo_t ended{};
  CHECK_EQUAL(waitid(P_PID, id_t(pid), &ended, WEXITED | WNOWAIT), 0);
  const std::uint64_t start = process_start_ticks(pid);
  const std::int32_t status = status_from_proc(pid, start);
  waitpid(pid, nullptr, 0);
  CHECK(start > 0);
  CHECK_EQUAL(status, 7);
}
