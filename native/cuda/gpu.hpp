// One GPU as this process sees it: its context, its kernels, events to reuse, memory of our own.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "compiler.hpp"
#include "cuda_driver.hpp"
#include "kernel_arguments.hpp"

namespace phalanx::cuda {

class Gpu;

// The GPU's context is current for this thread while it lives.
class Current {
 public:
  explicit Current(const Gpu& gpu);
  ~Current();
  Current(const Current&) = delete;
};

// A place in the work of a stream: everything before it. Threads may share it.
class Moment {
 public:
  // Now, on that stream. Throws DeviceProblem; std::logic_error while the stream is captured into a graph.
  Moment(Gpu& gpu, CudaStream stream);
  ~Moment();
  Moment(const Moment&) = delete;

  Gpu& gpu() const noexcept { return gpu_; }
  // Null when all that was on the stream was over already: mostly, and an event would have to go through the GPU, which
  // processes have by turns.
  CudaEvent event() const noexcept { return event_; }
  bool has_passed() const;

 private:
  Gpu& gpu_;
  CudaEvent event_ = nullptr;
};

// Memory of our own on a GPU; goes back to it for reuse.
class Scratch {
 public:
  Scratch(Gpu& gpu, std::size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  std::byte* data() const noexcept { return reinterpret_cast<std::byte*>(address_); }
  // Something still works on it up to that moment: nobody else gets it before.
  void keep_until(std::shared_ptr<const Moment> moment) noexcept { busy_until_ = std::move(moment); }

 private:
  Gpu& gpu_;
  CudaPointer address_;
  std::size_t bytes_;
  std::shared_ptr<const Moment> busy_until_;
};

// Threads may share it; it lives as long as the process.
class Gpu {
 public:
  // Throws DeviceProblem.
  static Gpu& at(int ordinal);

  int ordinal() const noexcept { return ordinal_; }
  CudaContext context() const noexcept { return context_; }
  const CudaUuid& uuid() const noexcept { return uuid_; }
  int num_multiprocessors() const noexcept { return num_multiprocessors_; }
  // A stream of our own, to be given back.
  CudaStream take_stream();
  void give_stream(CudaStream stream) noexcept;
  // Kernels here may use memory of that GPU from here on. Throws DeviceProblem. Needs Current.
  void reach(Gpu& other);

  // Needs Current.
  void launch(const ModuleKey& key, Kernel kernel, unsigned num_blocks, unsigned num_rows, void* arguments, CudaStream stream);

 private:
  friend class Moment;
  friend class Scratch;

  explicit Gpu(int ordinal);
  CudaFunction function(const ModuleKey& key, Kernel kernel);
  CudaEvent take_event();
  void give_event(CudaEvent event) noexcept;
  CudaPointer take_memory(std::size_t bytes);
  void give_memory(CudaPointer address, std::size_t bytes, std::shared_ptr<const Moment> busy_until) noexcept;
  CudaModule load(const ModuleKey& key);

  const int ordinal_;
  CudaDevice device_ = 0;
  CudaContext context_ = nullptr;
  CudaUuid uuid_{};
  int num_multiprocessors_ = 1, major_ = 0, minor_ = 0;

  std::mutex compiling_;  // guards the next two; held for as long as it takes to compile
  std::map<ModuleKey, CudaModule> modules_;
  std::map<std::pair<unsigned, Kernel>, CudaFunction> functions_;  // by the number of the module's key

  struct Idle {
    CudaPointer address;
    std::shared_ptr<const Moment> busy_until;
  };
  std::mutex mutex_;  // guards everything below
  std::vector<CudaEvent> events_;
  std::vector<CudaStream> streams_;
  std::multimap<std::size_t, Idle> memory_;
  std::size_t idle_bytes_ = 0;
  std::set<int> reached_;
};

}  // namespace phalanx::cuda
