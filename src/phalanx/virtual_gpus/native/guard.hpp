// torch's interface to devices, streams and events, for C++ and for torch.accelerator, torch.Stream and torch.Event.
#pragma once

#if __has_include(<c10/core/DeviceCapability.h>)
#include <c10/core/DeviceCapability.h>
#endif
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "pending.hpp"
#include "races.hpp"
#include "streams.hpp"

namespace phalanx::devices {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return face.type; }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(face.count); }
#if __has_include(<c10/core/DeviceCapability.h>)
  c10::DeviceCapability getDeviceCapability(Device) const override {
    c10::DeviceCapability all;
    auto& types = all.capability_data.supported_scalar_types;
    types.has_QInt8 = types.has_QUInt8 = types.has_QInt32 = 0;  // no quantized tensors
    return all;
  }
#endif

  Device getDevice() const override { return face.device(current_device); }
  void setDevice(Device device) const override { current_device = checked_index(device); }
  Device exchangeDevice(Device device) const override {
    const Device old = getDevice();
    setDevice(device);
    return old;
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index() && device.index() < face.count) current_device = device.index();
  }

  Stream getStream(Device device) const override {
    const DeviceIndex index = checked_index(device);
    return make(index, current_streams[index]);
  }
  Stream getDefaultStream(Device device) const override { return make(checked_index(device), kDefaultStream); }
  Stream getNewStream(Device device, int priority = 0) const override {
    const DeviceIndex index = checked_index(device);
    return make(index, streams.take(index, priority));
  }
  Stream getStreamFromGlobalPool(Device device, bool is_high_priority = false) const override {
    return getNewStream(device, is_high_priority ? -1 : 0);
  }
  Stream exchangeStream(Stream stream) const override {
    const DeviceIndex index = checked(stream).device_index();
    const Stream old = make(index, current_streams[index]);
    current_streams[index] = stream.id();
    return old;
  }
  void* getStreamNativeHandle(const Stream stream) const override {
    return reinterpret_cast<void*>((static_cast<std::int64_t>(stream.device_index()) << 32) | stream.id());
  }
  bool queryStream(const Stream& stream) const override {
    if (now_s() < streams.busy_until(checked(stream).device_index(), stream.id())) return false;
    races::host_waits_for_stream(key_of(stream));  // the caller now knows that the stream is done
    return true;
  }
  void synchronizeStream(const Stream& stream) const override {
    synchronize_stream(checked(stream).device_index(), stream.id());
    races::host_waits_for_stream(key_of(stream));
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    checked_index(device);
    finish_pending(device);
    sleep_until(streams.device_busy_until(device));
    races::host_waits_for_device(device);
  }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    auto* recorded = static_cast<Event*>(*event);
    TORCH_CHECK(recorded->device < 0 || recorded->device == stream.device_index(), "Event device ",
                static_cast<int>(recorded->device), " does not match recording stream's device ",
                static_cast<int>(stream.device_index()), ".");
    streams.record(*recorded, checked(stream).device_index(), stream.id());
    races::record(recorded, key_of(stream));
  }
  void block(void* event, const Stream& stream) const override {
    if (event == nullptr) return;  // never recorded: nothing to wait for
    streams.raise(checked(stream).device_index(), stream.id(), streams.time_of(*static_cast<Event*>(event)));
    races::wait(key_of(stream), event);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    if (now_s() < streams.time_of(*static_cast<Event*>(event))) return false;
    races::host_waits_for_event(event);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    sleep_until(streams.time_of(*static_cast<Event*>(event)));
    races::host_waits_for_event(event);
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    races::forget_event(event);
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    races::record_stream(data.get(), key_of(stream));
  }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    TORCH_CHECK(first != nullptr && second != nullptr, "Both events must be recorded before calculating elapsed time.");
    const auto &start = *static_cast<Event*>(first), &end = *static_cast<Event*>(second);
    TORCH_CHECK(start.device == end.device, "Both events must be on the same device, but they are on ",
                static_cast<int>(start.device), " and ", static_cast<int>(end.device), ".");
    const double start_s = streams.time_of(start), end_s = streams.time_of(end), now = now_s();
    TORCH_CHECK(now >= start_s && now >= end_s, "Both events must be completed before calculating elapsed time.");
    return (end_s - start_s) * 1e3;
  }

 private:
  static Stream make(DeviceIndex device, StreamId stream) {
    return Stream(Stream::UNSAFE, face.device(device), stream);
  }
  // Callers may give a stream by its number, which may be wrong.
  static const Stream& checked(const Stream& stream) {
    TORCH_CHECK(stream.device_index() >= 0, "a stream needs a device");
    checked_index(stream.device_index());
    TORCH_CHECK(Streams::exists(stream.id()), "there is no stream ", stream.id(), " of virtual device ",
                static_cast<int>(stream.device_index()));
    return stream;
  }
  static races::StreamKey key_of(const Stream& stream) { return {stream.device_index(), stream.id()}; }
};

}  // namespace phalanx::devices
