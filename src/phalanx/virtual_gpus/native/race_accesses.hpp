// Report to the race detector what an operation reads and writes. Nothing is collected while it is off.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "host_view.hpp"
#include "races_torch.hpp"

namespace phalanx::devices {

inline races::StreamKey current_stream_key(DeviceIndex device) { return {device, current_streams[device]}; }

// On the host.
inline void wait_for_current_stream(DeviceIndex device) {
  synchronize_stream(device, current_streams[device]);
  races::host_waits_for_stream(current_stream_key(device));
}

class RaceAccesses {
 public:
  explicit RaceAccesses(bool is_view = false) : is_on_(!is_view && races::is_on()) {}

  void add(const at::Tensor& tensor, bool is_write) {
    if (is_on_) collect(tensor, is_write);
  }

  // Throws if the detector raises races.
  void launch(const char* operation) {
    if (!is_on_) return;
    races::Operation::name = operation;
    if (!accesses_.empty()) races::launch(current_stream_key(device_), accesses_, operation);
  }

  // Report the results of an operation as written by it.
  void launch_results(const torch::jit::Stack& stack, std::size_t count, const char* operation) {
    if (!is_on_) return;
    accesses_.clear();
    for (std::size_t at = stack.size() - count; at < stack.size(); ++at) {
      if (stack[at].isTensor()) collect(stack[at].toTensor(), true);
      if (stack[at].isTensorList())
        for (const at::Tensor& tensor : stack[at].toTensorVector()) collect(tensor, true);
    }
    launch(operation);
  }

 private:
  void collect(const at::Tensor& tensor, bool is_write) {
    if (!tensor.defined() || !face.owns(tensor)) return;
    device_ = tensor.device().index();
    if (tensor.layout() == at::kSparse) {
      collect(tensor._indices(), is_write);
      collect(tensor._values(), is_write);
    } else if (is_compressed(tensor)) {
      auto* parts = compressed_parts(tensor);
      collect(parts->compressed_indices(), is_write);
      collect(parts->plain_indices(), is_write);
      collect(parts->values(), is_write);
    } else if (tensor.layout() == at::kStrided && tensor.numel() > 0) {
      accesses_.push_back(races::access_of(tensor, is_write));
    }
  }

  races::Operation scope_;  // the source line is looked up once for all accesses of an operation
  bool is_on_;
  DeviceIndex device_ = 0;
  c10::SmallVector<races::Access, 6> accesses_;
};

}  // namespace phalanx::devices
