#include "overlap.hpp"

#include <algorithm>

namespace phalanx::python {
namespace {

struct Block {
  const std::byte* begin;
  const std::byte* end;
  std::size_t owner;
};

bool is_shared(const Block& a, const Block& b) { return a.begin < b.end && b.begin < a.end; }

// Tensors in pieces are copied anyway, and on a GPU the device sees to it.
bool is_direct(const Tensor& tensor) { return tensor.device == kHost && tensor.view.is_contiguous() && tensor.view.count != 0; }

std::vector<Block> blocks_of(const Side& side, std::size_t rank) {
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < side.tensors.size(); ++i) {
    const Tensor& tensor = side.tensors[i];
    if (!is_direct(tensor)) continue;
    const std::byte* at = tensor.view.data;
    const std::byte* end = at + tensor.view.bytes();
    for (std::size_t owner = 0; side.equal_block != 0 && at != end; at += side.equal_block)
      blocks.push_back({at, at + side.equal_block, owner++});
    if (side.equal_block != 0) continue;
    if (side.blocks == nullptr) {
      blocks.push_back({at, end, side.tensors.size() == 1 ? rank : i});
      continue;
    }
    for (std::size_t owner = 0; owner < side.blocks->size(); at += (*side.blocks)[owner++])
      blocks.push_back({at, at + (*side.blocks)[owner], owner});
  }
  std::erase_if(blocks, [](const Block& block) { return block.begin == block.end; });
  return blocks;
}

bool lies_under(const std::vector<Block>& inputs, const std::vector<Block>& outputs) {
  for (const Block& input : inputs) {
    for (const Block& output : outputs) {
      const bool is_in_place = input.owner == output.owner && input.begin == output.begin && input.end == output.end;
      if (is_shared(input, output) && !is_in_place) return true;
    }
  }
  return false;
}

bool lie_under_each_other(std::span<const Tensor> tensors) {
  std::vector<Block> blocks = blocks_of({tensors}, 0);
  std::ranges::sort(blocks, {}, &Block::begin);
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    if (blocks[i].begin < blocks[i - 1].end) return true;
  }
  return false;
}

}  // namespace

Apart find_shared_blocks(const Side& inputs, const Side& outputs, int rank) {
  return {lies_under(blocks_of(inputs, std::size_t(rank)), blocks_of(outputs, std::size_t(rank))), lie_under_each_other(outputs.tensors)};
}

}  // namespace phalanx::python
