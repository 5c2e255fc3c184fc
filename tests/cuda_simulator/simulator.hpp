// What the parts of the simulated CUDA driver share. Numbers are those of the public interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace simulator {

using Result = int;
using Address = std::uint64_t;

inline constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kNoDevice = 100,
                        kInvalidDevice = 101, kInvalidImage = 200, kInvalidContext = 201, kPeerAccessUnsupported = 217,
                        kInvalidHandle = 400, kNotFound = 500, kNotReady = 600, kPeerAccessAlreadyEnabled = 704;

// Read at each call, so that a test can change it.
inline long setting(const char* name, long otherwise = 0) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::atol(text) : otherwise;
}

// kSuccess, or why nothing works here: cuInit was not called, or the process was forked since.
Result usable();

struct Context;
Context* current_context();
int device_of(const Context* context);

// Whether all of a range is memory of a device.
bool is_on_device(Address address, std::size_t bytes);

struct Stream;
Stream* stream_at(void* handle);  // null: no stream has this handle
// After all work of the stream so far: at once, or later when SIMULATED_DELAY_US is set.
void submit(Stream& stream, std::function<void()> work);
void wait_for_all_streams();

}  // namespace simulator
