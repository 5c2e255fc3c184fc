// The race detector of virtual devices: what it finds, and what it leaves alone.
#include "../../src/phalanx/virtual_gpus/native/races.hpp"

#include <sys/wait.h>

#include <random>
#include <thread>

#include "check.hpp"

using namespace phalanx::devices::races;

namespace {

constexpr StreamKey kMain{0, 0}, kSide{0, 1}, kThird{0, 2}, kOtherDevice{1, 0};

struct Memory {
  std::uintptr_t start;

  Access whole(bool is_write, std::uintptr_t size_bytes = 4096) const { return part(is_write, 0, size_bytes); }
  Access part(bool is_write, std::uintptr_t from, std::uintptr_t to) const {
    return {reinterpret_cast<const void*>(start), start + from, start + to, is_write};
  }
  Access strided(bool is_write, std::uintptr_t from, const std::vector<std::int64_t>& sizes,
                 const std::vector<std::int64_t>& strides) const {
    const std::uintptr_t lo = start + from * 4;
    return {reinterpret_cast<const void*>(start), lo, lo + 4, is_write, sizes, strides, 4, "float32"};
  }
};

// A program on streams, told to a detector of its own.
class Program {
 public:
  std::vector<Report> launch(StreamKey stream, const Access& access, const char* operation = "aten::op") {
    return launch(stream, access, operation, here());
  }
  std::vector<Report> launch(StreamKey stream, const Access& access, const char* operation, const Where& where) {
    return run({stream, {&access, 1}, names.get(operation), where});
  }
  // As with warnings: whatever is found, it happens.
  std::vector<Report> run(const Launch& launch) {
    auto reports = detector.look(launch);
    detector.take_in(launch);
    return reports;
  }
  Launch collective(const Access& access, std::int64_t lane, const Where& where) {
    return Detector::collective(kMain, {&access, 1}, lane, names.get("all_reduce"), where);
  }
  std::vector<Report> copy_with_host(StreamKey stream, const Access& on_device, const Access& on_host, bool is_left_in_flight) {
    const Where where = here();
    Launch copy{stream, {&on_device, 1}, names.get("aten::copy_"), where};
    copy.on_host = &on_host;
    copy.is_left_in_flight = is_left_in_flight;
    return run(copy);
  }
  std::size_t write(StreamKey stream, const Memory& memory) { return launch(stream, memory.whole(true)).size(); }
  std::size_t read(StreamKey stream, const Memory& memory) { return launch(stream, memory.whole(false)).size(); }

  void wait_for(StreamKey later, StreamKey earlier) {
    int event = 0;
    detector.record(&event, earlier);
    detector.wait(later, &event);
    detector.forget_event(&event);
  }
  void allocate(const Memory& memory, StreamKey stream, std::size_t size_bytes = 4096) {
    detector.allocated(reinterpret_cast<const void*>(memory.start), size_bytes, stream, names.get("aten::empty"), here());
  }
  void free(const Memory& memory) { detector.freed(reinterpret_cast<const void*>(memory.start), here()); }

  // Each call stands on a line of its own.
  Where here() {
    Where where;
    where.place = {names.get("train.py"), ++line, names.get("step")};
    return where;
  }

  Detector detector;
  int line = 0;
};

constexpr Memory kX{0x10000}, kY{0x20000};

std::vector<std::int64_t> row_strides(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t at = sizes.size() - 1; at > 0; --at) strides[at - 1] = strides[at] * sizes[at];
  return strides;
}

}  // namespace

TEST(a_stream_that_does_not_wait_is_found) {
  Program program;
  CHECK_EQUAL(program.write(kMain, kX), 0u);
  CHECK_EQUAL(program.read(kSide, kX), 1u);
  CHECK_EQUAL(program.read(kMain, kX), 0u);
}

TEST(two_reads_are_no_race_and_a_write_after_them_is_one_with_each) {
  Program program;
  program.write(kMain, kX);
  program.wait_for(kSide, kMain);
  program.wait_for(kThird, kMain);
  CHECK_EQUAL(program.read(kSide, kX), 0u);
  CHECK_EQUAL(program.read(kThird, kX), 0u);
  CHECK_EQUAL(program.write(kMain, kX), 2u);
}

