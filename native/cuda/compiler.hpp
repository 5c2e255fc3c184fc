// From the source of the kernels to a module for one GPU: by NVRTC, which comes with torch, and kept in a folder.
#pragma once

#include <string>
#include <vector>

#include "../core/types.hpp"

namespace phalanx::cuda {

enum class ModuleKind { kCopy, kStrided, kReduction };

// What a module is compiled for.
struct ModuleKey {
  ModuleKind kind = ModuleKind::kCopy;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  bool operator<(const ModuleKey& other) const noexcept { return number() < other.number(); }
  unsigned number() const noexcept { return unsigned(kind) << 16 | unsigned(dtype) << 8 | unsigned(op); }
};

// Machine code for a GPU of this compute capability, as an earlier process has kept it; empty when none has.
std::vector<char> kept_module(const ModuleKey& key, int major, int minor);
// Compiled anew, and kept. Throws DeviceProblem.
std::vector<char> compile_module(const ModuleKey& key, int major, int minor);

}  // namespace phalanx::cuda
