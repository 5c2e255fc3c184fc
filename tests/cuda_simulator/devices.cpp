// Devices and contexts of the simulated driver, and the names of its errors.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "simulator.hpp"

namespace simulator {

struct Context {
  int device;
};

namespace {

constexpr int kMostDevices = 64;

struct State {
  std::mutex mutex;  // guards what follows
  pid_t initialized_in = 0;
  Context contexts[kMostDevices];
  std::set<std::pair<const Context*, const Context*>> peers;
};

State& state() {
  static State& one = *new State;  // never destroyed: threads of streams may outlive main()
  return one;
}

thread_local std::vector<Context*> context_stack;

int num_devices() { return static_cast<int>(std::min<long>(setting("SIMULATED_GPUS", 1), kMostDevices)); }

bool has_device(int device) { return device >= 0 && device < num_devices(); }

bool can_access(int device, int peer) { return device != peer && setting("SIMULATED_NO_PEER") == 0; }

// Every piece of device memory is a file.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

struct Error {
  Result result;
  const char *name, *text;
};
constexpr Error kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidImage, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kPeerAccessUnsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kPeerAccessAlreadyEnabled, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
};

const Error* error_of(Result result) {
  for (const Error& error : kErrors)
    if (error.result == result) return &error;
  return nullptr;
}

}  // namespace

Result usable() {
  const std::lock_guard lock(state().mutex);
  return state().initialized_in == getpid() ? kSuccess : kNotInitialized;
}

Context* current_context() { return context_stack.empty() ? nullptr : context_stack.back(); }

int device_of(const Context* context) { return context->device; }

}  // namespace simulator

using namespace simulator;

#define CHECK_USABLE() \
  if (const Result why = usable(); why != kSuccess) return why

EXPORT Result cuInit(unsigned) {
  const std::lock_guard lock(state().mutex);
  if (state().initialized_in != 0) return state().initialized_in == getpid() ? kSuccess : kNotInitialized;
  if (num_devices() == 0) return kNoDevice;
  allow_many_files();
  for (int device = 0; device < kMostDevices; ++device) state().contexts[device].device = device;
  state().initialized_in = getpid();
  return kSuccess;
}

EXPORT Result cuGetErrorName(Result result, const char** name) {
  const Error* error = error_of(result);
  *name = error != nullptr ? error->name : nullptr;
  return error != nullptr ? kSuccess : kInvalidValue;
}

EXPORT Result cuGetErrorString(Result result, const char** text) {
  const Error* error = error_of(result);
  *text = error != nullptr ? error->text : nullptr;
  return error != nullptr ? kSuccess : kInvalidValue;
}

EXPORT Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

EXPORT Result cuDeviceGetCount(int* count) {
  CHECK_USABLE();
  *count = num_devices();
  return kSuccess;
}

EXPORT Result cuDeviceGet(int* device, int ordinal) {
  CHECK_USABLE();
  if (!has_device(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

EXPORT Result cuDeviceGetUuid_v2(char* uuid, int device) {
  CHECK_USABLE();
  if (!has_device(device)) return kInvalidDevice;
  char text[17];
  std::snprintf(text, sizeof text, "simulated GPU %02d", device);
  std::memcpy(uuid, text, 16);
  return kSuccess;
}

EXPORT Result cuDeviceGetAttribute(int* value, int attribute, int device) {
  CHECK_USABLE();
  if (!has_device(device)) return kInvalidDevice;
  switch (attribute) {
    case 16: *value = 2; return kSuccess;  // multiprocessors: few, since every thread of a grid is a call here
    case 75: *value = 9; return kSuccess;  // compute capability
    case 76: *value = 0; return kSuccess;
    default: return kInvalidValue;
  }
}

EXPORT Result cuDeviceCanAccessPeer(int* can, int device, int peer) {
  CHECK_USABLE();
  if (!has_device(device) || !has_device(peer)) return kInvalidDevice;
  *can = can_access(device, peer);
  return kSuccess;
}

EXPORT Result cuDevicePrimaryCtxRetain(Context** context, int device) {
  CHECK_USABLE();
  if (!has_device(device)) return kInvalidDevice;
  *context = &state().contexts[device];
  return kSuccess;
}

EXPORT Result cuCtxGetCurrent(Context** context) {
  CHECK_USABLE();
  *context = current_context();
  return kSuccess;
}

EXPORT Result cuCtxPushCurrent_v2(Context* context) {
  CHECK_USABLE();
  if (context == nullptr) return kInvalidContext;
  context_stack.push_back(context);
  return kSuccess;
}

EXPORT Result cuCtxPopCurrent_v2(Context** context) {
  CHECK_USABLE();
  if (context_stack.empty()) return kInvalidContext;
  *context = context_stack.back();
  context_stack.pop_back();
  return kSuccess;
}

EXPORT Result cuCtxEnablePeerAccess(Context* peer, unsigned) {
  CHECK_USABLE();
  const Context* here = current_context();
  if (here == nullptr || peer == nullptr || peer == here) return kInvalidContext;
  if (!can_access(here->device, peer->device)) return kPeerAccessUnsupported;
  const std::lock_guard lock(state().mutex);
  return state().peers.emplace(here, peer).second ? kSuccess : kPeerAccessAlreadyEnabled;
}
