// Whether memory may be written to. torch does not know that of memory which it has not allocated itself: a NumPy array over a file
// that is mapped read-only looks like any other tensor, and a write to it ends the process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace phalanx::python {

// Whether the first and the last byte of [begin, begin + bytes) can be written to. Asks the kernel every time: a mapping often gets the
// address that another one has just left.
bool is_writable(const std::byte* begin, std::uint64_t bytes) noexcept;

}  // namespace phalanx::python
