#include "message.hpp"

#include <exception>
#include <new>
#include <optional>

#include "messages.hpp"

namespace phalanx::cuda {

DeviceMessage::DeviceMessage(DeviceMail& mail, const Call& of, TensorView view, std::shared_ptr<const Moment> ready)
    : mail_(mail), rank_(mail.rank_on(ready->gpu())), view_(std::move(view)), other_(of.root), ready_(std::move(ready)) {
  call = of;
  is_sending = of.operation == Operation::kSend;
  mover = this;
}

// Continuations may throw; the first of them run on the thread that made the call.
DeviceMessage::State DeviceMessage::advance() noexcept {
  const auto ours = [own = mail_.endpoint().rank()](FaultKind kind, const std::exception& problem) {
    return Trouble(kind, own, own, 0, {problem.what()}, false);
  };
  const std::lock_guard lock(mutex_);
  try {
    return run_continuations();
  } catch (const Trouble& why) {
    // The other end knows of a mismatch, and needs nothing more when it has left.
    const bool is_clear = why.kind == FaultKind::kMismatch || why.kind == FaultKind::kPeerLeft;
    conclude(why, is_counted_on_ && !is_clear);
  } catch (const DeviceProblem& problem) {
    conclude(ours(FaultKind::kPeerFailed, problem), true);
  } catch (const std::bad_alloc&) {  // no memory of the host to pass it through
    const int own = mail_.endpoint().rank();
    const FaultDetail shortage{.wanted_bytes = size(), .found_bytes = available_memory_bytes()};
    conclude(Trouble(FaultKind::kOutOfMemory, own, own, 0, shortage, false), true);
  } catch (const std::exception& problem) {
    conclude(ours(FaultKind::kAborted, problem), true);
  }
  return State::kOver;
}

DeviceMessage::State DeviceMessage::run_continuations() {
  while (!is_done.load()) {
    if (awaited_) {
      if (!awaited_->is_done.load()) return State::kWaitsForMail;
      if (awaited_->trouble) throw *awaited_->trouble;
    } else if (!has_arrived()) {
      return State::kWaitsForGpu;
    }
    const Continuation next = std::move(next_);
    const Current current(rank_->gpu());
    next();
  }
  return State::kOver;
}

// Whether the awaited moment has passed. What is on the GPU is awaited whatever happens.
bool DeviceMessage::has_arrived() {
  if (moment_->has_passed()) {
    is_on_gpu_ = false;
    return true;
  }
  if (is_on_gpu_) return false;
  mail_.endpoint().throw_if_faulty();
  if (monotonic_ns() > call.deadline_ns && Deadline(call.deadline_ns, call.paused_ns).left_ns() <= 0)
    throw Trouble(FaultKind::kTimeout, mail_.endpoint().rank(), mail_.endpoint().rank(), 0, {.awaited = Awaited::kStream}, false);
  return false;
}

void DeviceMessage::after(std::shared_ptr<Transfer> transfer, Continuation next) {
  awaited_ = std::move(transfer);
  next_ = std::move(next);
}

void DeviceMessage::after_stream(Continuation next) {
  awaited_ = nullptr;
  moment_ = ready_;
  next_ = std::move(next);
}

void DeviceMessage::after_copies(Continuation next) {
  awaited_ = nullptr;
  is_on_gpu_ = true;
  moment_ = std::make_shared<const Moment>(rank_->gpu(), rank_->stream());
  next_ = std::move(next);
}

void DeviceMessage::succeed() {
  mail_.mailbox().tell_end(*notice_, other_);
  let_go_of_gpu();
  is_done.store(true);
}

// Whoever keeps the message as a result keeps nothing else alive.
void DeviceMessage::let_go_of_gpu() noexcept {
  scratch_.reset();
  moment_.reset();
  ready_.reset();
  staged_.reset();
  opened_.reset();
  rank_.reset();
  awaited_.reset();  // it may hold a copy on the host
  next_ = nullptr;
}

void DeviceMessage::conclude(Trouble why, bool breaks_group) noexcept {
  const CudaDriver* driver = cuda_if_usable();
  CudaContext previous;
  if (driver != nullptr && driver->push_context(rank_->gpu().context()) == kCudaSuccess) {
    driver->synchronize_stream(rank_->stream());  // the caller takes its memory away
    driver->pop_context(&previous);
  }
  if (breaks_group && !why.is_fatal) {
    why.is_fatal = true;
    set_fault(mail_.endpoint().layout(), why.kind, why.culprit, why.reporter, mail_.endpoint().seq(), why.detail);
  }
  let_go_of_gpu();
  trouble = std::move(why);
  is_done.store(true);
}

std::shared_ptr<Transfer> DeviceMessage::post(MailSpace kind, bool is_out, std::shared_ptr<std::byte[]> memory,
                                              std::size_t num_bytes) {
  auto transfer = std::make_shared<Transfer>();
  transfer->call = call;
  transfer->call.root = other_;
  transfer->space = kind;
  transfer->is_sending = is_out;
  transfer->tag = kind == MailSpace::kNotice ? call.tag : number_;
  transfer->data = memory.get();
  transfer->bytes = num_bytes;
  transfer->keep = std::move(memory);
  if (call.is_async) transfer->on_done = [mail = &mail_] { mail->notify(); };
  if (kind == MailSpace::kNotice) notice_ = transfer;
  mail_.mailbox().start(transfer);
  if (call.is_async) mail_.mailbox().detach(transfer);
  return transfer;
}

void DeviceMessage::let_go(const std::shared_ptr<Transfer>& transfer) {
  if (!call.is_async) mail_.mailbox().detach(transfer);
}

std::byte* DeviceMessage::whole() {
  if (view_.is_contiguous()) return view_.data;
  if (!scratch_) scratch_ = std::make_unique<Scratch>(rank_->gpu(), size());
  return scratch_->data();
}

std::shared_ptr<Transfer> DeviceMessage::awaited() {
  const std::lock_guard lock(mutex_);
  return awaited_;
}

// A signal ends the wait for the stream, but not for copies: those are soon over.
bool DeviceMessage::is_interrupted() {
  {
    const std::lock_guard lock(mutex_);
    if (is_on_gpu_ || is_done.load()) return false;
  }
  return Endpoint::is_interrupted();
}

namespace {

// While it lives, peers that look for this rank see that it is in this message; after trouble, until its next operation.
class ToldAsleep {
 public:
  ToldAsleep(Journal& journal, const Call& call) : journal_(journal) { journal_.begin_sleep(call, call.tag); }
  ~ToldAsleep() { std::uncaught_exceptions() == 0 ? journal_.end_sleep() : journal_.keep_sleep(); }
  ToldAsleep(const ToldAsleep&) = delete;

