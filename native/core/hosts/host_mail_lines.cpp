// Frames: how they go, and the threads that take them.
#include <cstring>
#include <system_error>

#include "host_group.hpp"
#include "host_mail.hpp"

namespace phalanx {
namespace {

constexpr std::size_t kFrameBytes = sizeof(MailCard) + kMailBytes;
constexpr std::uint64_t kUntold = 16;  // so many frames are taken before the other side is told without another reason
constexpr std::size_t kStandAgain = 2;
constexpr std::int64_t kForeverNs = std::int64_t(10) * 24 * 3600 * 1'000'000'000;  // the watcher ends the wait
constexpr std::int64_t kTakenNs = 10'000'000'000;  // of a frame that the other side has taken already

}  // namespace

HostMail::Line& HostMail::line_to(int peer) {
  std::unique_ptr<Line>& line = lines_[peer];
  if (line) return *line;
  auto made = std::make_unique<Line>(peer);
  for (Buffer& buffer : made->buffers) buffer = std::make_unique_for_overwrite<std::byte[]>(kFrameBytes);
  try {
    made->reader = std::thread([this, &its = *made] { read(its); });
  } catch (const std::system_error& error) {
    lines_.erase(peer);
    throw Trouble(FaultKind::kAborted, group_.outer().rank(), group_.outer().rank(), 0, {no_thread_text(error)}, false);
  }
  line = std::move(made);
  return *line;
}

HostMail::Buffer HostMail::take_buffer() {
  if (free_.empty()) return std::make_unique_for_overwrite<std::byte[]>(kFrameBytes);
  Buffer buffer = std::move(free_.back());
  free_.pop_back();
  return buffer;
}

void HostMail::queue_frame(Line& line, MailCard card, const std::byte* data, std::size_t bytes, MessagePtr with) {
  Frame frame{take_buffer(), sizeof card + bytes, std::move(with)};
  std::memcpy(frame.buffer.get(), &card, sizeof card);
  if (bytes != 0) std::memcpy(frame.buffer.get() + sizeof card, data, bytes);
  ++line.num_frames;
  line.queue.push_back(std::move(frame));
}

// Starts what is in the queue, unless another thread does. The wire is never used with mutex_.
void HostMail::pump(Lock& lock, Line& line) {
  if (line.is_pumping || line.is_connecting) return;
  line.is_pumping = true;
  while (!line.queue.empty() && !line.lost) {
    std::deque<Frame> batch = std::exchange(line.queue, {});
    std::vector<WireMessage> messages;
    for (Frame& frame : batch) {
      const auto add_data = [&](bool is_send) {
        if (frame.with && frame.with->is_send() == is_send)
          messages.push_back({is_send, line.peer, int(frame.with->data_tag), frame.with->data, frame.with->bytes});
      };
      std::memcpy(frame.buffer.get() + offsetof(MailCard, taken), &line.num_taken, sizeof line.num_taken);
      add_data(false);
      messages.push_back({true, line.peer, kMailTag, frame.buffer.get(), frame.bytes});
      add_data(true);
    }
    line.num_told = line.num_taken;
    std::vector<Wire::Handle> taken;
    const std::uint64_t first = line.num_frames - batch.size() - line.queue.size() - line.gone.size();  // number of the oldest
    std::size_t num_taken = std::size_t(line.num_taken_there - std::min(line.num_taken_there, first));
    if (num_taken < kUntold / 2) num_taken = 0;  // several at once cost less
    for (std::size_t i = 0; i < std::min(num_taken, line.gone.size()); ++i) taken.push_back(line.gone[i].handle);
    lock.unlock();
    std::vector<Wire::Handle> handles;
    std::string why;
    try {
      if (!taken.empty()) group_.wire().wait(taken, kTakenNs);
      handles = group_.wire().start(messages);
    } catch (const WireError& error) {
      why = error.what();
    }
    lock.lock();
    for (std::size_t i = 0; why.empty() && i < taken.size(); ++i) {
      free_.push_back(std::move(line.gone.front().buffer));
      line.gone.pop_front();
    }
    if (!why.empty() && !line.lost) line.lost = why;  // the reader notices too, and says what that means
    std::size_t i = 0;
    for (Frame& frame : batch) {
      const MessagePtr with = std::move(frame.with);
      if (why.empty() && with && !with->is_send()) with->data_handle = handles[i++];
      if (why.empty()) frame.handle = handles[i++];
      if (why.empty() && with && with->is_send()) {
        with->data_handle = handles[i++];
        if (!sender_.joinable()) sender_ = std::thread([this] { await_sent(); });
        sending_.push_back(with);
      }
      line.gone.push_back(std::move(frame));
    }
    condition_->notify_all();
  }
  line.is_pumping = false;
  condition_->notify_all();
}

// The thread of a line. Receives for frames always stand, so that a frame needs no round trip before it.
void HostMail::read(Line& line) {
  std::array<Wire::Handle, kStanding> handles{};
  std::size_t turn = 0, num_free = kStanding;
  bool is_connected = false;
  try {
    for (;;) {
      if (num_free >= kStandAgain) {
        std::vector<WireMessage> receives;
        for (std::size_t i = 0; i < num_free; ++i) {
          const std::size_t place = (turn + kStanding - num_free + i) % kStanding;
          receives.push_back({false, line.peer, kMailTag, line.buffers[place].get(), kFrameBytes});
        }
        const std::vector<Wire::Handle> started = group_.wire().start(receives);
        for (std::size_t i = 0; i < num_free; ++i) handles[(turn + kStanding - num_free + i) % kStanding] = started[i];
        num_free = 0;
      }
      if (!std::exchange(is_connected, true)) {
        Lock lock(mutex_);
        line.is_connecting = false;
        pump(lock, line);
      }
      group_.wire().wait({&handles[turn], 1}, kForeverNs);
      take_frame(line, line.buffers[turn].get());
      turn = (turn + 1) % kStanding;
      ++num_free;
    }
  } catch (const WireError& error) {
    end_of_line(line, error.what());
  } catch (const Trouble& trouble) {
    break_group(trouble);
  } catch (const std::exception& error) {
    const int me = group_.outer().rank();
    set_fault(group_.outer().layout(), FaultKind::kAborted, me, me, 0, {words_of(error)});
    break_group(Trouble(FaultKind::kAborted, me, me, 0, {words_of(error)}, true));
  }
}

void HostMail::take_frame(Line& line, const std::byte* frame) {
  MailCard card;
  if (!read_mail_card(frame, card)) group_.fail_elsewhere(FaultKind::kAborted, name_of(line.peer) + " sent what is no message of phalanx");
  const std::byte* data = frame + sizeof card;
  if (card.kind == MailKind::kFault)
    group_.fail_elsewhere(card.fault, std::string(reinterpret_cast<const char*>(data), card.bytes));
  Lock lock(mutex_);
  ++line.num_taken;
  line.num_taken_there = std::max(line.num_taken_there, std::min(card.taken, line.num_frames));
  release_waiting(line);
  switch (card.kind) {
    case MailKind::kEager:
    case MailKind::kOffer: take_offer(line, card, data); break;
    case MailKind::kReady: take_ready(line, card); break;
    case MailKind::kData: take_data(lock, line, card); break;
    case MailKind::kLeft:
      line.has_left = true;
      forsake(line);
      break;
    default: break;
  }
  if ((card.kind == MailKind::kAsk && line.queue.empty()) || line.num_taken - line.num_told >= kUntold)
    queue_frame(line, MailCard{}, nullptr, 0);
  condition_->notify_all();
  pump(lock, line);
  settle(lock);
}

// The data is on its way, so this wait needs nobody's help.
void HostMail::take_data(Lock& lock, Line& line, const MailCard& card) {
  const auto found = line.receives.find({card.tag, card.number});
  if (found == line.receives.end()) return;  // it was given up
  const MessagePtr message = found->second;
  condition_->wait(lock, [&] { return message->data_handle != 0 || line.lost || is_closing_; });  // another thread is about to start it
  if (message->data_handle == 0) throw WireError(line.lost.value_or("the group was closed"));
  lock.unlock();
  group_.wire().wait({&message->data_handle, 1}, kForeverNs);
  lock.lock();
  line.receives.erase({card.tag, card.number});
  finish(message);
}

// The thread that waits until large data has gone. Its receive stands, so this needs nobody's help either.
void HostMail::await_sent() {
  Lock lock(mutex_);
  for (;;) {
    condition_->wait(lock, [this] { return is_closing_ || !sending_.empty(); });
    if (sending_.empty()) return;
    const MessagePtr message = sending_.front();
    sending_.pop_front();
    lock.unlock();
    bool has_gone = true;
    try {
      group_.wire().wait({&message->data_handle, 1}, kForeverNs);
    } catch (const WireError&) {  // the reader of this line notices too
      has_gone = false;
    }
    lock.lock();
    Line& line = *lines_.at(message->far);
    if (!has_gone && !line.has_left) continue;
    line.sends.erase({message->tag, message->number});
    finish(message, has_gone ? std::nullopt : std::optional(left_by(message->far)));
  }
}

std::string HostMail::name_of(int peer) const {
  return "rank " + std::to_string(peer) + " on host " + std::to_string(group_.map().host_of(peer));
}

void HostMail::say_goodbye(MailKind kind, FaultKind fault, const std::string& text) noexcept {
  constexpr std::int64_t kGoodbyeNs = 200'000'000;
  try {
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kGoodbyeNs);
    Lock lock(mutex_);
    std::vector<Wire::Handle> handles;
    MailCard card;
    card.kind = kind;
    card.fault = fault;
    card.bytes = std::min(text.size(), kMailBytes);
    for (const auto& [peer, line] : lines_) {
      if (line->lost || line->has_left || line->is_connecting) continue;
      queue_frame(*line, card, reinterpret_cast<const std::byte*>(text.data()), card.bytes);
      condition_->wait_until(lock, until, [&] { return !line->is_pumping; });
      pump(lock, *line);
      if (!line->gone.empty() && line->gone.back().handle != 0) handles.push_back(line->gone.back().handle);
    }
    lock.unlock();
    if (!handles.empty()) group_.wire().wait(handles, kGoodbyeNs);
  } catch (const std::exception&) {  // then the others see that the connection ends
  }
  const Lock lock(mutex_);
  is_closing_ |= kind == MailKind::kLeft;
}

bool HostMail::has_lines() {
  const Lock lock(mutex_);
  return !lines_.empty();
}

void HostMail::close() {
  if (!group_.outer().is_owner()) {  // after fork the threads do not exist
    for (auto& [peer, line] : lines_) (void)line.release();
    lines_.clear();
    if (sender_.joinable()) sender_.detach();
    (void)condition_.release();
    return;
  }
  {
    const Lock lock(mutex_);
    is_closing_ = true;
    condition_->notify_all();
  }
  constexpr auto kConnecting = std::chrono::milliseconds(100);
  for (const auto& [peer, line] : lines_) {  // no line is made any more
    if (!line->reader.joinable()) continue;
    Lock lock(mutex_);
    condition_->wait_for(lock, kConnecting, [&] { return !line->is_connecting; });
    const bool is_stuck = line->is_connecting;
    has_stuck_threads_ |= is_stuck;
    lock.unlock();
    is_stuck ? line->reader.detach() : line->reader.join();
  }
  if (sender_.joinable()) sender_.join();
  const int me = group_.outer().rank();
  fail_all(Trouble(FaultKind::kAborted, me, me, 0, {"the group was closed"}, true));
  const Lock lock(mutex_);
  stale_.clear();
}

}  // namespace phalanx