TEST(an_event_orders_what_was_before_it_and_no_more) {
  Program program;
  int event = 0;
  program.write(kMain, kX);
  program.detector.record(&event, kMain);
  program.write(kMain, kY);
  program.detector.wait(kSide, &event);
  CHECK_EQUAL(program.read(kSide, kX), 0u);
  CHECK_EQUAL(program.read(kSide, kY), 1u);
}

TEST(order_goes_on_from_stream_to_stream) {
  Program program;
  program.write(kMain, kX);
  program.wait_for(kSide, kMain);
  program.wait_for(kThird, kSide);
  CHECK_EQUAL(program.write(kThird, kX), 0u);
}

TEST(an_event_that_was_never_recorded_orders_nothing) {
  Program program;
  int event = 0;
  program.write(kMain, kX);
  program.detector.wait(kSide, &event);
  CHECK_EQUAL(program.read(kSide, kX), 1u);
}

TEST(what_the_host_has_waited_for_lies_before_all_later_launches) {
  Program program;
  program.write(kSide, kX);
  program.detector.host_waits_for_stream(kSide);
  CHECK_EQUAL(program.write(kMain, kX), 0u);
  program.write(kSide, kX);  // itself a race with the write on the main stream
  program.detector.host_waits_for_device(1);
  CHECK_EQUAL(program.write(kMain, kX), 1u);
  program.detector.host_waits_for_device(0);
  CHECK_EQUAL(program.write(kThird, kX), 0u);
}

TEST(slices_that_do_not_overlap_are_no_race) {
  Program program;
  program.launch(kMain, kX.part(true, 0, 1024));
  CHECK(program.launch(kSide, kX.part(true, 1024, 4096)).empty());
  CHECK_EQUAL(program.launch(kSide, kX.part(false, 1000, 1024)).size(), 1u);
  CHECK_EQUAL(program.launch(kThird, kX.part(false, 0, 4096)).size(), 2u);
}

TEST(columns_are_told_apart) {
  Program program;
  const std::vector<std::int64_t> sizes{16}, strides{8};
  program.launch(kMain, kX.strided(true, 0, sizes, strides));
  CHECK(program.launch(kSide, kX.strided(true, 1, sizes, strides)).empty());
  CHECK_EQUAL(program.launch(kThird, kX.strided(false, 0, sizes, strides)).size(), 1u);
  CHECK_EQUAL(program.launch(kThird, kX.part(true, 0, 512)).size(), 2u);
  program.launch(kThird, kX.part(true, 32, 36));
  CHECK(program.launch(kThird, kX.strided(true, 1, sizes, strides)).empty());
  CHECK_EQUAL(program.launch(kMain, kX.strided(true, 0, sizes, strides)).size(), 2u);
}

// Against the plain truth: every byte written down.
TEST(footprints_never_miss_a_common_byte_and_seldom_invent_one) {
  std::mt19937 random(7);
  const auto below = [&](std::int64_t most) { return std::int64_t(random() % std::uint64_t(most)); };
  int num_disjoint = 0, num_proved = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::vector<std::int64_t> shape{1 + below(4), 1 + below(4), 1 + below(4)};
    const auto strides = row_strides(shape);
    std::vector<std::set<std::int64_t>> bytes(2);
    std::vector<Footprint> footprints;
    for (auto& touched : bytes) {
      std::vector<std::int64_t> sizes, steps;
      std::int64_t offset = 0;
      for (std::size_t dim = 0; dim < 3; ++dim) {
        const std::int64_t from = below(shape[dim]), step = 1 + below(2);
        offset += from * strides[dim];
        sizes.push_back(1 + below((shape[dim] - from - 1) / step + 1));
        steps.push_back(strides[dim] * step);
      }
      footprints.emplace_back(std::uintptr_t(4 * offset), sizes, steps, 4);
      for (std::int64_t i = 0; i < sizes[0]; ++i)
        for (std::int64_t j = 0; j < sizes[1]; ++j)
          for (std::int64_t k = 0; k < sizes[2]; ++k) touched.insert(offset + i * steps[0] + j * steps[1] + k * steps[2]);
    }
    CHECK_EQUAL(footprints[0].lo(), std::uintptr_t(4 * *bytes[0].begin()));
    CHECK_EQUAL(footprints[0].hi(), std::uintptr_t(4 * *bytes[0].rbegin() + 4));
    const bool meet = std::any_of(bytes[0].begin(), bytes[0].end(), [&](std::int64_t at) { return bytes[1].contains(at); });
    const bool is_proved = footprints[0].is_disjoint_from(footprints[1]);
    CHECK_EQUAL(is_proved, footprints[1].is_disjoint_from(footprints[0]));
    CHECK(!(meet && is_proved));
    num_disjoint += !meet;
    num_proved += is_proved;
  }
  CHECK(num_proved > num_disjoint * 9 / 10);
}

