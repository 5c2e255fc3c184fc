// The threads in which torch runs backward of devices: when they start, and that they are idle when the process ends.
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

// torch keeps these for subclasses: the pointers to members of Engine are taken inside one.
struct AutogradEngine : torch::autograd::Engine {
  static auto& queues(torch::autograd::Engine& engine) { return engine.*(&AutogradEngine::device_ready_queues_); }
  static void start_threads(torch::autograd::Engine& engine) { (engine.*(&AutogradEngine::start_device_threads))(); }
};

// Start the threads, one per device. To be called once, before the first tensor is on a device, and not at set-up: torch
// refuses backward in children forked after it.
//
// torch starts them itself at the first backward of a process, if it knows devices by then, and never again. After a
// backward on the CPU alone, here or in the process this one was forked from, there are none.
inline void start_autograd_threads() {
  // In a forked process torch's thread pool is made anew by whoever asks for it first, and each new thread asks at once: two
  // at the same time abort. So one asks before there are any.
  at::set_num_threads(at::get_num_threads());
  auto& engine = torch::autograd::Engine::get_default_engine();
  engine.initialize_device_threads_pool();
  if (AutogradEngine::queues(engine).empty()) AutogradEngine::start_threads(engine);
}

// Have every thread let go of its last backward: that takes the GIL, which an interpreter that ends gives to nobody, and
// torch would abort. To be called without the GIL.
//
// A thread works off its queue in order, so after one more backward it has forgotten all before. That one starts in a
// thread nobody else has used: it carries no Python objects with it.
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
        // A device that has no memory left, or a process that was forked: there is nothing to wait for.
      }
    }
    done->set_value();
  }).detach();
  is_done.wait_for(kLongestSettling);  // a backward that is stuck must not keep the process from ending
}

}  // namespace phalanx
