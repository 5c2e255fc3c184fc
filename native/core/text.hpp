// Text of any length in memory of a fixed size, cut between two characters of UTF-8 and never inside one.
#pragma once

#include <cstddef>
#include <cstring>
#include <string_view>

namespace phalanx {

// Whether this byte continues a character that began before it.
constexpr bool is_continuation(char byte) noexcept { return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u; }

// As many whole characters as fit into `room` bytes, from the beginning of the text.
constexpr std::string_view beginning_of(std::string_view text, std::size_t room) noexcept {
  if (text.size() <= room) return text;
  while (room > 0 && is_continuation(text[room])) --room;
  return text.substr(0, room);
}

// As many whole characters as fit into `room` bytes, from the end of the text: the end of a path says more.
constexpr std::string_view end_of(std::string_view text, std::size_t room) noexcept {
  if (text.size() <= room) return text;
  std::size_t skip = text.size() - room;
  while (skip < text.size() && is_continuation(text[skip])) ++skip;
  return text.substr(skip);
}

// Fills the rest of `destination` with zeros, at least one, so that the text ends there.
template <std::size_t kBytes>
void store_beginning(char (&destination)[kBytes], std::string_view text) noexcept {
  const std::string_view kept = beginning_of(text, kBytes - 1);
  std::memset(destination, 0, kBytes);
  std::memcpy(destination, kept.data(), kept.size());
}

}  // namespace phalanx
