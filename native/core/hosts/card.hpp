// What a host tells the other hosts about an operation, before any data whose size the caller chose.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "../call.hpp"
#include "../layout.hpp"

namespace phalanx {

enum class CardKind : std::uint32_t {
  kCall = 1,  // the ranks of the host have made this call
  kRefused,   // the arguments of one of them were refused; `text` says why. The group goes on
  kFault,     // the group is broken on this host
  kLeft,      // the host has closed the group
};

inline constexpr std::uint64_t kCardMagic = 0x3173647261637870;  // "pxcards1"

// The same on all hosts: they have the same version of phalanx, and processors of one byte order.
struct Card {
  std::uint64_t magic = kCardMagic;
  CardKind kind = CardKind::kCall;
  FaultKind fault = FaultKind::kNone;
  Seq seq = 0;
  std::uint64_t signature = 0;
  std::uint64_t count = 0;
  std::uint64_t payload_bytes = 0;  // behind the card
  std::uint64_t shape[kShapeDims] = {};
  std::uint32_t num_dims = 0;
  std::uint32_t unused = 0;
  char text[408] = {};  // the source line of a call, else what happened
};
static_assert(sizeof(Card) == 512 && std::is_trivially_copyable_v<Card>);

inline bool is_same_call(const Card& a, const Card& b) noexcept { return a.signature == b.signature && a.count == b.count; }

Card card_of(const Call& call, Seq seq, const std::string& location);
Card trouble_card(CardKind kind, FaultKind fault, Seq seq, const std::string& text);
// A card that came over the wire, where anybody may have sent it. False if it is none.
bool read_card(const std::byte* data, Card& card) noexcept;

}  // namespace phalanx
