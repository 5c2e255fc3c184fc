#include "messages.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace phalanx::cuda {
namespace {

constexpr std::int64_t kYieldNs = 1'000'000;
constexpr useconds_t kSleepUs = 50;

}  // namespace

void Pace::rest() const {
  if (monotonic_ns() - start_ns_ < kYieldNs) sched_yield();
  else usleep(kSleepUs);
}

DeviceMail::DeviceMail(std::shared_ptr<Endpoint> endpoint, Mailbox& mailbox, Warn warn)
    : endpoint_(std::move(endpoint)), mailbox_(mailbox), warn_(std::move(warn)),
      is_shown_(std::size_t(endpoint_->num_ranks())), retired_(std::size_t(endpoint_->num_ranks())) {}

void DeviceMail::close() {
  if (!endpoint_->is_owner()) {  // after fork the thread is not here, and its locks may be held for ever
    if (thread_.joinable()) thread_.detach();
    (void)condition_.release();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  notify();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(sharing_);
  ranks_.clear();
}

std::shared_ptr<DeviceMessage> DeviceMail::start(const Call& call, const TensorView& view,
                                                 std::shared_ptr<const Moment> ready) {
  std::shared_ptr<DeviceMessage> message;
  if (call.operation == Operation::kSend) message = std::make_shared<DeviceSend>(*this, call, view, std::move(ready));
  else message = std::make_shared<DeviceReceive>(*this, call, view, std::move(ready));
  if (call.is_async) {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });  // before the other end hears of the message
  }
  message->begin();
  if (!call.is_async) return message;
  {
    const std::lock_guard lock(mutex_);
    messages_.push_back(message);
  }
  notify();
  return message;
}

void DeviceMail::notify() noexcept {
  {
    const std::lock_guard lock(mutex_);
    has_news_ = true;
  }
  condition_->notify_one();
}

void DeviceMail::work() {
  Pace pace;
  bool is_gpu_awaited = false;
  std::vector<std::shared_ptr<DeviceMessage>> messages;
  for (;;) {
    if (is_gpu_awaited) pace.rest();
    {
      std::unique_lock lock(mutex_);
      condition_->wait(lock, [&] { return is_gpu_awaited || has_news_ || (is_closing_ && messages_.empty()); });
      if (is_closing_ && messages_.empty()) return;
      if (std::exchange(has_news_, false)) pace = Pace();
      messages = messages_;
    }
    is_gpu_awaited = false;
    std::erase_if(messages, [&](const std::shared_ptr<DeviceMessage>& message) {
      const auto state = message->advance();
      is_gpu_awaited |= state == DeviceMessage::State::kWaitsForGpu;
      return state != DeviceMessage::State::kOver;
    });
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(messages_, [&](const auto& message) { return std::ranges::find(messages, message) != messages.end(); });
    }
    messages.clear();  // not under the lock: that may take others
  }
}

std::shared_ptr<DeviceRank> DeviceMail::rank_on(Gpu& gpu) {
  const std::lock_guard lock(sharing_);
  auto& rank = ranks_[gpu.ordinal()];
  if (!rank) rank = std::make_shared<DeviceRank>(*endpoint_, gpu, warn_);
  return rank;
}

bool DeviceMail::is_same_process(int peer) const noexcept {
  const Member &one = endpoint_->layout().member(endpoint_->rank()), &other = endpoint_->layout().member(peer);
  return one.pid.load() == other.pid.load() && one.start_ticks.load() == other.start_ticks.load() &&
         one.pid_namespace.load() == other.pid_namespace.load();
}

Offer DeviceMail::offer(DeviceRank& rank, const Region& region, int peer) {
  Offer offer{};
  offer.address = std::bit_cast<std::uint64_t>(region.data);
  offer.is_shared = is_same_process(peer);
  if (offer.is_shared != 0) return offer;
  std::string why;
  {
    const std::lock_guard lock(sharing_);
    const auto to = std::size_t(peer);
    rank.exports().look_for_freed();
    if (const Exports::Allocation* allocation = rank.exports().show(region)) {
      is_shown_[to] = true;
      offer.is_shared = 1;
      offer.offset = offer.address - allocation->buffer.base;
      offer.buffer = allocation->buffer;
      offer.handle = allocation->handle;
    } else {
      why = rank.exports().why();
    }
    spread_retired(rank);
    for (std::size_t i = 0; i < Offer::kMostRetired && !retired_[to].empty(); ++i) {
      offer.retired[i] = retired_[to].back();
      retired_[to].pop_back();
    }
  }
  if (!why.empty()) warn_("CUDA tensors that this rank sends go through the host, which is slow: " + why);
  return offer;
}

void DeviceMail::spread_retired(DeviceRank& rank) {
  while (const std::uint64_t id = rank.exports().take_retired()) {
    for (std::size_t peer = 0; peer < retired_.size(); ++peer) {
      if (is_shown_[peer]) retired_[peer].push_back(id);
    }
  }
}

std::optional<DeviceMail::Opened> DeviceMail::open(DeviceRank& rank, const Offer& offer, int peer) {
  if (is_same_process(peer)) return Opened{offer.address, nullptr};
  std::string why;
  {
    const std::lock_guard lock(sharing_);
    for (auto& [ordinal, other] : ranks_) {
      const Current current(other->gpu());
      for (const std::uint64_t id : offer.retired) other->imports().forget(peer, id);
      if (uses_.use_count() == 1) other->imports().trim();
    }
    if (offer.is_shared == 0 || !can_open_) return std::nullopt;
    try {
      return Opened{rank.imports().open(peer, offer.buffer, offer.handle) + offer.offset, uses_};
    } catch (const DeviceProblem& problem) {
      endpoint_->peers().find_dead();
      if (endpoint_->layout().member(peer).state.load() != MemberState::kPresent) return std::nullopt;  // no wonder
      can_open_ = false;
      why = problem.what();
    }
  }
  warn_("CUDA tensors that this rank receives go through the host, which is slow: " + why);
  return std::nullopt;
}

}  // namespace phalanx::cuda
