#include "cuda_driver.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <mutex>

namespace phalanx::cuda {
namespace {

struct Process {
  std::mutex mutex;
  CudaPaths paths;
  std::atomic<bool> is_used{false};
  std::atomic<bool> is_open{false};
  std::atomic<bool> is_forked{false};  // after it was opened
  CudaDriver driver;
};

Process& process() {
  static Process& one = *new Process;
  return one;
}

void* open_library(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw DeviceProblem(std::string("CUDA's driver can't be opened: ") + dlerror(), kCudaNoDevice);
  return library;
}

template <class Function>
void find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (function == nullptr) throw DeviceProblem(std::string("CUDA's driver is too old: it has no ") + symbol, kCudaNoDevice);
}

void open_driver(Process& self) {
  void* library = open_library(self.paths.driver);
#define PHALANX_FIND(member, symbol, ...) find(library, symbol, self.driver.member);
  PHALANX_DRIVER_FUNCTIONS(PHALANX_FIND)
#undef PHALANX_FIND
  self.driver.check(self.driver.init(0), "start CUDA");
  // Asked with every call of the driver, so it has to cost less than getpid().
  static const int registered = pthread_atfork(nullptr, nullptr, [] { process().is_forked = process().is_open.load(); });
  (void)registered;
  self.is_open = true;
}

}  // namespace

void use_cuda(CudaPaths paths) {
  Process& self = process();
  const std::lock_guard lock(self.mutex);
  if (self.is_open) return;
  self.paths = std::move(paths);
  self.is_used = true;
}

bool is_cuda_used() noexcept { return process().is_used; }

const CudaPaths& cuda_paths() { return process().paths; }

const CudaDriver& cuda_driver() {
  Process& self = process();
  if (!self.is_open) {
    const std::lock_guard lock(self.mutex);
    if (!self.is_open) open_driver(self);
  }
  if (self.is_forked.load(std::memory_order_relaxed)) [[unlikely]]
    throw DeviceProblem("CUDA was used before this process was forked, and a forked process can't use it; start ranks with "
                        "phalanx.spawn or phalanx run before the first use of CUDA, or with the spawn method",
                        kCudaNotInitialized);
  return self.driver;
}

const CudaDriver* cuda_if_usable() noexcept {
  const Process& self = process();
  return self.is_open && !self.is_forked ? &self.driver : nullptr;
}

std::string CudaDriver::describe(CudaResult result) const {
  const char *name = nullptr, *text = nullptr;
  error_name(result, &name);
  error_string(result, &text);
  return std::string(name != nullptr ? name : "CUDA error") + " (" + std::to_string(result) + ")" +
         (text != nullptr ? std::string(", ") + text : "");
}

void CudaDriver::fail(CudaResult result, const char* what) const {
  throw DeviceProblem(std::string("can't ") + what + ": " + describe(result), result);
}

}  // namespace phalanx::cuda
