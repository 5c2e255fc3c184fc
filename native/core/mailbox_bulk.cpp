// Large messages: offered, granted, then streamed in chunks through the sender's outbound buffers.
#include <algorithm>
#include <cstring>

#include "algorithm.hpp"
#include "kernels.hpp"
#include "mailbox.hpp"

namespace phalanx {
namespace {

constexpr auto kOrder = std::memory_order_seq_cst;

std::uint64_t outbound_word(int destination, std::uint64_t message) {
  return std::uint64_t(destination + 1) << 52 | message;
}

std::uint64_t num_chunks(std::size_t bytes, std::size_t chunk) { return (bytes + chunk - 1) / chunk; }

// The outbound buffers of a rank, cut into chunks of `chunk_bytes`.
class BulkBuffers {
 public:
  BulkBuffers(const Layout& layout, int rank, std::size_t chunk_bytes)
      : start_(layout.bulk(rank)), chunk_bytes_(chunk_bytes), room_(kBulkBuffers * layout.bulk_bytes() / chunk_bytes) {}
  std::uint64_t room() const { return room_; }
  std::byte* at(std::uint64_t chunk) const { return start_ + chunk % room_ * chunk_bytes_; }

 private:
  std::byte* start_;
  std::size_t chunk_bytes_;
  std::uint64_t room_;
};

}  // namespace

// A message has several chunks, so that both sides copy at once, but fewer where ranks outnumber cores, because there
// each switch costs time. Both sides must compute the same size.
std::size_t Mailbox::bulk_chunk(std::size_t bytes) const noexcept {
  constexpr std::size_t kLeast = 64 * 1024;
  const std::size_t pieces = endpoint_->is_crowded() ? 2 : 4;
  return std::min(layout_.bulk_bytes(), std::max(kLeast, (bytes / pieces + 4095) / 4096 * 4096));
}

bool Mailbox::answer_grants(int destination) {
  Channel& channel = layout_.channel(rank_, destination);
  const std::uint64_t granted = channel.grant.load(kOrder);
  auto& offered = offered_[std::size_t(destination)];
  const auto it = std::find_if(offered.begin(), offered.end(), [&](const auto& t) { return t->message == granted; });
  if (it == offered.end()) return false;
  auto send = *it;
  offered.erase(it);
  if (channel.grant_bytes.load(std::memory_order_acquire) == send->bytes) {
    granted_.push_back(send);
    return true;
  }
  channel.answered.store(granted, kOrder);
  ring(destination);
  finish(*send, Trouble(FaultKind::kMismatch, destination, rank_, 0, {}, false));
  return true;
}

// A smaller message begins where the one before it ended: see Endpoint::take_turn. A larger one pushes itself out of the cache.
void Mailbox::begin_outbound() {
  Outbound& outbound = layout_.outbound(rank_);
  const std::size_t size = bulk_chunk(outbound_->bytes);
  const bool is_turning = !endpoint_->is_crowded() && outbound_->bytes < kTurningBytes;
  const std::uint64_t first = is_turning ? num_chunks(bulk_head_, size) : 0;
  bulk_head_ = (first + num_chunks(outbound_->bytes, size)) * size;
  outbound.produced.store(0, std::memory_order_relaxed);
  outbound.first.store(first, std::memory_order_relaxed);
  outbound.message.store(outbound_word(outbound_->peer(), outbound_->message), kOrder);
}

bool Mailbox::pump_outbound() {
  Outbound& outbound = layout_.outbound(rank_);
  if (!outbound_) {
    if (granted_.empty()) return false;
    outbound_ = granted_.front();
    granted_.pop_front();
    begin_outbound();
  }
  Transfer& send = *outbound_;
  Channel& channel = layout_.channel(rank_, send.peer());
  const std::size_t size = bulk_chunk(send.bytes);
  const std::uint64_t total = num_chunks(send.bytes, size);
  const std::uint64_t taken = channel.bulk_taken.load(kOrder);
  if (taken == total) {
    outbound.message.store(0, kOrder);
    channel.answered.store(send.message, kOrder);
    ring(send.peer());
    finish(send);
    outbound_.reset();
    return true;
  }
  const BulkBuffers buffers(layout_, rank_, size);
  if (send.chunks == total || send.chunks - taken >= buffers.room()) return false;
  const std::size_t start = send.chunks * size;
  bulk_writer_.write(buffers.at(outbound.first.load(std::memory_order_relaxed) + send.chunks), send.data + start,
                     std::min(size, send.bytes - start));
  outbound.produced.store(++send.chunks, kOrder);
  ring(send.peer());
  return true;
}

bool Mailbox::pump_incoming(int source) {
  auto& queue = incoming_[std::size_t(source)];
  Channel& channel = layout_.channel(source, rank_);
  Incoming& head = queue.front();
  Transfer& receive = *head.receive;
  if (!head.is_granted) {
    channel.bulk_taken.store(0, std::memory_order_relaxed);
    channel.grant_bytes.store(head.is_refused ? 0 : receive.bytes, std::memory_order_release);
    channel.grant.store(head.message, kOrder);
    head.is_granted = true;
    ring(source);
    return true;
  }
  const std::size_t size = bulk_chunk(receive.bytes);
  const std::uint64_t total = num_chunks(receive.bytes, size);
  if (head.is_refused || receive.chunks == total) {
    // The next grant would overwrite this one before the sender has seen it.
    if (channel.answered.load(kOrder) != head.message) return false;
    queue.pop_front();
    return true;
  }
  const Outbound& outbound = layout_.outbound(source);
  if (outbound.message.load(kOrder) != outbound_word(rank_, head.message)) return false;
  if (outbound.produced.load(kOrder) == receive.chunks) return false;
  const std::size_t start = receive.chunks * size;
  const std::size_t length = std::min(size, receive.bytes - start);
  const BulkBuffers buffers(layout_, source, size);
  const std::byte* from = buffers.at(outbound.first.load(std::memory_order_relaxed) + receive.chunks);
  if (is_out_of_cache(receive.bytes, num_ranks_)) {
    copy_streaming(receive.data + start, from, length);
  } else {
    std::memcpy(receive.data + start, from, length);
  }
  channel.bulk_taken.store(++receive.chunks, kOrder);
  ring(source);
  if (receive.chunks == total) finish(receive);
  return true;
}

}  // namespace phalanx