TEST(a_tensor_without_elements_touches_nothing) {
  Program program;
  const std::vector<std::int64_t> sizes{3, 0}, strides{1, 1};
  program.write(kMain, kX);
  CHECK(program.launch(kSide, kX.strided(true, 0, sizes, strides)).empty());
}

TEST(memory_belongs_to_the_stream_it_was_allocated_on) {
  Program program;
  program.allocate(kX, kMain);
  const auto reports = program.launch(kSide, kX.whole(true));
  CHECK_EQUAL(reports.size(), 1u);
  CHECK_EQUAL(name_of(reports[0].kind), std::string("allocation"));
  program.allocate(kY, kMain);
  program.wait_for(kSide, kMain);
  CHECK_EQUAL(program.write(kSide, kY), 0u);
}

TEST(freed_memory_that_another_stream_still_reads_is_a_race_when_it_is_used_again) {
  Program program;
  program.allocate(kX, kMain);
  program.write(kMain, kX);
  program.wait_for(kSide, kMain);
  program.read(kSide, kX);
  program.free(kX);
  program.allocate(kY, kMain);
  const auto reports = program.launch(kMain, kY.whole(true));
  CHECK_EQUAL(reports.size(), 1u);
  CHECK_EQUAL(name_of(reports[0].kind), std::string("reuse"));
  CHECK_EQUAL(reports[0].earlier.site.place.line, 3);
  CHECK_EQUAL(reports[0].freed.place.line, 4);
  CHECK_EQUAL(reports[0].allocated.place.line, 1);
  CHECK_EQUAL(program.write(kMain, kY), 0u);  // told once
}

namespace {

// A tensor of the main stream is read by the side stream and freed; returns what its successor hears.
template <typename Before, typename After>
std::size_t reuse_with(const Before& before_free, const After& after_free, std::size_t size_bytes = 4096) {
  Program program;
  program.allocate(kX, kMain);
  program.write(kMain, kX);
  program.wait_for(kSide, kMain);
  program.read(kSide, kX);
  before_free(program);
  program.free(kX);
  after_free(program);
  program.allocate(kY, kMain, size_bytes);
  return program.write(kMain, kY);
}

constexpr auto kNothing = [](Program&) {};

}  // namespace

TEST(memory_is_used_again_safely_after_record_stream_or_a_wait) {
  const auto record = [](Program& program) { program.detector.record_stream(reinterpret_cast<const void*>(kX.start), kSide); };
  const auto wait = [](Program& program) { program.wait_for(kMain, kSide); };
  CHECK_EQUAL(reuse_with(kNothing, kNothing), 1u);
  CHECK_EQUAL(reuse_with(record, kNothing), 0u);
  CHECK_EQUAL(reuse_with(wait, kNothing), 0u);
  CHECK_EQUAL(reuse_with(kNothing, wait), 0u);
  CHECK_EQUAL(reuse_with(kNothing, [](Program& program) { program.detector.host_waits_for_device(0); }), 0u);
  CHECK_EQUAL(reuse_with(kNothing, [](Program& program) { program.detector.emptied_cache(); }), 0u);
}

