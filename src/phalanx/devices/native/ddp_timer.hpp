// The clock that DistributedDataParallel's logger reads; torch has one for each kind of device it was built for.
#pragma once

#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "face.hpp"

namespace phalanx::devices {

struct DdpTimer final : c10d::Timer {
  std::optional<std::int64_t> measureDifference(Event start, Event end) override {
    const std::int64_t from = getTimeRef(start), to = getTimeRef(end);
    if (from == c10d::kUnsetTime || to == c10d::kUnsetTime || to < from) return std::nullopt;
    return to - from;
  }
};

inline void register_ddp_timer() {
  auto* registry = c10d::TimerRegistry();
  if (!registry->Has(face.type))
    registry->Register(face.type, [](Device) -> std::unique_ptr<c10d::Timer> { return std::make_unique<DdpTimer>(); });
}

}  // namespace phalanx::devices
