#include "operation.hpp"

#include <algorithm>
#include <bit>

#include "../core/collectives/collectives.hpp"

namespace phalanx::cuda {
namespace {

struct Dimension {
  std::int64_t size, stride;
};

// Without those of one element, and neighbours that lie one behind the other as one.
std::vector<Dimension> merged(const TensorView& view) {
  std::vector<Dimension> dimensions;
  for (std::size_t i = 0; i < view.shape.size(); ++i) {
    if (view.shape[i] == 1) continue;
    if (!dimensions.empty() && dimensions.back().stride == view.shape[i] * view.strides[i])
      dimensions.back() = {dimensions.back().size * view.shape[i], view.strides[i]};
    else
      dimensions.push_back({view.shape[i], view.strides[i]});
  }
  return dimensions;
}

void launch_strided(DeviceRank& rank, const TensorView& view, std::byte* flat, bool is_pack) {
  const std::vector<Dimension> dimensions = merged(view);
  if (dimensions.size() > kStridedDims) throw DeviceProblem("a tensor lies in pieces along too many dimensions");
  StridedArguments arguments{};
  arguments.count = view.count;
  arguments.num_dims = dimensions.size();
  arguments.item_bytes = item_bytes(view.dtype);
  arguments.is_pack = is_pack;
  arguments.flat = std::bit_cast<std::uint64_t>(flat);
  arguments.strided = std::bit_cast<std::uint64_t>(view.data);
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    arguments.sizes[i] = dimensions[i].size;
    arguments.strides[i] = dimensions[i].stride;
  }
  const auto most = unsigned(rank.gpu().num_multiprocessors()) * 8u;
  const auto num_blocks = unsigned(std::clamp<std::uint64_t>((view.count + kThreads - 1) / kThreads, 1, most));
  rank.gpu().launch({ModuleKind::kStrided}, Kernel::kStrided, num_blocks, 1, &arguments, rank.stream());
}

bool overlap(const Region& a, const Region& b) {
  return a.bytes != 0 && b.bytes != 0 && a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

}  // namespace

bool can_be_packed(const TensorView& view) { return view.is_contiguous() || merged(view).size() <= kStridedDims; }

void pack(DeviceRank& rank, const TensorView& view, std::byte* flat) { launch_strided(rank, view, flat, true); }

void unpack(DeviceRank& rank, const TensorView& view, const std::byte* flat) {
  launch_strided(rank, view, const_cast<std::byte*>(flat), false);
}

// The operands in one piece each.
struct DeviceOperation::Pieces {
  std::vector<Region> whole;
  std::vector<std::unique_ptr<Scratch>> scratch;  // null where the operand's own memory serves

  explicit Pieces(const std::vector<Operand>& operands) : scratch(operands.size()) {
    for (const Operand& operand : operands) whole.push_back({operand.view.data, operand.view.bytes()});
  }
  void stand_in(Gpu& gpu, std::size_t index) {
    scratch[index] = std::make_unique<Scratch>(gpu, whole[index].bytes);
    whole[index].data = scratch[index]->data();
  }
  // What was begun on the rank's stream may still be at work on them.
  void keep_until_idle(const DeviceRank& rank) noexcept {
    try {
      const auto idle = std::make_shared<const Moment>(rank.gpu(), rank.stream());
      for (const auto& piece : scratch) {
        if (piece) piece->keep_until(idle);
      }
    } catch (const std::exception&) {
      for (auto& piece : scratch) (void)piece.release();  // better lost than used twice
    }
  }
  std::vector<Region> regions(const std::vector<Operand>& operands, Form form) const {
    if (form == Form::kSingle) return whole;
    std::vector<Region> regions;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].block_bytes.empty()) regions.push_back(whole[i]);
      std::byte* at = whole[i].data;
      for (const std::size_t bytes : operands[i].block_bytes) {
        regions.push_back({at, bytes});
        at += bytes;
      }
    }
    return regions;
  }
};

void DeviceOperation::run(Endpoint& endpoint, const Call& call) const {
  endpoint.begin(call);
  try {
    const Current current(rank_->gpu());
    run_pieces(endpoint, call);
  } catch (const Trouble&) {
    throw;
  } catch (const std::exception& problem) {
    endpoint.fail(FaultKind::kPeerFailed, endpoint.rank(), {problem.what()});
  }
}