TEST(only_what_fits_is_used_again) {
  CHECK_EQUAL(reuse_with(kNothing, kNothing, 100), 1u);
  CHECK_EQUAL(reuse_with(kNothing, kNothing, 5000), 0u);
}

TEST(memory_allocated_before_a_wait_may_be_used_after_it) {
  Program program;
  program.allocate(kX, kMain);
  program.wait_for(kSide, kMain);
  program.read(kSide, kX);
  program.free(kX);
  program.allocate(kY, kMain);
  program.wait_for(kMain, kSide);
  CHECK_EQUAL(program.write(kMain, kY), 0u);
}

TEST(an_address_that_comes_again_has_no_past) {
  Program program;
  program.allocate(kX, kMain);
  program.write(kMain, kX);
  program.free(kX);
  program.allocate(kX, kSide);
  CHECK_EQUAL(program.write(kSide, kX), 0u);
}

TEST(a_collective_is_ordered_behind_its_stream_and_has_to_be_waited_for) {
  Program program;
  program.write(kMain, kX);
  const Access access = kX.whole(true);
  const Where where = program.here();
  const Launch collective = program.collective(access, 0, where);
  CHECK(program.detector.look(collective).empty());
  const auto ticket = program.detector.take_in_collective(collective);
  const auto reports = program.launch(kMain, kX.whole(false));
  CHECK_EQUAL(reports.size(), 1u);
  CHECK_EQUAL(name_of(reports[0].kind), std::string("collective"));
  const auto again = program.detector.take_in_collective(collective);
  program.detector.wait_collective(ticket, kMain);
  program.detector.wait_collective(again, kMain);
  CHECK_EQUAL(program.write(kMain, kX), 0u);
}

TEST(collectives_of_two_groups_are_not_ordered) {
  Program program;
  const Access access = kX.whole(true);
  const Where where = program.here();
  const Launch of_one = program.collective(access, 0, where), of_other = program.collective(access, 1, where);
  program.detector.take_in_collective(of_one);
  CHECK(program.detector.look(of_one).empty());
  CHECK_EQUAL(program.detector.look(of_other).size(), 1u);
}

TEST(a_copy_between_devices_orders_both) {
  Program program;
  program.write(kMain, kX);
  const Access accesses[] = {kX.whole(false), kY.whole(true)};
  const Where where = program.here();
  const Launch copy = Detector::copy_between_devices(kMain, kOtherDevice, accesses, names.get("aten::copy_"), where);
  CHECK(program.detector.look(copy).empty());
  program.detector.take_in_copy_between_devices(copy);
  CHECK_EQUAL(program.read(kOtherDevice, kY), 0u);
  CHECK_EQUAL(program.write(kOtherDevice, kX), 0u);
  CHECK_EQUAL(program.read({1, 5}, kY), 1u);
}

TEST(the_host_has_to_wait_for_a_copy_into_pinned_memory) {
  Program program;
  const Access device = kX.whole(false), host = kY.whole(true);
  const Access look = kY.part(false, 100, 104), elsewhere = kY.part(false, 5000, 5004);
  program.copy_with_host(kSide, device, host, true);
  const auto touch = [&](const Access& access) {
    return program.detector.host_touches({&access, 1}, names.get("aten::sum"), program.here()).size();
  };
  CHECK_EQUAL(touch(look), 1u);
  CHECK_EQUAL(touch(elsewhere), 0u);
  CHECK(program.detector.has_copies_in_flight());
  program.detector.host_waits_for_stream(kSide);
  CHECK_EQUAL(touch(look), 0u);
  CHECK(!program.detector.has_copies_in_flight());
}

TEST(the_host_may_read_but_not_write_what_a_copy_reads) {
  Program program;
  const Access device = kX.whole(true), host = kY.whole(false);
  program.copy_with_host(kMain, device, host, true);
  const Access read = kY.whole(false), write = kY.whole(true);
  CHECK(program.detector.host_touches({&read, 1}, names.get("aten::sum"), program.here()).empty());
  CHECK_EQUAL(program.detector.host_touches({&write, 1}, names.get("aten::fill_"), program.here()).size(), 1u);
}

