// What the sender of a message does.
#include <bit>

#include "messages.hpp"
#include "operation.hpp"

namespace phalanx::cuda {

void DeviceSend::begin() {
  number_ = mail_.next_number();
  is_small_ = size() <= mail_.mailbox().eager_limit() && other_ != mail_.endpoint().rank();
  const Notice notice{size(), number_, std::uint32_t(call.dtype), is_small_};
  after(send(MailSpace::kNotice, in_memory(notice), sizeof notice), [this] {
    if (size() == 0) return succeed();
    is_counted_on_ = true;
    after_stream([this] { load(); });
  });
}

void DeviceSend::load() {
  if (!view_.is_contiguous()) pack(*rank_, view_, whole());
  if (is_small_) return send_through_host();
  if (view_.is_contiguous()) return offer();
  after_copies([this] { offer(); });
}

void DeviceSend::offer() {
  const Offer offered = mail_.offer(*rank_, {whole(), size()}, other_);
  send(MailSpace::kBody, in_memory(offered), sizeof offered);
  auto answer = new_memory(sizeof(Answer));
  after(receive(MailSpace::kAnswer, answer, sizeof(Answer)), [this, answer] { heed(from_memory<Answer>(answer.get())); });
}

void DeviceSend::heed(Answer answer) {
  switch (answer) {
    case Answer::kTaken: return succeed();
    case Answer::kThroughHost: return send_through_host();
    case Answer::kRefused:
      throw Trouble(FaultKind::kMismatch, other_, mail_.endpoint().rank(), 0, {}, false);
  }
}

void DeviceSend::send_through_host() {
  staged_ = new_memory(size());
  const auto from = std::bit_cast<CudaPointer>(whole());
  cuda_driver().check(cuda_driver().copy_to_host(staged_.get(), from, size(), rank_->stream()), "copy from the GPU");
  after_copies([this] { after(send(MailSpace::kBody, staged_, size()), [this] { succeed(); }); });
}

}  // namespace phalanx::cuda
