// The functions that devices/races.py calls. They do not need torch, so the detector can be built and tested alone.
#pragma once

#include "races.hpp"

extern "C" {

namespace pxd_races = phalanx::devices::races;

struct PxdRaceAccess {
  std::uint64_t block, lo, hi;
  const std::int64_t *sizes, *strides;
  const char* dtype;  // null if it is not reported
  std::int32_t num_dims, item_bytes, is_write;
};

// The callback gets the facts of a race as JSON. If it returns an exception, that is raised where the race was found.
void pxd_races_connect(pxd_races::Tell tell) { pxd_races::state.tell.store(tell); }
void pxd_races_hide(const char* prefix) { pxd_races::python.hide(prefix); }
void pxd_races_set_mode(int mode) { pxd_races::set_mode(static_cast<pxd_races::Mode>(mode)); }
int pxd_races_mode() { return pxd_races::state.mode.load(); }
void pxd_races_clear() { pxd_races::clear(); }

// The race with that number as JSON, or null; valid until the next call of this thread.
const char* pxd_races_seen(std::int64_t number) {
  static thread_local std::string text;
  std::lock_guard guard(pxd_races::state.lock);
  if (number < 0 || static_cast<std::size_t>(number) >= pxd_races::state.seen.size()) return nullptr;
  text = pxd_races::state.seen[static_cast<std::size_t>(number)];
  return text.c_str();
}

// The next operation of a device raises races of the host. If there is none, call this: it passes each to the callback.
void pxd_races_take_unraised() {
  try {
    pxd_races::deliver_unraised();
  } catch (const std::exception&) {  // the callback has it
  }
}

// Returns zero if there is a race; the callback has got it.
std::uint64_t pxd_races_begin_collective(int device, std::int64_t stream, const PxdRaceAccess* given, std::int64_t count,
                                         std::int64_t group_number, const char* operation) {
  std::vector<pxd_races::Access> accesses;
  for (const PxdRaceAccess& one : std::span(given, static_cast<std::size_t>(count))) {
    const auto dims = static_cast<std::size_t>(one.num_dims);
    accesses.push_back({reinterpret_cast<const void*>(one.block), one.lo, one.hi, one.is_write != 0, {one.sizes, dims},
                        {one.strides, dims}, static_cast<std::uint32_t>(one.item_bytes), one.dtype});
  }
  try {
    return pxd_races::begin_collective({device, stream}, accesses, group_number, operation);
  } catch (const std::exception&) {
    return 0;
  }
}

void pxd_races_wait_collective(std::uint64_t ticket, int device, std::int64_t stream) {
  pxd_races::wait_collective(ticket, {device, stream});
}

}  // extern "C"
