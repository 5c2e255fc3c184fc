// The simulated CUDA driver in a test: its memory is the host's, and variables make it slow or fail.
#pragma once

#include <bit>
#include <cstdlib>

#include "../cuda/gpu.hpp"
#include "check.hpp"

namespace simulated {

using namespace phalanx;

inline void require_driver() {
  const char* path = std::getenv("PHALANX_CUDA_DRIVER");
  if (path == nullptr) throw check::Skipped("PHALANX_CUDA_DRIVER names no simulated driver");
  cuda::use_cuda({path, {path}, ""});
}

// A variable of the simulated driver while it lives.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }

 private:
  const char* name_;
};

// Kept until the process ends, or it is freed.
inline std::byte* device_memory(cuda::Gpu& gpu, std::size_t bytes) {
  const cuda::Current current(gpu);
  cuda::CudaPointer address = 0;
  cuda::cuda_driver().check(cuda::cuda_driver().allocate(&address, std::max<std::size_t>(bytes, 1)), "take memory");
  return std::bit_cast<std::byte*>(address);
}

}  // namespace simulated
