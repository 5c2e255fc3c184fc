// What goes in front of every frame of a line: docs/internals/hosts.md has the protocol.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "../call.hpp"
#include "../far_peer.hpp"
#include "../layout.hpp"
#include "card.hpp"

namespace phalanx {

inline constexpr int kMailTag = 2;
inline constexpr int kFirstDataTag = 16;
inline constexpr std::uint64_t kNumDataTags = 1u << 30;
inline constexpr std::size_t kMailBytes = 64 * 1024;  // a message up to this size travels in its frame

enum class MailKind : std::uint32_t { kEager = 1, kOffer, kReady, kData, kTaken, kAsk, kFault, kLeft };

inline constexpr std::uint64_t kMailMagic = 0x316c69616d637870;  // "pxcmail1"

struct MailCard {
  std::uint64_t magic = kMailMagic;
  MailKind kind = MailKind::kTaken;
  FaultKind fault = FaultKind::kNone;
  std::uint64_t signature = 0;    // of the call
  std::uint64_t tag = 0;
  std::uint64_t number = 0;       // of the message, among those of this tag
  std::uint64_t bytes = 0;        // of the whole message; of a fault, of the text behind the card
  std::uint64_t data_tag = 0;     // of a ready frame: with which tag of the wire its data must come; 0: none may come
  std::uint64_t taken = 0;        // frames that the sender of this one has taken from this line
  std::uint64_t shape[kShapeDims] = {};
  std::uint32_t num_dims = 0;
  std::uint32_t unused = 0;
  char location[136] = {};
};
static_assert(sizeof(MailCard) == 256 && std::is_trivially_copyable_v<MailCard>);

inline DType dtype_of(const MailCard& card) noexcept { return DType(card.signature >> 8 & 0xff); }
// Cards of one message, from its two sides.
inline bool is_same_message(const MailCard& a, const MailCard& b) noexcept { return a.bytes == b.bytes && dtype_of(a) == dtype_of(b); }

MailCard mail_card_of(const Call& call, std::uint64_t bytes, const std::string& location);
// The same call as a card that words can be made of.
Card words_card_of(const MailCard& card);
// A frame that came over the wire, where anybody may have sent it. False if it is none.
bool read_mail_card(const std::byte* data, MailCard& card) noexcept;

}  // namespace phalanx
