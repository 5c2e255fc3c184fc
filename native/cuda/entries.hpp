// What has to be read and written for a collective: one entry for each part that goes the same way on all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../core/call.hpp"
#include "manifest.hpp"
#include "kernel_arguments.hpp"

namespace phalanx::cuda {

// A rank's memory in an operation, as the leader sees it. What lies where:
//   all_reduce       the tensors
//   reduce, broadcast  the tensor
//   all_gather       input, outputs...      gather   input, the root's outputs...
//   reduce_scatter   output, inputs...      scatter  output, the root's inputs...
//   all_to_all       outputs..., inputs...
// where "..." is one tensor in Form::kSingle.
struct Side {
  Form form = Form::kList;
  std::vector<std::uint64_t> addresses;
  std::vector<std::uint64_t> bytes;
  double factor = 1.0;  // premul_sum

  std::size_t size() const noexcept { return addresses.size(); }
  void clear() noexcept {
    addresses.clear();
    bytes.clear();
  }
};

// The entries of one launch or more, as the kernels read them: see KernelArguments.
struct Entries {
  std::size_t num_sources = 0, num_targets = 0, num_factors = 0;
  std::vector<std::uint64_t> words;

  std::size_t stride() const noexcept { return 2 + num_sources + num_targets + num_factors; }
  std::size_t size() const noexcept { return words.size() / stride(); }
  std::uint64_t& first(std::size_t entry) noexcept { return words[entry * stride()]; }
  std::uint64_t& last(std::size_t entry) noexcept { return words[entry * stride() + 1]; }
};

// Ranks disagree about a size; becomes a mismatch.
struct SizesDiffer {
  int rank;  // whose memory is of another size
  std::uint64_t given_bytes, expected_bytes;
};

// Without entries that move nothing; whatever was in `entries` goes. Throws SizesDiffer.
void make_entries(const Call& call, const std::vector<Side>& sides, Entries& entries);
bool is_reduction(Operation operation) noexcept;
// Keep one of `num_parts` slices of every entry; slices begin on whole cache lines.
void keep_slice(Entries& entries, std::size_t item_bytes, int part, int num_parts);

}  // namespace phalanx::cuda
