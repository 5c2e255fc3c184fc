// Reads group memory made of arbitrary bytes, as an observer does who need not trust its owner. Built by ./native/tests/fuzz.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "../core/reading.hpp"

using namespace phalanx;

namespace {

constexpr std::size_t kMostBytes = 1 << 24;
constexpr int kMostRanksRead = 4;

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : at_(data), left_(size) {}
  bool is_empty() const { return left_ == 0; }
  template <class Word>
  Word take() {
    Word word{};
    const std::size_t bytes = std::min(sizeof(word), left_);
    std::memcpy(&word, at_, bytes);
    at_ += bytes;
    left_ -= bytes;
    return word;
  }

 private:
  const std::uint8_t* at_;
  std::size_t left_;
};

void read_all(const Layout& layout) {
  read_name(layout);
  read_fault(layout);
  int looks = 0;
  for (int rank = 0; rank < std::min(layout.num_ranks(), kMostRanksRead); ++rank) {
    read_state(layout, rank);
    const std::int32_t sleeps_for = read_sleeps_for(layout, rank);
    if (sleeps_for < -1 || sleeps_for >= layout.num_ranks()) __builtin_trap();
    const Seq arrived = layout.progress(rank).arrived.load();
    for (const auto& facts : {read_entry_of(layout, rank, arrived, looks), read_entry_of(layout, rank, arrived + 1, looks),
                              read_entry(layout, rank, layout.mail_journal(rank))})
      if (facts && (facts->root < -1 || facts->root >= layout.num_ranks())) __builtin_trap();
    for (const auto& entries : {read_operations(layout, rank), read_messages(layout, rank)}) {
      if (entries.size() > kJournalEntries) __builtin_trap();
      for (const EntryFacts& facts : entries) {
        if (facts.operation > Operation::kCount || facts.dtype > DType::kCount || facts.op > ReduceOp::kCount) __builtin_trap();
        facts.size_bytes();
      }
    }
  }
}

// Any numbers in the header, in a file of any size.
void read_strange_header(Input input) {
  const std::size_t size = input.take<std::uint32_t>() % kMostBytes;
  if (size == 0) return;
  const Segment segment = Segment::create("fuzz", size, std::min<std::size_t>(size, 4096));
  if (size >= sizeof(Header)) {
    auto& header = *reinterpret_cast<Header*>(segment.data());
    header.magic = kMagic;
    header.num_ranks = input.take<std::uint32_t>();
    header.chunk_bytes = input.take<std::uint64_t>();
    header.eager_bytes = input.take<std::uint64_t>();
    header.bulk_bytes = input.take<std::uint64_t>();
  }
  try {
    read_all(layout_of(segment));
  } catch (const std::runtime_error&) {  // refused
  }
}

// A group as it should be, with any words in it changed.
void read_changed_group(Input input) {
  const int num_ranks = 1 + input.take<std::uint8_t>() % 3;
  const Segment segment = Segment::create("fuzz", Layout(nullptr, num_ranks, 4096, 4096, 4096).total_bytes(), 4096);
  auto& header = *reinterpret_cast<Header*>(segment.data());
  header.magic = kMagic;
  header.num_ranks = static_cast<std::uint32_t>(num_ranks);
  header.chunk_bytes = header.eager_bytes = header.bulk_bytes = 4096;
  const Layout layout = layout_of(segment);
  while (!input.is_empty()) {
    const std::size_t offset = input.take<std::uint32_t>() % (layout.control_bytes() / 8) * 8;
    const auto value = input.take<std::uint64_t>();
    std::memcpy(segment.data() + offset, &value, sizeof(value));
  }
  read_all(layout);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  if (data[0] % 2 == 0) read_strange_header(Input(data + 1, size - 1));
  else read_changed_group(Input(data + 1, size - 1));
  return 0;
}
