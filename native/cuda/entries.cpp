#include "entries.hpp"

#include <algorithm>
#include <bit>

namespace phalanx::cuda {
namespace {

struct Part {
  std::uint64_t address, bytes;
};

// Block `block` of `num_blocks` that follow region `first`, as tensors of their own or within one.
Part block_of(const Side& side, std::size_t first, std::size_t block, std::size_t num_blocks) {
  if (side.form == Form::kList) return {side.addresses.at(first + block), side.bytes.at(first + block)};
  const std::uint64_t bytes = side.bytes.at(first) / num_blocks;
  return {side.addresses.at(first) + block * bytes, bytes};
}

Part region_of(const Side& side, std::size_t index) { return {side.addresses.at(index), side.bytes.at(index)}; }

class Maker {
 public:
  Maker(const Call& call, const std::vector<Side>& sides, Entries& entries)
      : entries_(entries), n_(sides.size()), sides_(sides), root_(std::size_t(call.root)), is_premultiplied_(call.op == ReduceOp::kPremulSum),
        is_copy_(!is_reduction(call.operation)), unit_(is_copy_ ? 1 : item_bytes(call.dtype)) {}

  void make(Operation operation) {
    entries_.words.clear();
    switch (operation) {
      case Operation::kAllReduce: shape(n_, n_); all_reduce(); break;
      case Operation::kReduce: shape(n_, 1); reduce(); break;
      case Operation::kBroadcast: shape(1, n_); broadcast(); break;
      case Operation::kAllGather: shape(1, n_); all_gather(); break;
      case Operation::kGather: shape(1, 1); gather(); break;
      case Operation::kScatter: shape(1, 1); scatter(); break;
      case Operation::kReduceScatter: shape(n_, 1); reduce_scatter(); break;
      case Operation::kAllToAll: shape(1, 1); all_to_all(); break;
      default: break;
    }
    drop_idle();
  }

 private:
  void shape(std::size_t num_sources, std::size_t num_targets) {
    entries_.num_sources = num_sources;
    entries_.num_targets = num_targets;
    entries_.num_factors = is_premultiplied_ && !is_copy_ ? n_ : 0;
    entries_.words.reserve(entries_.stride() * n_ * (num_sources == num_targets && num_sources == 1 ? n_ : 1));
  }
  void begin(std::uint64_t bytes) {
    bytes_ = bytes;
    at_ = entries_.words.size();
    entries_.words.push_back(0);
    entries_.words.push_back(bytes / unit_);
  }
  void check(std::size_t rank, const Part& part) const {
    if (part.bytes != bytes_) throw SizesDiffer{int(rank), part.bytes, bytes_};
  }
  void read(std::size_t rank, const Part& part) {
    check(rank, part);
    entries_.words.push_back(part.address);
  }
  // Nothing is written onto itself, unless it is reduced there.
  void write(std::size_t rank, const Part& part) {
    check(rank, part);
    entries_.words.push_back(is_copy_ && entries_.words[at_ + 2] == part.address ? 0 : part.address);
  }
  void end() {
    for (std::size_t i = 0; i < entries_.num_factors; ++i)
      entries_.words.push_back(std::bit_cast<std::uint64_t>(sides_[i].factor));
  }
  // Entries without elements, or without anybody to write for.
  void drop_idle() {
    std::size_t kept = 0;
    const std::size_t stride = entries_.stride();
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const auto words = entries_.words.begin() + std::ptrdiff_t(i * stride);
      const auto targets = words + 2 + std::ptrdiff_t(entries_.num_sources);
      const bool is_idle =
          words[1] == 0 || std::all_of(targets, targets + std::ptrdiff_t(entries_.num_targets), [](auto target) { return target == 0; });
      if (is_idle) continue;
      if (kept != i) std::copy_n(words, stride, entries_.words.begin() + std::ptrdiff_t(kept * stride));
      ++kept;
    }
    entries_.words.resize(kept * stride);
  }

