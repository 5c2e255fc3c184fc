#include "gpu.hpp"

#include <algorithm>
#include <bit>

namespace phalanx::cuda {
namespace {

constexpr std::size_t kIdleBytes = 256u << 20;  // memory of our own that is kept for the next operation
constexpr std::size_t kLeastBytes = 2u << 20;  // smaller ones would share a block that is exported as a whole
constexpr int kHighPriority = -5;  // beyond the range, which the driver cuts off: before the program's own streams

std::mutex& gpus_mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

}  // namespace

Current::Current(const Gpu& gpu) { cuda_driver().check(cuda_driver().push_context(gpu.context()), "make the GPU's context current"); }

Current::~Current() {
  CudaContext previous;
  if (const CudaDriver* driver = cuda_if_usable()) driver->pop_context(&previous);
}

Gpu& Gpu::at(int ordinal) {
  static std::map<int, std::unique_ptr<Gpu>>& gpus = *new std::map<int, std::unique_ptr<Gpu>>;
  const CudaDriver& driver = cuda_driver();  // also finds out whether this process was forked
  const std::lock_guard lock(gpus_mutex());
  auto& gpu = gpus[ordinal];
  if (!gpu) {
    int count = 0;
    driver.check(driver.device_count(&count), "count the GPUs");
    if (ordinal < 0 || ordinal >= count)
      throw DeviceProblem("there is no cuda:" + std::to_string(ordinal) + "; this process sees " + std::to_string(count) +
                          (count == 1 ? " GPU" : " GPUs"));
    gpu.reset(new Gpu(ordinal));
  }
  return *gpu;
}

Gpu::Gpu(int ordinal) : ordinal_(ordinal) {
  const CudaDriver& driver = cuda_driver();
  driver.check(driver.device_get(&device_, ordinal), "find the GPU");
  driver.check(driver.retain_context(&context_, device_), "use the GPU's context");
  driver.check(driver.device_uuid(&uuid_, device_), "tell which GPU it is");
  driver.check(driver.device_attribute(&num_multiprocessors_, kAttributeMultiprocessors, device_), "ask the GPU");
  driver.check(driver.device_attribute(&major_, kAttributeMajor, device_), "ask the GPU");
  driver.check(driver.device_attribute(&minor_, kAttributeMinor, device_), "ask the GPU");
}

CudaStream Gpu::take_stream() {
  {
    const std::lock_guard lock(mutex_);
    if (!streams_.empty()) {
      CudaStream stream = streams_.back();
      streams_.pop_back();
      return stream;
    }
  }
  const Current current(*this);
  CudaStream stream = nullptr;
  cuda_driver().check(cuda_driver().create_stream(&stream, kStreamNonBlocking, kHighPriority), "make a stream");
  return stream;
}

void Gpu::give_stream(CudaStream stream) noexcept {
  const std::lock_guard lock(mutex_);
  streams_.push_back(stream);
}

void Gpu::reach(Gpu& other) {
  const std::lock_guard lock(mutex_);
  if (other.ordinal_ == ordinal_ || reached_.contains(other.ordinal_)) return;
  int can_access = 0;
  cuda_driver().check(cuda_driver().can_access_peer(&can_access, device_, other.device_), "ask about peer access");
  if (can_access == 0)
    throw DeviceProblem("cuda:" + std::to_string(ordinal_) + " has no peer access to cuda:" + std::to_string(other.ordinal_));
  const CudaResult result = cuda_driver().enable_peer_access(other.context_, 0);
  if (result != kCudaPeerAccessAlreadyEnabled) cuda_driver().check(result, "enable peer access");
  reached_.insert(other.ordinal_);
}

namespace {

const char* name_of(Kernel kernel) {
  static constexpr const char* names[] = {"copy_1", "copy_any", "reduce_2", "reduce_4", "reduce_8", "reduce_any", "strided"};
  return names[unsigned(kernel)];
}

}  // namespace

CudaFunction Gpu::function(const ModuleKey& key, Kernel kernel) {
  const std::lock_guard lock(compiling_);
  CudaFunction& function = functions_[{key.number(), kernel}];
  if (function != nullptr) return function;
  CudaModule& module = modules_[key];
  if (module == nullptr) module = load(key);
  cuda_driver().check(cuda_driver().get_function(&function, module, name_of(kernel)), "find a kernel");
  return function;
}

CudaModule Gpu::load(const ModuleKey& key) {
  CudaModule module = nullptr;
  if (const std::vector<char> kept = kept_module(key, major_, minor_);
      !kept.empty() && cuda_driver().load_module(&module, kept.data()) == kCudaSuccess)
    return module;
  const std::vector<char> code = compile_module(key, major_, minor_);
  cuda_driver().check(cuda_driver().load_module(&module, code.data()), "load the kernels");
  return module;
}

void Gpu::launch(const ModuleKey& key, Kernel kernel, unsigned num_blocks, unsigned num_rows, void* arguments,
                 CudaStream stream) {
  void* parameters[] = {arguments};
  cuda_driver().check(cuda_driver().launch_kernel(function(key, kernel), num_blocks, num_rows, 1, kThreads, 1, 1, 0, stream, parameters, nullptr),
               "launch a kernel");
}

CudaEvent Gpu::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      CudaEvent event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  CudaEvent event = nullptr;
  cuda_driver().check(cuda_driver().create_event(&event, kEventWithoutTiming), "make an event");
  return event;
}