TEST(a_blocking_copy_is_compared_with_copies_in_flight_and_leaves_none_behind) {
  Program program;
  CHECK(program.copy_with_host(kSide, kX.whole(false), kY.whole(true), false).empty());
  CHECK(!program.detector.has_copies_in_flight());
  program.copy_with_host(kSide, kX.whole(false), kY.whole(true), true);
  const auto reports = program.copy_with_host(kMain, kX.whole(true), kY.whole(false), false);
  CHECK_EQUAL(reports.size(), 2u);  // both the device's and the pinned memory
  CHECK_EQUAL(name_of(reports[1].kind), std::string("streams"));
  CHECK_EQUAL(reports[1].earlier.site.place.line, 2);
}

TEST(of_very_many_copies_in_flight_the_latest_are_kept) {
  Program program;
  constexpr std::uintptr_t kCount = 3000;
  const auto buffer = [](std::uintptr_t number) { return Memory{0x1000000 + number * 0x1000}; };
  for (std::uintptr_t number = 0; number < kCount; ++number)
    program.copy_with_host(kSide, kX.whole(false), buffer(number).whole(true, 64), true);
  const auto is_in_flight = [&](std::uintptr_t number) {
    const Access look = buffer(number).whole(false, 64);
    return program.detector.is_in_flight({&look, 1});
  };
  CHECK(!is_in_flight(0));
  CHECK(is_in_flight(kCount - 500));
  CHECK(is_in_flight(kCount - 1));
  program.detector.host_waits_for_stream(kSide);
  CHECK(!program.detector.has_copies_in_flight());
}

TEST(the_text_names_both_lines_the_order_and_what_to_do) {
  Program program;
  const std::vector<std::int64_t> sizes{8, 16}, strides{16, 1};
  program.launch(kSide, kX.strided(true, 0, sizes, strides), "aten::relu_");
  program.wait_for(kMain, kSide);
  program.launch(kSide, kX.strided(true, 0, sizes, strides), "aten::mul_");
  const auto reports = program.launch(kMain, kX.strided(false, 0, sizes, strides), "aten::sum");
  CHECK_EQUAL(reports.size(), 1u);
  CHECK_EQUAL(Wording(reports[0], "cuda").text(), std::string(
      "race on cuda:0: stream 0 reads what stream 1 writes, and nothing orders them: float32 (8, 16), "
      "train.py:3 and train.py:2\n"
      "  here     aten::sum reads float32 (8, 16) on stream 0 (the default one), train.py:3 in step\n"
      "  earlier  aten::mul_ wrote float32 (8, 16) on stream 1, train.py:2 in step\n"
      "  order    stream 0 has waited for stream 1 only up to aten::relu_, train.py:1 in step\n"
      "  do       before train.py:3 call torch.cuda.current_stream().wait_stream(s), s being the stream of train.py:2; or "
      "take event = s.record_event() after train.py:2 and call event.wait() before train.py:3"));
}

TEST(the_backward_pass_is_told_by_its_line_in_forward) {
  Program program;
  Where forward = program.here();
  forward.forward = {1, 5, true};
  const Access write = kX.whole(true);
  program.launch(kMain, write, "aten::mse_loss", forward);
  Where later = program.here();
  later.forward = {1, 5, true};  // makes no node: the number is still that of the node before
  program.launch(kMain, write, "aten::mul", later);
  Where backward;
  backward.backward_node = names.get("MseLossBackward0");
  backward.forward = {1, 5, true};
  auto reports = program.launch(kSide, write, "aten::mse_loss_backward", backward);
  CHECK_EQUAL(reports[0].here.site.line().line, 1);
  backward.backward_node = names.get("SelectBackward0");
  reports = program.launch(kThird, write, "aten::select_backward", backward);
  CHECK(!reports[0].here.site.line().is_known());
}

