// Random numbers of a device: its state is a seed and an offset, as on a GPU.
//
// Every operation that draws gets a generator of the CPU, seeded from both, and the offset moves on. So the same seed
// gives the same numbers on every device, whatever the CPU's own generator does. They are not the numbers a GPU draws.
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
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(std::uint64_t offset) override {
    TORCH_CHECK(offset % kStep == 0, "offset must be a multiple of ", kStep);
    offset_ = offset;
  }
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(true));
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == kStateBytes, "RNG state is wrong size: ", state.numel(), " bytes instead of ", kStateBytes);
    const auto* words = static_cast<const std::uint64_t*>(state.data());
    seed_ = words[0];
    offset_ = words[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::detail::empty_cpu({kStateBytes}, at::kByte);
    auto* words = static_cast<std::uint64_t*>(state.mutable_data_ptr());
    words[0] = seed_;
    words[1] = offset_;
    return state.getIntrusivePtr();
  }

  // A generator of the CPU for one operation.
  at::Generator draw() {
    std::lock_guard guard(mutex_);
    const std::uint64_t mixed = mix(seed_ + 0x9E3779B97F4A7C15ull * (offset_ + 1));
    offset_ += kStep;
    return at::detail::createCPUGenerator(mixed);
  }

 private:
  static constexpr std::int64_t kStateBytes = 16;
  static constexpr std::uint64_t kStep = 4;  // as a GPU's generator counts

  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

  // Every bit of the result depends on every bit of the argument (the finalizer of SplitMix64).
  static std::uint64_t mix(std::uint64_t word) {
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    return word ^ (word >> 31);
  }

  std::uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;
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

// Lets Python get hold of the default generators themselves, through torch.Generator(device=...).
inline thread_local bool are_generators_exposed = false;

inline at::Generator new_generator(DeviceIndex device) {
  const DeviceIndex index = device < 0 ? current_device : checked_index(device);
  return are_generators_exposed ? default_generator(index) : at::make_generator<DeviceGenerator>(index);
}

}  // namespace phalanx::devices
