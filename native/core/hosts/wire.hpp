// What moves bytes between ranks of different hosts. It never reduces, and never learns what the bytes mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace phalanx {

// The connection to a peer is gone, or the wire was cut.
struct WireError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Messages between two ranks with one tag arrive in the order in which they were started.
struct WireMessage {
  bool is_send;
  int peer;  // its number in the group
  int tag;
  std::byte* data;  // only read if it is sent
  std::size_t bytes;
};

inline constexpr int kCardTag = 0;
inline constexpr int kDataTag = 1;

// Any thread may use it.
class Wire {
 public:
  using Handle = std::uint64_t;

  virtual ~Wire() = default;
  // Starts messages and returns at once. A receive may be larger than its message, never smaller. The memory must live until the
  // message has been waited for, or the wire was cut. Throws WireError.
  virtual std::vector<Handle> start(std::span<const WireMessage> messages) = 0;
  // Waits for messages in turn, each once. No wait takes longer than `limit_ns`; one that does breaks the wire. Throws WireError.
  virtual void wait(std::span<const Handle> handles, std::int64_t limit_ns) = 0;
  // Whether a received message was complete when the wire broke. Only for a wire that is broken.
  virtual bool has_come(Handle handle) noexcept = 0;
  // Breaks the wire: whatever is under way ends, here at once and on the peers soon. It touches no memory of messages any more.
  virtual void cut() noexcept = 0;
  // The same in good order: peers still get what was sent to them.
  virtual void close() noexcept = 0;
};

}  // namespace phalanx