TEST(many_slices_and_columns_keep_memory_bounded) {
  BlockHistory history;
  for (std::uintptr_t at = 0; at < 200000; ++at) {
    Touch touch;
    touch.launch = at;
    history.take_in(Footprint(8 * at, 8 * at + 4), touch);
  }
  CHECK(history.num_parts() <= 1u << 16);
  BlockHistory columns;
  for (std::int64_t at = 0; at < 3000; ++at) {
    const std::int64_t sizes[] = {8}, strides[] = {4096};
    const Touch touch{0, 1, 0, 0, TouchKind::kOperation, true};
    columns.take_in(Footprint(std::uintptr_t(4 * at), sizes, strides, 4), touch);
  }
  CHECK(columns.num_parts() <= 256);
}

TEST(raising_throws_and_warning_keeps_each_pair_of_lines_once) {
  clear();
  set_mode(Mode::kRaise);
  const Access write = kX.whole(true);
  launch(kMain, {&write, 1}, "aten::fill_");
  const std::string problem = check::problem_of([&] { launch(kSide, {&write, 1}, "aten::mul_"); });
  CHECK(problem.starts_with("RaceError: race on cuda:0: stream 1 writes what stream 0 writes"));
  clear();
  set_mode(Mode::kWarn);
  for (int i = 0; i < 10; ++i) {
    launch(kMain, {&write, 1}, "aten::fill_");
    launch(kSide, {&write, 1}, "aten::mul_");
  }
  CHECK_EQUAL(state.seen.size(), 2u);
  set_mode(Mode::kOff);
  launch(kMain, {&write, 1}, "aten::fill_");
  CHECK_EQUAL(state.seen.size(), 2u);
  clear();
}

// Raised by the operation that is refused, and by none that comes later.
TEST(what_was_refused_has_not_happened) {
  clear();
  set_mode(Mode::kRaise);
  const Access write = kX.whole(true), other = kY.whole(false);
  const std::vector<Access> both{write, other};
  const auto is_refused = [](const auto& operation) { return check::problem_of(operation).starts_with("RaceError"); };
  launch(kMain, {&write, 1}, "aten::fill_");
  CHECK(is_refused([&] { launch(kSide, both, "aten::mul_"); }));
  CHECK(is_refused([&] { copy_with_host(kSide, write, kY.whole(false), true, true, "aten::copy_"); }));
  CHECK(is_refused([&] { copy_between_devices({0, 5}, kOtherDevice, both, "aten::copy_"); }));
  launch(kSide, {&other, 1}, "aten::sum");
  CHECK(is_refused([&] { begin_collective(kThird, both, 0, "all_reduce"); }));
  CHECK(!has_copies_in_flight());
  const Access write_other = kY.whole(true);
  host_waits_for_stream(kSide);
  launch(kMain, {&write, 1}, "aten::add_");
  launch(kOtherDevice, {&write_other, 1}, "aten::fill_");
  set_mode(Mode::kOff);
  clear();
}

TEST(a_forked_child_begins_with_nothing_under_way) {
  clear();
  set_mode(Mode::kWarn);
  const Access on_device = kX.whole(false), on_host = kY.whole(true);
  copy_with_host(kSide, on_device, on_host, true, true, "aten::copy_");
  CHECK(has_copies_in_flight());
  const pid_t child = fork();
  if (child == 0) {
    host_touches({&on_host, 1}, "aten::zero_");
    launch(kMain, {&on_device, 1}, "aten::sum");
    _exit(has_copies_in_flight() || !state.seen.empty() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK_EQUAL(status, 0);
  CHECK(has_copies_in_flight());
  set_mode(Mode::kOff);
  clear();
}

TEST(threads_may_share_it) {
  clear();
  set_mode(Mode::kWarn);
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([number] {
      const Memory memory{0x100000u * std::uintptr_t(number + 1)};
      const StreamKey stream{0, number};
      const Access access = memory.whole(true);
      int event = 0;
      for (int i = 0; i < 500; ++i) {
        const Operation scope;
        allocated(reinterpret_cast<const void*>(memory.start), 4096, stream);
        launch(stream, {&access, 1}, "aten::add_");
        record(&event, stream);
        wait({0, (number + 1) % 4}, &event);
        freed(reinterpret_cast<const void*>(memory.start));
      }
      forget_event(&event);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(state.seen.empty());
  set_mode(Mode::kOff);
}