  void all_reduce() {
    for (std::size_t rank = 0; rank < n_; ++rank) {
      if (sides_[rank].size() != sides_[0].size()) throw SizesDiffer{int(rank), sides_[rank].size(), sides_[0].size()};
    }
    for (std::size_t tensor = 0; tensor < sides_[0].size(); ++tensor) {
      begin(sides_[0].bytes[tensor]);
      for (std::size_t rank = 0; rank < n_; ++rank) read(rank, region_of(sides_[rank], tensor));
      for (std::size_t rank = 0; rank < n_; ++rank) write(rank, region_of(sides_[rank], tensor));
      end();
    }
  }
  void reduce() {
    begin(sides_[root_].bytes.at(0));
    for (std::size_t rank = 0; rank < n_; ++rank) read(rank, region_of(sides_[rank], 0));
    write(root_, region_of(sides_[root_], 0));
    end();
  }
  void broadcast() {
    begin(sides_[root_].bytes.at(0));
    read(root_, region_of(sides_[root_], 0));
    for (std::size_t rank = 0; rank < n_; ++rank) write(rank, region_of(sides_[rank], 0));
  }
  void all_gather() {
    for (std::size_t from = 0; from < n_; ++from) {
      begin(sides_[from].bytes.at(0));
      read(from, region_of(sides_[from], 0));
      for (std::size_t rank = 0; rank < n_; ++rank) write(rank, block_of(sides_[rank], 1, from, n_));
    }
  }
  void gather() {
    for (std::size_t from = 0; from < n_; ++from) {
      begin(sides_[from].bytes.at(0));
      read(from, region_of(sides_[from], 0));
      write(root_, block_of(sides_[root_], 1, from, n_));
    }
  }
  void scatter() {
    for (std::size_t to = 0; to < n_; ++to) {
      begin(sides_[to].bytes.at(0));
      read(root_, block_of(sides_[root_], 1, to, n_));
      write(to, region_of(sides_[to], 0));
    }
  }
  void reduce_scatter() {
    for (std::size_t to = 0; to < n_; ++to) {
      begin(sides_[to].bytes.at(0));
      for (std::size_t rank = 0; rank < n_; ++rank) read(rank, block_of(sides_[rank], 1, to, n_));
      write(to, region_of(sides_[to], 0));
      end();
    }
  }
  void all_to_all() {
    for (std::size_t to = 0; to < n_; ++to) {
      for (std::size_t from = 0; from < n_; ++from) {
        const Part output = block_of(sides_[to], 0, from, n_);
        begin(output.bytes);
        read(from, block_of(sides_[from], sides_[from].form == Form::kList ? n_ : 1, to, n_));
        write(to, output);
      }
    }
  }

  Entries& entries_;
  std::size_t n_;
  const std::vector<Side>& sides_;
  std::size_t root_;
  bool is_premultiplied_;
  bool is_copy_;
  std::uint64_t unit_;
  std::uint64_t bytes_ = 0;  // of the entry being made
  std::size_t at_ = 0;       // where it begins
};

}  // namespace

bool is_reduction(Operation operation) noexcept {
  return operation == Operation::kAllReduce || operation == Operation::kReduce || operation == Operation::kReduceScatter;
}

void make_entries(const Call& call, const std::vector<Side>& sides, Entries& entries) {
  Maker(call, sides, entries).make(call.operation);
}

void keep_slice(Entries& entries, std::size_t item_bytes, int part, int num_parts) {
  constexpr std::uint64_t kLine = 128;
  const std::uint64_t line = std::max<std::uint64_t>(kLine / item_bytes, 1);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::uint64_t count = entries.last(i), lines = (count + line - 1) / line;
    entries.first(i) = std::min(count, lines * std::uint64_t(part) / std::uint64_t(num_parts) * line);
    entries.last(i) = std::min(count, lines * std::uint64_t(part + 1) / std::uint64_t(num_parts) * line);
  }
}

}  // namespace phalanx::cuda