void DeviceOperation::run_pieces(Endpoint& endpoint, const Call& call) const {
  Pieces pieces(operands_);
  try {
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      if (!operands_[i].view.is_contiguous() && pieces.whole[i].bytes != 0) pieces.stand_in(rank_->gpu(), i);
    }
    part_from_targets(endpoint, call, pieces);
    const auto ready = load(pieces) ? std::make_shared<const Moment>(rank_->gpu(), rank_->stream()) : ready_;
    if (!rank_->run(call, {ready, form_, pieces.regions(operands_, form_)})) {
      rank_->await(call, ready->event(), endpoint.rank());
      run_on_host(endpoint, call, pieces);
    }
    store(pieces);
  } catch (...) {
    pieces.keep_until_idle(*rank_);
    throw;
  }
}

// What is read must not lie where the data of others is written to. A rank's own block may: it is read before it is
// written, by the same thread of the kernel, or not moved at all. What is written must not lie under other outputs: such
// ones are filled aside and stored in their order.
void DeviceOperation::part_from_targets(const Endpoint& endpoint, const Call& call, Pieces& pieces) const {
  if (operands_.size() == 1) return;
  const std::vector<Region> own = pieces.whole;
  const auto rank = std::size_t(endpoint.rank()), n = std::size_t(endpoint.num_ranks());
  const auto is_own_block = [&](std::size_t blocks, std::size_t other) {
    if (call.operation == Operation::kAllToAll || other != 0) return false;
    const std::size_t bytes = form_ == Form::kSingle ? own[blocks].bytes / n : own[blocks].bytes;
    const std::byte* block = form_ == Form::kSingle ? own[blocks].data + rank * bytes : own[blocks].data;
    return block == own[0].data && bytes == own[0].bytes && (form_ == Form::kSingle || blocks == 1 + rank);
  };
  std::vector<std::size_t> sharing;
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    for (std::size_t j = 0; operands_[i].is_written && !pieces.scratch[i] && j < operands_.size(); ++j) {
      if (j == i || !operands_[j].is_written || pieces.scratch[j] || !overlap(own[i], own[j])) continue;
      sharing.push_back(i);
      break;
    }
  }
  for (const std::size_t i : sharing) pieces.stand_in(rank_->gpu(), i);
  for (std::size_t read = 0; read < operands_.size(); ++read) {
    if (operands_[read].is_written || pieces.scratch[read]) continue;
    for (std::size_t written = 0; written < operands_.size(); ++written) {
      if (operands_[written].is_read || pieces.scratch[written] || !overlap(own[read], own[written])) continue;
      if (is_own_block(std::max(read, written), std::min(read, written))) continue;
      pieces.stand_in(rank_->gpu(), read);
      break;
    }
  }
}

// Whether anything had to be copied, on the rank's stream.
bool DeviceOperation::load(Pieces& pieces) const {
  bool is_copied = false;
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const TensorView& view = operands_[i].view;
    if (!pieces.scratch[i] || !operands_[i].is_read) continue;
    if (!is_copied && ready_->event() != nullptr)
      cuda_driver().check(cuda_driver().stream_wait(rank_->stream(), ready_->event(), 0), "wait for the current stream");
    is_copied = true;
    if (!view.is_contiguous()) {
      pack(*rank_, view, pieces.whole[i].data);
      continue;
    }
    const auto to = std::bit_cast<CudaPointer>(pieces.whole[i].data), from = std::bit_cast<CudaPointer>(view.data);
    cuda_driver().check(cuda_driver().copy_on_device(to, from, pieces.whole[i].bytes, rank_->stream()), "copy on the GPU");
  }
  return is_copied;
}

void DeviceOperation::store(const Pieces& pieces) const {
  bool is_copied = false;
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    if (!pieces.scratch[i] || !operands_[i].is_written) continue;
    is_copied = true;
    const TensorView& view = operands_[i].view;
    if (!view.is_contiguous()) {
      unpack(*rank_, view, pieces.whole[i].data);
      continue;
    }
    const auto to = std::bit_cast<CudaPointer>(view.data), from = std::bit_cast<CudaPointer>(pieces.whole[i].data);
    cuda_driver().check(cuda_driver().copy_on_device(to, from, pieces.whole[i].bytes, rank_->stream()), "copy on the GPU");
  }
  if (is_copied) rank_->finish();
}

