// The threads in which torch runs backward of devices: start them, and make them idle before the process ends.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>

namespace phalanx {

constexpr std::chrono::seconds kLongestSettling{2};

// These members of Engine are protected, so a subclass takes the pointers to them.
struct AutogradEngine : torch::autograd::Engine {
  static auto& queues(torch::autograd::Engine& engine) { return engine.*(&AutogradEngine::device_ready_queues_); }
  static void start_threads(torch::autograd::Engine& engine) { (engine.*(&AutogradEngine::start_device_threads))(); }
};

// Start the threads, one per device. Call it once, before the first tensor is on a device, and not at set-up: in
// children that are forked later, torch refuses backward.
//
// torch itself starts them only at the first backward of a process, if it knows devices by then. After a backward on
// the CPU alone, in this process or in its parent before the fork, there are none.
inline void start_autograd_threads() {
  // In a forked process, the first thread that asks for torch's thread pool makes it anew. Each new thread asks at
  // once, and two at the same time abort. So ask here, before there are any.
  at::set_num_threads(at::get_num_threads());
  auto& engine = torch::autograd::Engine::get_default_engine();
  engine.initialize_device_threads_pool();
  if (AutogradEngine::queues(engine).empty()) AutogradEngine::start_threads(engine);
}

// Make every thread release the objects of its last backward. It needs the GIL for that, which it can't get while the
// interpreter ends: torch would abort. Call it without the GIL.
//
// A thread handles its queue in order, so after one more backward it has released all earlier ones. That backward
// starts in a new thread, so it has no Python objects.
inline void settle_autograd_threads(c10::DeviceType type) {
  const auto num_threads = AutogradEngine::queues(torch::autograd::Engine::get_default_engine()).size();
  auto done = std::make_shared<std::promise<void>>();
  auto is_done = done->get_future();
  std::thread([=] {
    for (size_t index = 0; index < num_threads; ++index) {
      try {
        const c10::Device device(type, static_cast<c10::DeviceIndex>(index));
        const auto leaf = at::empty({1}, at::TensorOptions(device)).requires_grad_();
        torch::autograd::grad({leaf.view({1})}, {leaf}, {at::empty({1}, at::TensorOptions(device))});
      } catch (const std::exception&) {
        // The device has no memory left, or the process was forked: there is nothing to wait for.
      }
    }
    done->set_value();
  }).detach();
  is_done.wait_for(kLongestSettling);  // a backward that is stuck must not keep the process from ending
}

}  // namespace phalanx