void Gpu::give_event(CudaEvent event) noexcept {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
}

CudaPointer Gpu::take_memory(std::size_t bytes) {
  std::shared_ptr<const Moment> passed;  // dies without the lock: it gives back an event
  {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = memory_.equal_range(bytes);
    for (auto idle = first; idle != last; ++idle) {
      if (idle->second.busy_until && !idle->second.busy_until->has_passed()) continue;
      const CudaPointer address = idle->second.address;
      passed = std::move(idle->second.busy_until);
      memory_.erase(idle);
      idle_bytes_ -= bytes;
      return address;
    }
  }
  CudaPointer address = 0;
  const Current current(*this);
  cuda_driver().check(cuda_driver().allocate(&address, bytes), ("take " + std::to_string(bytes) + " bytes of GPU memory").c_str());
  return address;
}

void Gpu::give_memory(CudaPointer address, std::size_t bytes, std::shared_ptr<const Moment> busy_until) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (busy_until || idle_bytes_ + bytes <= kIdleBytes) {
      memory_.emplace(bytes, Idle{address, std::move(busy_until)});
      idle_bytes_ += bytes;
      return;
    }
  }
  const CudaDriver* driver = cuda_if_usable();
  CudaContext previous;
  if (driver == nullptr || driver->push_context(context_) != kCudaSuccess) return;
  driver->free(address);
  driver->pop_context(&previous);
}

Scratch::Scratch(Gpu& gpu, std::size_t bytes) : gpu_(gpu), bytes_(std::bit_ceil(std::max(bytes, kLeastBytes))) {
  address_ = gpu.take_memory(bytes_);
}

Scratch::~Scratch() { gpu_.give_memory(address_, bytes_, std::move(busy_until_)); }

namespace {

// Of CUDA's default stream that is also said of the streams it waits for; but of one of those, not of the default stream, for which
// it waits in turn. torch's own streams are no such ones.
bool is_idle(CudaStream stream) {
  unsigned flags = 0;
  const bool is_alone = stream == nullptr || (cuda_driver().stream_flags(stream, &flags) == kCudaSuccess && (flags & kStreamNonBlocking) != 0);
  return is_alone && cuda_driver().query_stream(stream) == kCudaSuccess;
}

}  // namespace

Moment::Moment(Gpu& gpu, CudaStream stream) : gpu_(gpu) {
  const Current current(gpu);
  int capture = 0;
  cuda_driver().check(cuda_driver().stream_is_capturing(stream, &capture), "ask the stream");
  if (capture != 0)
    throw std::logic_error("the current stream is being captured into a CUDA graph, which can't hold an operation that "
                           "ranks meet for on the host; call it outside torch.cuda.graph()");
  if (is_idle(stream)) return;
  event_ = gpu.take_event();
  const CudaResult result = cuda_driver().record_event(event_, stream);
  if (result == kCudaSuccess) return;
  gpu.give_event(event_);
  cuda_driver().fail(result, "mark a place in the stream");
}

Moment::~Moment() {
  if (event_ != nullptr) gpu_.give_event(event_);
}

bool Moment::has_passed() const {
  if (event_ == nullptr) return true;
  const Current current(gpu_);
  const CudaResult result = cuda_driver().query_event(event_);
  if (result == kCudaNotReady) return false;
  cuda_driver().check(result, "finish the work before the operation");
  return true;
}

}  // namespace phalanx::cuda
