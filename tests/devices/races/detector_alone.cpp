// The race detector without torch, for tests that feed it programs: plain functions over one detector.
#include "races_detector.hpp"

using namespace phalanx::devices::races;

namespace {
Detector* detector = new Detector;
std::vector<Report> found;
}  // namespace

extern "C" {

struct Touched {
  std::uint64_t block, lo, hi;
  std::int32_t tensor, is_write;
};

void start() {
  delete detector;
  detector = new Detector;
}

// Returns how many races were found.
std::int64_t launch(std::int64_t stream, const Touched* touched, std::int64_t count) {
  std::vector<Access> accesses;
  for (const Touched& one : std::span(touched, static_cast<std::size_t>(count))) {
    accesses.push_back({reinterpret_cast<const void*>(one.block), one.lo, one.hi, one.is_write != 0});
    accesses.back().dtype = names.get(std::to_string(one.tensor))->c_str();
  }
  const Where where;
  const Launch launch{{0, stream}, accesses, names.get("op"), where};
  found = detector->look(launch);
  detector->take_in(launch);
  return static_cast<std::int64_t>(found.size());
}

std::int64_t tensor_of(std::int64_t race) { return std::stol(found[static_cast<std::size_t>(race)].here.tensor); }
std::int64_t earlier_stream_of(std::int64_t race) { return found[static_cast<std::size_t>(race)].earlier.site.stream.stream; }

void record(std::int64_t event, std::int64_t stream) { detector->record(reinterpret_cast<void*>(event), {0, stream}); }
void wait(std::int64_t stream, std::int64_t event) { detector->wait({0, stream}, reinterpret_cast<void*>(event)); }
void forget_event(std::int64_t event) { detector->forget_event(reinterpret_cast<void*>(event)); }
void host_waits_for_stream(std::int64_t stream) { detector->host_waits_for_stream({0, stream}); }
void host_waits_for_device() { detector->host_waits_for_device(0); }
void host_waits_for_event(std::int64_t event) { detector->host_waits_for_event(reinterpret_cast<void*>(event)); }
void freed(std::uint64_t block) { detector->freed(reinterpret_cast<const void*>(block), {}); }

}  // extern "C"
