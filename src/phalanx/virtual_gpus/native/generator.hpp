// Random numbers of a device: its state is a seed and an offset, as on a GPU.
//
// Every operation that draws random numbers gets a CPU generator, seeded from both, and increases the offset. So the
// same seed gives the same numbers on every device, whatever the CPU's own generator does. A GPU would draw other
// numbers.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/GeneratorImpl.h>

#include "face.hpp"

namespace phalanx::devices {

class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(DeviceIndex device)
      : GeneratorImpl(face.device(device), c10::DispatchKeySet(face.key)) {}

  void set_current_seed(std::uint64_t seed) override {
    state_->seed = seed;
    state_->offset = 0;
  }
  void set_offset(std::uint64_t offset) override {
    TORCH_CHECK(offset % kStep == 0, "offset must be a multiple of ", kStep);
    state_->offset = offset;
  }
  std::uint64_t get_offset() const override { return state_->offset; }
  std::uint64_t current_seed() const override { return state_->seed; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(true));
    return state_->seed;
  }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK(state.numel() == kStateBytes, "RNG state is wrong size: ", state.numel(), " bytes instead of ", kStateBytes);
    const auto* words = static_cast<const std::uint64_t*>(state.data());
    state_->seed = words[0];
    state_->offset = words[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::detail::empty_cpu({kStateBytes}, at::kByte);
    auto* words = static_cast<std::uint64_t*>(state.mutable_data_ptr());
    words[0] = state_->seed;
    words[1] = state_->offset;
    return state.getIntrusivePtr();
  }

  // Compiled code passes states without a copy: generators with the same state draw from the same sequence.
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    auto sharing = c10::make_intrusive<DeviceGenerator>(device().index());
    sharing->state_ = state_;
    return sharing;
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override {
    auto* other = dynamic_cast<DeviceGenerator*>(state.get());
    TORCH_CHECK(other != nullptr, "the state must be that of a virtual device's generator");
    state_ = other->state_;
  }

  // Returns a CPU generator for one operation.
  at::Generator draw() {
    std::lock_guard guard(mutex_);
    const std::uint64_t mixed = mix(state_->seed + 0x9E3779B97F4A7C15ull * (state_->offset + 1));
    state_->offset += kStep;
    return at::detail::createCPUGenerator(mixed);
  }

 private:
  static constexpr std::int64_t kStateBytes = 16;
  static constexpr std::uint64_t kStep = 4;  // as a GPU's generator counts

  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(device().index());
    *copy->state_ = *state_;
    return copy;
  }

  // Every bit of the result depends on every bit of the argument (the finalizer of SplitMix64).
  static std::uint64_t mix(std::uint64_t word) {
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    return word ^ (word >> 31);
  }

  struct State {
    std::uint64_t seed = c10::default_rng_seed_val, offset = 0;
  };

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

inline const at::Generator& default_generator(DeviceIndex device) {
  static const auto& all = *[] {
    auto* made = new std::vector<at::Generator>;
    for (int index = 0; index < face.count; ++index)
      made->push_back(at::make_generator<DeviceGenerator>(static_cast<DeviceIndex>(index)));
    return made;
  }();
  return all.at(static_cast<std::size_t>(device < 0 ? current_device : checked_index(device)));
}

// Lets torch.Generator(device=...) in Python return the default generators themselves.
inline thread_local bool are_generators_exposed = false;

inline at::Generator new_generator(DeviceIndex device) {
  const DeviceIndex index = device < 0 ? current_device : checked_index(device);
  return are_generators_exposed ? default_generator(index) : at::make_generator<DeviceGenerator>(index);
}

}  // namespace phalanx::devices
