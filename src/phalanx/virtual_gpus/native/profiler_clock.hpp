// Time marks of a device for torch's profilers, which otherwise warn at every operation.
#pragma once

#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "guard.hpp"

namespace phalanx::devices {

class ProfilerClock final : public torch::profiler::impl::ProfilerStubs {
 public:
  using Mark = torch::profiler::impl::ProfilerVoidEventStub;

  void record(DeviceIndex* device, Mark* mark, std::int64_t* cpu_ns) const override {
    if (device != nullptr) *device = current_device;
    *mark = std::make_shared<double>(std::max(now_s(), streams.busy_until(current_device, current_streams[current_device])));
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
  }
  // In microseconds.
  float elapsed(const Mark* start, const Mark* end) const override { return static_cast<float>((at_s(*end) - at_s(*start)) * 1e6); }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> visit) const override {
    const DeviceIndex before = current_device;
    for (int device = 0; device < face.count; ++device) {
      current_device = static_cast<DeviceIndex>(device);
      visit(device);
    }
    current_device = before;
  }
  void synchronize() const override { Guard().synchronizeDevice(current_device); }

 private:
  static double at_s(const Mark& mark) { return mark == nullptr ? 0 : *static_cast<const double*>(mark.get()); }
};

inline void register_profiler_clock() {
  auto* clock = new ProfilerClock;
  if (face.is_cuda())
    torch::profiler::impl::registerCUDAMethods(clock);
  else
    torch::profiler::impl::registerPrivateUse1Methods(clock);
}

}  // namespace phalanx::devices
