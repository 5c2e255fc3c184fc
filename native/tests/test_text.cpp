// Texts in shared memory are cut between characters.
#include "../core/text.hpp"

#include "../core/faults.hpp"
#include "ranks.hpp"

using namespace ranks;

namespace {

const std::string kLong = [] {
  std::string text = "x";  // so that a cut at an even number of bytes would go through a character
  for (int i = 0; i < 3000; ++i) text += i % 2 == 0 ? "漢" : "é";
  return text;
}();

bool is_whole(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto first = static_cast<unsigned char>(text[at]);
    const std::size_t length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 0;
    if (length == 0 || at + length > text.size()) return false;
    for (std::size_t i = 1; i < length; ++i) {
      if (!is_continuation(text[at + i])) return false;
    }
    at += length;
  }
  return true;
}

}  // namespace

TEST(a_cut_takes_whole_characters_and_as_many_as_fit) {
  for (std::size_t room = 0; room < 40; ++room) {
    for (const std::string_view kept : {beginning_of(kLong, room), end_of(kLong, room)}) {
      CHECK(is_whole(kept));
      CHECK(kept.size() <= room && kept.size() + 3 > room);
    }
  }
  CHECK(beginning_of("short", 5) == "short" && end_of("short", 5) == "short");
}

TEST(faults_names_and_source_lines_are_cut_between_characters) {
  GroupShape shape = small_shape(1);
  shape.name = kLong;
  const Segment segment = create_group_segment(shape);
  const auto endpoint = endpoint_on(segment, 0);
  const Layout& layout = endpoint->layout();
  CHECK(is_whole(layout.header().name));
  set_fault(layout, FaultKind::kAborted, 0, 0, 1, {kLong});
  CHECK(is_whole(layout.header().fault.text));
  CHECK(std::string_view(layout.header().fault.text).size() > sizeof(Fault::text) - 5);
  const std::string line = read_location(layout, 0, endpoint->journal().add_location("/" + kLong + ".py:7"));
  CHECK(is_whole(line) && line.ends_with(".py:7") && line.size() > 110);
}

TEST(a_source_line_that_made_room_for_others_is_unknown) {
  const Segment segment = create_group_segment(small_shape(1));
  const auto endpoint = endpoint_on(segment, 0);
  std::vector<std::uint32_t> numbers;
  for (std::size_t i = 0; i < 3 * kLocations; ++i) numbers.push_back(endpoint->journal().add_location("train.py:" + std::to_string(i)));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const bool is_kept = i >= numbers.size() - kLocations;
    CHECK_EQUAL(read_location(endpoint->layout(), 0, numbers[i]), is_kept ? "train.py:" + std::to_string(i) : std::string());
  }
}
