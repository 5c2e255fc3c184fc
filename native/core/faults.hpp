// The one fault a group can have, and the bells that tell everybody.
#pragma once

#include <string>

#include "layout.hpp"

namespace phalanx {

// Who sets it is not one of the ranks: the process that started them.
inline constexpr int kLauncher = -1;

void wake_everybody(const Layout& layout) noexcept;
// False if the group has a fault already: the first one stays.
bool set_fault(const Layout& layout, FaultKind kind, int culprit, int reporter, Seq seq, const std::string& text) noexcept;
// Throws it, if there is one.
void throw_if_faulty(const Layout& layout);
// A rank's process has ended, with an exit code or 256 + signal. A rank that had left in good order stays "left".
void declare_dead(const Layout& layout, int rank, std::int32_t status) noexcept;

}  // namespace phalanx
