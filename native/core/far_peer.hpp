// How the journal names a rank of another host. Its other ranks have their numbers on this host.
#pragma once

#include <cstdint>

namespace phalanx {

// Below any number of a rank, and below -1 and -2, which mean something else. The rank's number is that of the whole group.
inline constexpr std::int32_t kFarPeer = -16;
inline std::int32_t far_number(int rank) noexcept { return kFarPeer - rank; }
inline bool is_far(std::int32_t number) noexcept { return number <= kFarPeer; }
inline int rank_of_far(std::int32_t number) noexcept { return kFarPeer - number; }

}  // namespace phalanx
