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
  // A torch built for GPUs has one already, which asks the GPU. Ours has the higher priority.
  c10d::TimerRegistry()->Register(
      face.type, [](Device) -> std::unique_ptr<c10d::Timer> { return std::make_unique<DdpTimer>(); }, c10::REGISTRY_PREFERRED);
}

}  // namespace phalanx::devices
