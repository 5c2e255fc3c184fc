// A collective of device tensors from beginning to end: in one piece, through the leaders, or through the host.
#pragma once

#include <memory>
#include <vector>

#include "../core/strided.hpp"
#include "rank.hpp"

namespace phalanx::cuda {

struct Operand {
  TensorView view;  // of device memory
  bool is_read = true;
  bool is_written = true;
  std::vector<std::size_t> block_bytes;  // how it is cut into blocks for the ranks; empty: it is one, or cut evenly
};

// Operands in the order of Side. Copies share nothing that changes.
class DeviceOperation {
 public:
  DeviceOperation(DeviceRank& rank, std::shared_ptr<const Moment> ready, Form form, std::vector<Operand> operands)
      : rank_(&rank), ready_(std::move(ready)), form_(form), operands_(std::move(operands)) {}

  // Returns when the data is in place for every stream. Throws Trouble.
  void run(Endpoint& endpoint, const Call& call) const;

 private:
  struct Pieces;
  void run_pieces(Endpoint& endpoint, const Call& call) const;
  void part_from_targets(const Endpoint& endpoint, const Call& call, Pieces& pieces) const;
  bool load(Pieces& pieces) const;
  void store(const Pieces& pieces) const;
  void run_on_host(Endpoint& endpoint, const Call& call, const Pieces& pieces) const;

  DeviceRank* rank_;
  std::shared_ptr<const Moment> ready_;
  Form form_;
  std::vector<Operand> operands_;
};

// Whether there are few enough dimensions, after those are merged that lie one behind the other.
bool can_be_packed(const TensorView& view);
// Copy a tensor in pieces into one piece, or back, on the rank's stream. Needs Current.
void pack(DeviceRank& rank, const TensorView& view, std::byte* flat);
void unpack(DeviceRank& rank, const TensorView& view, const std::byte* flat);

}  // namespace phalanx::cuda
