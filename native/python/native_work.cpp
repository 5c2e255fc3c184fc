#include <nanobind/stl/string.h>

#include "rank_endpoint.hpp"

namespace phalanx::python {

RankEndpoint& NativeWork::endpoint() const { return nb::cast<RankEndpoint&>(endpoint_); }

bool NativeWork::is_done() {
  const bool done = ticket ? ticket->is_done() : transfer->is_done.load();
  if (done) unpack_once();
  return done;
}

std::optional<Trouble> NativeWork::trouble() const { return ticket ? ticket->trouble() : transfer->trouble; }

void NativeWork::unpack_once() {
  if (unpack && !transfer->trouble && !transfer->is_send()) unpack->store();
  unpack.reset();
}

void NativeWork::wait(double timeout) {
  RankEndpoint& owner = endpoint();
  if (!owner.core().is_owner() && !is_done()) owner.require_usable(call_.operation);  // in a forked process nobody ends it
  bool is_in_time = true;
  try {
    const Unlocked unlocked(Unlocked::When::kAtOnce);
    const std::int64_t deadline =
        timeout < 0 ? INT64_MAX : monotonic_ns() + static_cast<std::int64_t>(std::min(timeout, 1e9) * 1e9);
    is_in_time = ticket ? owner.lane().wait(*ticket, deadline)
                        : owner.mailbox().wait(transfer, std::min(deadline, call_.deadline_ns), timeout < 0);
    if (is_in_time && ticket) {
      if (const auto trouble = ticket->trouble()) throw *trouble;
    }
    if (!is_in_time) throw Trouble(FaultKind::kTimeout, -1, owner.core().rank(), 0, {.awaited = Awaited::kWork}, false);
  } catch (const Trouble& trouble) {
    owner.raise(call_, is_in_time ? timeout_s_ : timeout, trouble);
  }
  unpack_once();
}

nb::object NativeWork::exception() {
  if (!is_done()) return nb::none();
  const auto problem = trouble();
  return problem ? endpoint().explain(call_, timeout_s_, *problem) : nb::none();
}

nb::object NativeWork::result() {
  wait(-1);
  return tensors_;
}

nb::object NativeWork::source_rank() {
  if (!transfer || !is_done() || (transfer->source < 0 && !is_far(transfer->source))) return nb::none();
  return nb::int_(endpoint().rank_of_local(transfer->source));
}

}  // namespace phalanx::python
