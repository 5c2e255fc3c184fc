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
  if (const auto fault = read_fault(layout))
    if (fault->kind > FaultKind::kCount || fault->awaited > Awaited::kCount || fault->culprit >= layout.num_ranks() || fault->reporter < -1) __builtin_trap();
  int looks = 0;
  for (int rank = 0; rank < std::min(layout.num_ranks(), kMostRanksRead); ++rank) {
    const RankFacts seen = read_rank(layout, rank, 0, looks);
    if (seen.state > MemberState::kCount) __builtin_trap();
    if (seen.departure > Departure::kCount) __builtin_trap();
    if (seen.sleeps_for < -1 || seen.sleeps_for >= layout.num_ranks()) __builtin_trap();
    for (const auto& facts : {seen.entry, seen.begun, seen.mail})
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

void set_word(void* object, std::size_t object_bytes, Input& input) {
  const std::size_t offset = input.take<std::uint16_t>() % (object_bytes / 8) * 8;
  const auto value = input.take<std::uint64_t>();
  std::memcpy(static_cast<std::byte*>(object) + offset, &value, sizeof(value));
}

// An entry is only read when its number is the one that is looked for.
void set_entry(JournalEntry& entry, Seq number, Input& input) {
  std::uint64_t words[sizeof(JournalEntry) / 8];
  for (std::uint64_t& word : words) word = input.take<std::uint64_t>();
  words[0] = number;
  std::memcpy(static_cast<void*>(&entry), words, sizeof(words));
}

// Where a word is changed by chance alone, the few that matter are hardly ever met: so most are aimed at.
void change_something(const Layout& layout, std::byte* data, Input& input) {
  const auto what = input.take<std::uint8_t>();
  const int rank = input.take<std::uint8_t>() % layout.num_ranks();
  Progress& progress = layout.progress(rank);
  switch (what % 8) {
    case 0: return set_word(data, layout.control_bytes(), input);
    case 1: return set_word(&progress, sizeof(Progress), input);
    case 2: return set_word(&layout.member(rank), sizeof(Member), input);
    case 3: return set_word(&layout.header(), sizeof(Header), input);
    case 4: return set_entry(layout.mail_journal(rank), 1, input);
    case 5: return set_word(&layout.location(rank, input.take<std::uint8_t>()), sizeof(Location), input);
    case 6: {
      const auto number = input.take<Seq>();
      progress.arrived.store(number);
      return set_entry(layout.journal(rank, number), number, input);
    }
    default: {
      const auto number = input.take<Seq>();
      progress.messages.store(number);
      return set_entry(layout.message(rank, number), number, input);
    }
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
  while (!input.is_empty()) change_something(layout, segment.data(), input);
  read_all(layout);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  if (data[0] % 2 == 0) read_strange_header(Input(data + 1, size - 1));
  else read_changed_group(Input(data + 1, size - 1));
  return 0;
}
