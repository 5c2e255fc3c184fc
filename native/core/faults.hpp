// The one fault a group can have, and the bells that tell everybody.
#pragma once

#include <string>

#include "layout.hpp"

namespace phalanx {

// Who sets it is not one of the ranks: the process that started them.
inline constexpr int kLauncher = -1;

// What the kind of a fault leaves open.
struct FaultDetail {
  std::string text{};  // words of a program or a library
  Awaited awaited = Awaited::kRanks;
  std::uint64_t wanted_bytes = 0, found_bytes = 0;
};

void wake_everybody(const Layout& layout) noexcept;
// False if the group has a fault already: the first one stays.
bool set_fault_quietly(const Layout& layout, FaultKind kind, int culprit, int reporter, Seq seq,
                       const FaultDetail& detail = {}) noexcept;
// The same, and wakes everybody.
bool set_fault(const Layout& layout, FaultKind kind, int culprit, int reporter, Seq seq,
               const FaultDetail& detail = {}) noexcept;
// Throws it, if there is one.
void throw_if_faulty(const Layout& layout);
// A rank's process has ended, with an exit code or 256 + signal. A rank that had left in good order stays "left".
void declare_dead(const Layout& layout, int rank, std::int32_t status) noexcept;

}  // namespace phalanx
