#include "faults.hpp"

#include "text.hpp"
#include "trouble.hpp"

namespace phalanx {

void wake_everybody(const Layout& layout) noexcept {
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    for (Bell* bell : {&layout.bell(rank), &layout.mail_bell(rank)}) {
      bell->word.fetch_add(1, std::memory_order_seq_cst);
      futex_wake_all(bell->word);
    }
  }
}

bool set_fault_quietly(const Layout& layout, FaultKind kind, int culprit, int reporter, Seq seq,
                       const FaultDetail& detail) noexcept {
  Fault& fault = layout.header().fault;
  std::uint32_t none = 0;
  if (!fault.state.compare_exchange_strong(none, 1, std::memory_order_acq_rel)) return false;
  fault.kind = kind;
  fault.culprit = culprit;
  fault.reporter = reporter;
  fault.seq = seq;
  fault.awaited = detail.awaited;
  fault.wanted_bytes = detail.wanted_bytes;
  fault.found_bytes = detail.found_bytes;
  store_beginning(fault.text, detail.text);
  fault.state.store(2, std::memory_order_release);
  return true;
}

bool set_fault(const Layout& layout, FaultKind kind, int culprit, int reporter, Seq seq,
               const FaultDetail& detail) noexcept {
  if (!set_fault_quietly(layout, kind, culprit, reporter, seq, detail)) return false;
  wake_everybody(layout);
  return true;
}

void throw_if_faulty(const Layout& layout) {
  const Fault& fault = layout.header().fault;
  if (fault.state.load(std::memory_order_acquire) != 2) [[likely]]
    return;
  throw Trouble(fault.kind, fault.culprit, fault.reporter, fault.seq,
                {fault.text, fault.awaited, fault.wanted_bytes, fault.found_bytes}, true);
}

void declare_dead(const Layout& layout, int rank, std::int32_t status) noexcept {
  Member& member = layout.member(rank);
  member.exit_status.store(status);
  for (MemberState state : {MemberState::kPresent, MemberState::kAbsent})
    member.state.compare_exchange_strong(state, MemberState::kDead);
  wake_everybody(layout);
}

}  // namespace phalanx
