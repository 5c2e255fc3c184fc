// What the receiver of a message does.
#include <bit>

#include "messages.hpp"
#include "operation.hpp"

namespace phalanx::cuda {

void DeviceReceive::begin() {
  auto notice = new_memory(sizeof(Notice));
  const auto arrival = receive(MailSpace::kNotice, notice, sizeof(Notice));
  after(arrival, [this, notice, arrival] {
    source = other_ = arrival->source;
    compare(from_memory<Notice>(notice.get()));
  });
}

void DeviceReceive::compare(const Notice& notice) {
  number_ = notice.number;
  if (notice.bytes != size() || DType(notice.dtype) != call.dtype) return refuse(notice);
  if (size() == 0) return succeed();
  is_counted_on_ = true;
  if (notice.is_small != 0) return receive_through_host();
  auto offered = new_memory(sizeof(Offer));
  after(receive(MailSpace::kBody, offered, sizeof(Offer)), [this, offered] { take(from_memory<Offer>(offered.get())); });
}

// What follows the notice is thrown away when it comes.
void DeviceReceive::refuse(const Notice& notice) {
  const std::size_t more = notice.bytes == 0 ? 0 : notice.is_small != 0 ? notice.bytes : sizeof(Offer);
  if (more != 0) let_go(receive(MailSpace::kBody, new_memory(more), more));
  if (more != 0 && notice.is_small == 0) let_go(send(MailSpace::kAnswer, in_memory(Answer::kRefused), sizeof(Answer)));
  throw Trouble(FaultKind::kMismatch, other_, mail_.endpoint().rank(), 0,
                {.wanted_bytes = size(), .found_bytes = notice.bytes}, false);
}

void DeviceReceive::receive_through_host() {
  staged_ = new_memory(size());
  after(receive(MailSpace::kBody, staged_, size()), [this] {
    const auto copy = [this](CudaPointer target) {
      cuda_driver().check(cuda_driver().copy_from_host(target, staged_.get(), size(), rank_->stream()), "copy to the GPU");
    };
    store(copy, [this] { succeed(); });
  });
}

void DeviceReceive::take(const Offer& offer) {
  const auto opened = mail_.open(*rank_, offer, other_);
  if (!opened) {
    send(MailSpace::kAnswer, in_memory(Answer::kThroughHost), sizeof(Answer));
    return receive_through_host();
  }
  opened_ = opened->use;
  const auto copy = [this, from = opened->address](CudaPointer target) {
    cuda_driver().check(cuda_driver().copy_on_device(target, from, size(), rank_->stream()), "copy on the GPU");
  };
  store(copy, [this] {
    opened_.reset();
    mail_.endpoint().throw_if_faulty();  // the sender may have given up, and used its memory for something else
    after(send(MailSpace::kAnswer, in_memory(Answer::kTaken), sizeof(Answer)), [this] { succeed(); });
  });
}

void DeviceReceive::store(std::function<void(CudaPointer target)> copy, Continuation next) {
  after_stream([this, copy = std::move(copy), next = std::move(next)] {
    copy(std::bit_cast<CudaPointer>(whole()));
    if (!view_.is_contiguous()) unpack(*rank_, view_, whole());
    after_copies(next);
  });
}

}  // namespace phalanx::cuda