namespace {

// Host memory that stands for a region.
struct Staged {
  std::unique_ptr<std::byte[]> memory;
  std::size_t bytes;
};

// Waits for the rank's stream at its end, however that comes.
struct Idle {
  explicit Idle(const DeviceRank& of) : rank(of) {}
  ~Idle() {
    if (const CudaDriver* driver = cuda_if_usable()) driver->synchronize_stream(rank.stream());
  }
  Idle(const Idle&) = delete;
  const DeviceRank& rank;
};

// Blocks that follow region `first`, as pointers.
std::vector<std::byte*> blocks(const std::vector<Staged>& staged, Form form, std::size_t first, std::size_t num_blocks,
                               std::vector<std::size_t>& bytes) {
  std::vector<std::byte*> pointers;
  for (std::size_t i = 0; i < num_blocks; ++i) {
    if (form == Form::kList) {
      if (first + i >= staged.size()) break;  // not the root
      pointers.push_back(staged[first + i].memory.get());
      bytes.push_back(staged[first + i].bytes);
    } else {
      bytes.push_back(staged[first].bytes / num_blocks);
      pointers.push_back(staged[first].memory.get() + i * bytes.back());
    }
  }
  return pointers;
}

}  // namespace

void DeviceOperation::run_on_host(Endpoint& endpoint, const Call& call, const Pieces& pieces) const {
  std::vector<Staged> staged;
  const Idle after(*rank_);  // dies before what is staged: nothing is copied into memory that is gone
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const Region& region = pieces.whole[i];
    staged.push_back({std::make_unique_for_overwrite<std::byte[]>(std::max<std::size_t>(region.bytes, 1)), region.bytes});
    const auto from = std::bit_cast<CudaPointer>(region.data);
    if (operands_[i].is_read && region.bytes != 0)
      cuda_driver().check(cuda_driver().copy_to_host(staged[i].memory.get(), from, region.bytes, rank_->stream()), "copy from the GPU");
  }
  rank_->finish();
  const auto n = std::size_t(endpoint.num_ranks());
  std::vector<std::size_t> bytes, more_bytes;
  std::byte* first = staged[0].memory.get();
  // The blocks for all ranks that begin with one operand: it alone, cut, or each one of its own.
  const auto cut = [&](std::size_t operand, std::vector<std::size_t>& sizes) {
    if (operands_[operand].block_bytes.empty()) return blocks(staged, form_, operand, n, sizes);
    std::vector<std::byte*> pointers;
    std::byte* at = staged[operand].memory.get();
    for (const std::size_t size : operands_[operand].block_bytes) {
      pointers.push_back(at);
      sizes.push_back(size);
      at += size;
    }
    return pointers;
  };
  switch (call.operation) {
    case Operation::kAllReduce: {
      Call each = call;
      for (const Staged& tensor : staged) {
        each.count = tensor.bytes / item_bytes(call.dtype);
        all_reduce(endpoint, each, tensor.memory.get(), {});
      }
      break;
    }
    case Operation::kReduce: reduce_to_root(endpoint, call, first); break;
    case Operation::kBroadcast: broadcast(endpoint, call, first, staged[0].bytes); break;
    case Operation::kAllGather: {
      const auto outputs = blocks(staged, form_, 1, n, bytes);
      all_gather(endpoint, call, first, outputs.data(), bytes.data());
      break;
    }
    case Operation::kGather: {
      const auto outputs = blocks(staged, form_, 1, n, bytes);
      gather(endpoint, call, first, outputs.data(), staged[0].bytes);
      break;
    }
    case Operation::kScatter: {
      const auto inputs = blocks(staged, form_, 1, n, bytes);
      scatter(endpoint, call, inputs.data(), first, staged[0].bytes);
      break;
    }
    case Operation::kReduceScatter: {
      const auto inputs = blocks(staged, form_, 1, n, bytes);
      reduce_scatter(endpoint, call, inputs.data(), first, bytes.data());
      break;
    }
    case Operation::kAllToAll: {
      const auto outputs = cut(0, bytes), inputs = cut(operands_.size() / 2, more_bytes);
      all_to_all(endpoint, call, inputs.data(), more_bytes.data(), outputs.data(), bytes.data());
      break;
    }
    default: break;
  }
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const Region& region = pieces.whole[i];
    const auto to = std::bit_cast<CudaPointer>(region.data);
    if (operands_[i].is_written && region.bytes != 0)
      cuda_driver().check(cuda_driver().copy_from_host(to, staged[i].memory.get(), region.bytes, rank_->stream()), "copy to the GPU");
  }
  rank_->finish();
}

}  // namespace phalanx::cuda
