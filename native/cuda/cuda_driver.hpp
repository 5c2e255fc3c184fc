// CUDA's driver, found at run time: the engine is built without CUDA and runs where there is none.
//
// Only what is used is declared, by the names and numbers of the public interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace phalanx::cuda {

using CudaResult = int;
using CudaDevice = int;
using CudaPointer = std::uint64_t;
using CudaContext = struct CudaContextTag*;
using CudaStream = struct CudaStreamTag*;
using CudaEvent = struct CudaEventTag*;
using CudaModule = struct CudaModuleTag*;
using CudaFunction = struct CudaFunctionTag*;

inline constexpr CudaResult kCudaSuccess = 0, kCudaInvalidValue = 1, kCudaOutOfMemory = 2, kCudaNotInitialized = 3, kCudaNoDevice = 100,
                            kCudaPeerAccessAlreadyEnabled = 704, kCudaNotReady = 600;
inline constexpr int kAttributeMultiprocessors = 16, kAttributeMajor = 75, kAttributeMinor = 76;
inline constexpr int kPointerBufferId = 7, kPointerDevice = 9, kPointerIsExportable = 13;
inline constexpr unsigned kEventWithoutTiming = 2, kStreamNonBlocking = 1, kIpcLazyPeerAccess = 1;

struct CudaUuid {
  std::uint8_t bytes[16];
  bool operator==(const CudaUuid&) const = default;
};
struct IpcHandle {
  std::uint8_t bytes[64];
};

// A call of the driver or the compiler failed, or there is none.
struct DeviceProblem : std::runtime_error {
  explicit DeviceProblem(const std::string& text, CudaResult result = kCudaSuccess) : std::runtime_error(text), code(result) {}
  CudaResult code;
};

// Where things are; stored by use_cuda(), opened at first use.
struct CudaPaths {
  std::string driver;
  std::vector<std::string> compilers;
  std::string cache_folder;
};
void use_cuda(CudaPaths paths);
bool is_cuda_used() noexcept;
const CudaPaths& cuda_paths();

#define PHALANX_DRIVER_FUNCTIONS(F)                                                                                        \
  F(init, "cuInit", unsigned)                                                                                              \
  F(error_name, "cuGetErrorName", CudaResult, const char**)                                                                \
  F(error_string, "cuGetErrorString", CudaResult, const char**)                                                            \
  F(device_count, "cuDeviceGetCount", int*)                                                                                \
  F(device_get, "cuDeviceGet", CudaDevice*, int)                                                                           \
  F(device_uuid, "cuDeviceGetUuid_v2", CudaUuid*, CudaDevice)                                                              \
  F(device_attribute, "cuDeviceGetAttribute", int*, int, CudaDevice)                                                       \
  F(can_access_peer, "cuDeviceCanAccessPeer", int*, CudaDevice, CudaDevice)                                                \
  F(retain_context, "cuDevicePrimaryCtxRetain", CudaContext*, CudaDevice)                                                  \
  F(push_context, "cuCtxPushCurrent_v2", CudaContext)                                                                      \
  F(pop_context, "cuCtxPopCurrent_v2", CudaContext*)                                                                       \
  F(enable_peer_access, "cuCtxEnablePeerAccess", CudaContext, unsigned)                                                    \
  F(create_stream, "cuStreamCreateWithPriority", CudaStream*, unsigned, int)                                               \
  F(synchronize_stream, "cuStreamSynchronize", CudaStream)                                                                 \
  F(query_stream, "cuStreamQuery", CudaStream)                                                                             \
  F(stream_flags, "cuStreamGetFlags", CudaStream, unsigned*)                                                               \
  F(stream_wait, "cuStreamWaitEvent", CudaStream, CudaEvent, unsigned)                                                     \
  F(stream_is_capturing, "cuStreamIsCapturing", CudaStream, int*)                                                          \
  F(create_event, "cuEventCreate", CudaEvent*, unsigned)                                                                   \
  F(record_event, "cuEventRecord", CudaEvent, CudaStream)                                                                  \
  F(query_event, "cuEventQuery", CudaEvent)                                                                                \
  F(destroy_event, "cuEventDestroy_v2", CudaEvent)                                                                         \
  F(allocate, "cuMemAlloc_v2", CudaPointer*, std::size_t)                                                                  \
  F(free, "cuMemFree_v2", CudaPointer)                                                                                     \
  F(address_range, "cuMemGetAddressRange_v2", CudaPointer*, std::size_t*, CudaPointer)                                     \
  F(pointer_attribute, "cuPointerGetAttribute", void*, int, CudaPointer)                                                   \
  F(get_handle, "cuIpcGetMemHandle", IpcHandle*, CudaPointer)                                                              \
  F(open_handle, "cuIpcOpenMemHandle_v2", CudaPointer*, IpcHandle, unsigned)                                               \
  F(close_handle, "cuIpcCloseMemHandle", CudaPointer)                                                                      \
  F(copy_to_host, "cuMemcpyDtoHAsync_v2", void*, CudaPointer, std::size_t, CudaStream)                                     \
  F(copy_from_host, "cuMemcpyHtoDAsync_v2", CudaPointer, const void*, std::size_t, CudaStream)                             \
  F(copy_on_device, "cuMemcpyDtoDAsync_v2", CudaPointer, CudaPointer, std::size_t, CudaStream)                             \
  F(load_module, "cuModuleLoadData", CudaModule*, const void*)                                                             \
  F(get_function, "cuModuleGetFunction", CudaFunction*, CudaModule, const char*)                                           \
  F(launch_kernel, "cuLaunchKernel", CudaFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,   \
    CudaStream, void**, void**)

struct CudaDriver {
#define PHALANX_MEMBER(member, symbol, ...) CudaResult (*member)(__VA_ARGS__) = nullptr;
  PHALANX_DRIVER_FUNCTIONS(PHALANX_MEMBER)
#undef PHALANX_MEMBER

  // Throws DeviceProblem unless the call went well; `what` says what was tried.
  void check(CudaResult result, const char* what) const {
    if (result != kCudaSuccess) [[unlikely]]
      fail(result, what);
  }
  [[noreturn]] void fail(CudaResult result, const char* what) const;
  std::string describe(CudaResult result) const;
};

// Opened and initialised once per process. Throws DeviceProblem: there is none, or the process was forked from one that
// used CUDA.
const CudaDriver& cuda_driver();
// Null where cuda_driver() would throw: for what must not, such as giving things back in a forked process, whose they are not.
const CudaDriver* cuda_if_usable() noexcept;

}  // namespace phalanx::cuda
