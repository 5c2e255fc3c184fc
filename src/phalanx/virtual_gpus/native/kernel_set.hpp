// Kernels that are written for virtual devices, and their names. All other operations share one kernel.
#pragma once

#include <torch/library.h>

#include <set>
#include <string>
#include <utility>

namespace phalanx::devices {

class KernelSet {
 public:
  explicit KernelSet(torch::Library& library) : library_(library) {}

  template <typename Kernel>
  void add(const char* name, Kernel&& kernel) {
    library_.impl(name, std::forward<Kernel>(kernel));
    names_.insert(std::string("aten::") + name);
  }

  const std::set<std::string>& names() const { return names_; }

 private:
  torch::Library& library_;
  std::set<std::string> names_;
};

}  // namespace phalanx::devices