 private:
  Journal& journal_;
};

}  // namespace

bool DeviceMessage::wait(std::int64_t deadline_ns, bool is_final) {
  constexpr int kLooksPerQuestion = 64;
  Pace pace;
  std::optional<ToldAsleep> told;
  for (int looks = 1;; ++looks) {
    const State state = advance();
    if (state == State::kOver) {
      if (trouble) throw *trouble;
      return true;
    }
    if (state == State::kWaitsForMail) {
      try {
        const auto transfer = awaited();
        if (transfer && !mail_.mailbox().wait(transfer, deadline_ns, is_final)) return false;
      } catch (const Trouble&) {
        // It has ended with it, as the next continuation will see.
      }
      pace = Pace();
      told.reset();
      looks = 0;
      continue;
    }
    if (!is_final && monotonic_ns() > deadline_ns) return false;
    if (looks % kLooksPerQuestion == 0 && is_interrupted()) {
      const int own = mail_.endpoint().rank();
      const Trouble interruption(FaultKind::kInterrupted, own, own, 0, {}, false);
      const std::lock_guard lock(mutex_);
      if (!is_done.load()) conclude(interruption, is_counted_on_);
      throw interruption;
    }
    if (looks == kLooksPerQuestion) told.emplace(mail_.endpoint().journal(), call);
    pace.rest();
  }
}

}  // namespace phalanx::cuda
