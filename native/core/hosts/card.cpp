#include "card.hpp"

#include <algorithm>
#include <cstring>

#include "../text.hpp"

namespace phalanx {

Card card_of(const Call& call, Seq seq, const std::string& location) {
  Card card;
  card.seq = seq;
  card.signature = call.signature();
  card.count = call.count;
  card.num_dims = call.num_dims;
  std::copy(std::begin(call.shape), std::end(call.shape), card.shape);
  store_beginning(card.text, location);
  return card;
}

Card trouble_card(CardKind kind, FaultKind fault, Seq seq, const std::string& text) {
  Card card;
  card.kind = kind;
  card.fault = fault;
  card.seq = seq;
  store_beginning(card.text, text);
  return card;
}

bool read_card(const std::byte* data, Card& card) noexcept {
  std::memcpy(&card, data, sizeof card);
  card.text[sizeof card.text - 1] = '\0';
  card.num_dims = std::min<std::uint32_t>(card.num_dims, kShapeDims);
  const bool is_known = card.kind >= CardKind::kCall && card.kind <= CardKind::kLeft && card.fault < FaultKind::kCount;
  return card.magic == kCardMagic && is_known;
}

}  // namespace phalanx
