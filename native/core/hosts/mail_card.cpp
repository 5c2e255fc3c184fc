#include "mail_card.hpp"

#include <algorithm>
#include <cstring>

#include "../text.hpp"

namespace phalanx {

MailCard mail_card_of(const Call& call, std::uint64_t bytes, const std::string& location) {
  MailCard card;
  card.signature = call.signature();
  card.tag = call.tag;
  card.bytes = bytes;
  card.num_dims = call.num_dims;
  std::copy(std::begin(call.shape), std::end(call.shape), card.shape);
  store_beginning(card.location, location);
  return card;
}

Card words_card_of(const MailCard& card) {
  Card words;
  words.signature = card.signature;
  words.count = card.tag;
  words.num_dims = card.num_dims;
  std::copy(std::begin(card.shape), std::end(card.shape), words.shape);
  store_beginning(words.text, card.location);
  return words;
}

bool read_mail_card(const std::byte* data, MailCard& card) noexcept {
  std::memcpy(&card, data, sizeof card);
  card.location[sizeof card.location - 1] = '\0';
  card.num_dims = std::min<std::uint32_t>(card.num_dims, kShapeDims);
  const bool is_known = card.kind >= MailKind::kEager && card.kind <= MailKind::kLeft && card.fault < FaultKind::kCount;
  const bool has_payload = card.kind == MailKind::kEager || card.kind == MailKind::kFault;
  return card.magic == kMailMagic && is_known && (!has_payload || card.bytes <= kMailBytes) && card.data_tag < kFirstDataTag + kNumDataTags;
}

}  // namespace phalanx
