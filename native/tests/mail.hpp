// Sending and receiving made-up messages in tests.
#pragma once

#include "../core/mailbox.hpp"
#include "ranks.hpp"

namespace ranks {

using Bytes = std::vector<std::byte>;

inline Bytes message_of(std::uint64_t id, std::size_t bytes) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = std::byte((id * 131 + i * 7 + i / 251) & 0xff);
  return data;
}

// A rank's mailbox, with messages that say who they are.
class Mail {
 public:
  explicit Mail(const EndpointPtr& endpoint) : endpoint_(endpoint), mailbox_(endpoint) {}

  Mailbox& mailbox() { return mailbox_; }

  std::shared_ptr<Transfer> start_send(int peer, std::uint64_t tag, Bytes& data, double timeout_s = 20) {
    return mailbox_.start(call_of(Operation::kSend, data.size(), DType::kUInt8, peer, timeout_s), tag, data.data(), data.size());
  }
  std::shared_ptr<Transfer> start_receive(int peer, std::uint64_t tag, Bytes& data, double timeout_s = 20) {
    return mailbox_.start(call_of(Operation::kRecv, data.size(), DType::kUInt8, peer, timeout_s), tag, data.data(), data.size());
  }
  void finish(const std::shared_ptr<Transfer>& transfer) {
    CHECK(mailbox_.wait(transfer, transfer->call.deadline_ns, true));
  }
  void send(int peer, std::uint64_t tag, Bytes data, double timeout_s = 20) { finish(start_send(peer, tag, data, timeout_s)); }
  int receive(int peer, std::uint64_t tag, const Bytes& expected, double timeout_s = 20) {
    Bytes data(expected.size());
    const auto transfer = start_receive(peer, tag, data, timeout_s);
    finish(transfer);
    CHECK(data == expected);
    return transfer->source;
  }

 private:
  EndpointPtr endpoint_;
  Mailbox mailbox_;
};

// Tells the other rank to go on, and waits to be told.
inline constexpr std::uint64_t kDoneTag = 999'999;
inline void meet_by_mail(Mail& mail, int peer) {
  mail.send(peer, kDoneTag, Bytes(1));
  mail.receive(peer, kDoneTag, Bytes(1));
}


}  // namespace ranks
