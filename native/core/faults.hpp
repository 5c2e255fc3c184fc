// The one fault a group can have, and the bells that tell everybody.
#pragma once

#include <string>

#include "layout.hpp"

namespace phalanx {

// The reporter of a fault that no rank has set, but the process that started the ranks.
inline constexpr int kLauncher = -1;
// The culprit of a fault, if it is a rank of another host. The text then says who, and what happened.
inline constexpr int kElsewhere = -2;

// Details of a fault, depending on its kind.
struct FaultDetail {
  std::string text{};  // text of a program or a library
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
// Throws the fault of the group, if there is one.
void throw_if_faulty(const Layout& layout);
// Marks a rank as dead whose process has ended with an exit code or 256 + signal. A rank that had left in good order stays
// "left".
void declare_dead(const Layout& layout, int rank, std::int32_t status) noexcept;

}  // namespace phalanx
