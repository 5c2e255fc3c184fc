// send and recv: check the arguments, hand the message to the mailbox, or to that of the GPUs.
#include <nanobind/stl/string.h>

#include "places.hpp"
#include "rank_device.hpp"
#include "rank_endpoint.hpp"

namespace phalanx::python {

// Both take (tensor, peer, tag, *, timeout_s, async_op).
nb::object RankEndpoint::message(Operation operation, const Arguments& args, int peer) {
  const nb::handle object = args.required(0);
  const long tag = args.long_integer(2, 0);
  const double timeout = args.seconds(3);
  const bool is_async = args.flag(4);
  const bool is_send = operation == Operation::kSend;
  require_usable(operation);
  Call call = new_call(operation, timeout);
  call.root = peer;
  call.is_async = is_async;
  call.tag = static_cast<std::uint64_t>(tag);
  try {
    const Tensor tensor = view_tensor(object, "tensor", is_send ? Use::kRead : Use::kWrite);
    describe(tensor, call);
    call.is_on_device = tensor.device != kHost;
    if (is_send || peer != kAnySource) check_root(peer);
    if (tag < 0) throw UsageProblem("tag " + std::to_string(tag) + " is negative; give 0 or more");
    if (!is_async && peer == rank())
      throw UsageProblem(std::string(is_send ? "the destination rank should not be the same as this rank in a blocking send"
                                             : "the source rank should not be the same as this rank in a blocking recv") +
                         "; use async_op=True for messages to oneself");
    prune_pending();
    if (hosts_) [[unlikely]] {
      if (tensor.device != kHost) refuse_device();
      if (peer == kAnySource)
        throw UsageProblem("a group over several hosts can't receive from any rank; give the source");
      if (!hosts_->map().is_here(peer)) {
        call.root = far_number(peer);
        return message_over_hosts(call, object, tensor, timeout);
      }
      call.root = hosts_->map().local_of(peer);
    }
    if (tensor.device != kHost) [[unlikely]]
      return device_message(call, object, tensor, timeout);
    const Place place(tensor);
    if (is_send) place.load();
    if (!is_async) {
      std::shared_ptr<Transfer> transfer;
      {
        const Unlocked unlocked(when_to_unlock(call));
        transfer = mailbox_->start(call, std::uint64_t(tag), place.data, place.bytes);
        mailbox_->wait(transfer, call.deadline_ns, true);
        if (!is_send) place.store();
      }
      return is_send ? nb::none() : nb::object(nb::int_(rank_of_local(transfer->source)));
    }
    const nb::object memory = hold_memory(object);
    auto* work = new NativeWork(self(), nb::borrow(object), memory, call, timeout);
    nb::object result = nb::cast(work, nb::rv_policy::take_ownership);
    work->transfer = mailbox_->start(call, std::uint64_t(tag), place.data, place.bytes, place.piece);
    work->unpack = place.piece;
    pending_messages_.emplace_back(work->transfer, memory);
    mailbox_->detach(work->transfer);
    return result;
  } catch (const UsageProblem& problem) {
    raise_usage(call, problem.what());
  } catch (const Trouble& trouble) {
    raise(call, timeout, trouble);
  }
}

// A large message may have to keep its memory for longer than the call: see docs/internals/hosts.md.
static std::shared_ptr<void> keep_until_released(const nb::object& memory, const std::shared_ptr<Piece>& piece) {
  return std::shared_ptr<void>(new nb::object(memory), [piece](void* kept) {
    const nb::gil_scoped_acquire locked;
    delete static_cast<nb::object*>(kept);
  });
}

nb::object RankEndpoint::message_over_hosts(const Call& call, nb::handle object, const Tensor& tensor, double timeout) {
  const bool is_send = call.operation == Operation::kSend;
  const Place place(tensor);
  if (is_send) place.load();
  const bool is_large = place.bytes > kMailBytes;
  const nb::object memory = is_large || call.is_async ? hold_memory(object) : nb::none();
  const std::shared_ptr<void> keep = is_large ? keep_until_released(memory, place.piece) : place.piece;
  HostMail& mail = hosts_->mail();
  std::shared_ptr<HostMessage> message;
  {
    const Unlocked unlocked(Unlocked::When::kAtOnce);
    message = mail.start(call, place.data, place.bytes, keep);
    if (!call.is_async) {
      mail.wait(message, call.deadline_ns, true);
      if (!is_send) place.store();
    }
  }
  if (!call.is_async) return is_send ? nb::none() : nb::object(nb::int_(rank_of_far(call.root)));
  auto* work = new NativeWork(self(), nb::borrow(object), memory, call, timeout);
  nb::object result = nb::cast(work, nb::rv_policy::take_ownership);
  work->transfer = message;
  work->unpack = place.piece;
  pending_messages_.emplace_back(message, memory);
  return result;
}

cuda::DeviceMail& RankEndpoint::device_mail() {
  if (!device_mail_) device_mail_ = std::make_unique<cuda::DeviceMail>(endpoint_, *mailbox_, warn);
  return *device_mail_;
}

nb::object RankEndpoint::device_message(Call call, nb::handle object, const Tensor& tensor, double timeout) {
  check_packable(tensor);
  std::shared_ptr<const cuda::Moment> ready;
  try {
    cuda::Gpu& gpu = cuda::Gpu::at(tensor.device);
    ready = std::make_shared<const cuda::Moment>(gpu, static_cast<cuda::CudaStream>(current_stream(object, tensor.device)));
    device_mail().rank_on(gpu);
  } catch (const std::exception& problem) {  // no such GPU, a forked process, a captured stream
    throw UsageProblem(problem.what());
  }
  std::shared_ptr<cuda::DeviceMessage> message;
  {
    const Unlocked unlocked(Unlocked::When::kAtOnce);
    message = device_mail_->start(call, tensor.view, std::move(ready));
    if (!call.is_async) mailbox_->wait(message, call.deadline_ns, true);
  }
  if (!call.is_async) return message->is_send() ? nb::none() : nb::object(nb::int_(message->source));
  auto* work = new NativeWork(self(), nb::borrow(object), nb::borrow(object), call, timeout);
  nb::object result = nb::cast(work, nb::rv_policy::take_ownership);
  work->transfer = message;
  pending_messages_.emplace_back(message, nb::borrow(object));
  return result;
}

nb::object RankEndpoint::send(const Arguments& args) {
  return message(Operation::kSend, args, args.required_integer(1));
}

nb::object RankEndpoint::recv(const Arguments& args) {
  return message(Operation::kRecv, args, args.optional(1).is_none() ? kAnySource : args.required_integer(1));
}

}  // namespace phalanx::python
