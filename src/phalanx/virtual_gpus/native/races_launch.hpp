// One operation on a stream, and the memory it touches.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "races_places.hpp"

namespace phalanx::devices::races {

// Memory that an operation reads or writes.
struct Access {
  const void* block = nullptr;    // the start of the storage's memory
  std::uintptr_t lo = 0, hi = 0;  // bytes, hi exclusive
  bool is_write = false;
  std::span<const std::int64_t> sizes{}, strides{};  // in items
  std::uint32_t item_bytes = 0;                      // 0 for all bytes from lo to hi
  const char* dtype = nullptr;

  Footprint footprint() const {
    return item_bytes == 0 ? Footprint(lo, hi) : Footprint(lo, sizes, strides, item_bytes);
  }
};

// One operation on a stream.
struct Launch {
  StreamKey stream;
  std::span<const Access> accesses;
  const std::string* operation = nullptr;
  const Where& where;
  TouchKind kind = TouchKind::kOperation;
  std::optional<StreamKey> behind{};  // it waits for this stream as well
  const Access* on_host = nullptr;    // the pinned memory that it copies from or to
  bool is_left_in_flight = false;     // the copy may still run when the call returns
};

}  // namespace phalanx::devices::races
