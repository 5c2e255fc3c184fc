// One message of device memory, from its notice to its end. It consists of messages of the mailbox.
//
//   sender                                            receiver
//   notice, at the call: bytes, type, number  ----->  it meets a receive of that source and tag, in the order of the calls
//   waits until its stream has reached the call
//   small:  body: the data, by way of the host  --->  copies it to its GPU. The sender does not wait for that.
//   large:  body: where the data lies  ------------>  opens the memory and copies from it on the GPU
//                                           <-------  answer: taken; refused, it is of another size or type; or through
//   the host: body: the data  --------------------->  the host, because one of them can't share memory
//
// Bodies and answers carry the sender's number of the message. The receiver writes into its own memory only, after its own
// stream has reached the call, and stays until nothing of its own is written any more. The sender stays for the answer. If
// it gives up before, its memory may be read while it is used for something else: so it breaks the group first, and the
// receiver looks whether the group is broken after its copy, before it calls the data good.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>

#include "../core/mailbox.hpp"
#include "../core/strided.hpp"
#include "gpu.hpp"
#include "sharing.hpp"

namespace phalanx::cuda {

class DeviceMail;
class DeviceRank;

// What travels.
struct Notice {
  std::uint64_t bytes;
  std::uint64_t number;  // of the sender's messages
  std::uint32_t dtype;
  std::uint32_t is_small;
};
struct Offer {
  static constexpr std::size_t kMostRetired = 4;

  std::uint64_t is_shared;  // 0: memory of the sender that others can't open
  std::uint64_t address;    // in the sender's process
  std::uint64_t offset;     // in the buffer
  ManifestBuffer buffer;
  IpcHandle handle;
  std::uint64_t retired[kMostRetired];  // the sender's allocations that are no more, or 0
};
enum class Answer : std::uint64_t { kTaken, kRefused, kThroughHost };

inline std::shared_ptr<std::byte[]> new_memory(std::size_t bytes) {
  return std::shared_ptr<std::byte[]>(new std::byte[std::max<std::size_t>(bytes, 1)]);
}
template <class T>
std::shared_ptr<std::byte[]> in_memory(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  auto memory = new_memory(sizeof value);
  std::memcpy(memory.get(), &value, sizeof value);
  return memory;
}
template <class T>
T from_memory(const std::byte* memory) {
  T value;
  std::memcpy(&value, memory, sizeof value);
  return value;
}

// Whoever waits for it brings it forward; DeviceMail's thread does so too when it is asynchronous. Threads may share it.
class DeviceMessage : public Transfer, public Mover {
 public:
  DeviceMessage(DeviceMail& mail, const Call& call, TensorView view, std::shared_ptr<const Moment> ready);
  virtual ~DeviceMessage() = default;
  DeviceMessage(const DeviceMessage&) = delete;

  // Post the notice, or the receive for it. Throws Trouble.
  virtual void begin() = 0;
  bool wait(std::int64_t deadline_ns, bool is_final) override;

  enum class State { kWaitsForMail, kWaitsForGpu, kOver };
  // As far as it can go now.
  State advance() noexcept;

 protected:
  using Continuation = std::function<void()>;

  // What the next continuation waits for.
  void after(std::shared_ptr<Transfer> transfer, Continuation next);
  void after_stream(Continuation next);  // until the stream has reached the call; it can be given up meanwhile
  void after_copies(Continuation next);  // until what this message put onto the GPU is over
  void succeed();

  // Send or receive a part of the message. `memory` lives as long as that.
  std::shared_ptr<Transfer> send(MailSpace kind, std::shared_ptr<std::byte[]> memory, std::size_t num_bytes) {
    return post(kind, true, std::move(memory), num_bytes);
  }
  std::shared_ptr<Transfer> receive(MailSpace kind, std::shared_ptr<std::byte[]> memory, std::size_t num_bytes) {
    return post(kind, false, std::move(memory), num_bytes);
  }
  // One that nobody waits for.
  void let_go(const std::shared_ptr<Transfer>& transfer);

  std::size_t size() const noexcept { return view_.bytes(); }
  std::byte* whole();  // the tensor, or memory on the GPU that stands for it when it is in pieces

  DeviceMail& mail_;
  std::shared_ptr<DeviceRank> rank_;  // until it is over
  const TensorView view_;
  std::shared_ptr<std::byte[]> staged_;  // the data in host memory
  std::shared_ptr<void> opened_;         // what it reads from stays open
  std::uint64_t number_ = 0;
  int other_;                   // the rank at the other end, or kAnySource
  bool is_counted_on_ = false;  // the other end knows of it and waits for more

 private:
  std::shared_ptr<Transfer> post(MailSpace kind, bool is_out, std::shared_ptr<std::byte[]> memory, std::size_t num_bytes);
  State run_continuations();
  bool has_arrived();
  bool is_interrupted();
  std::shared_ptr<Transfer> awaited();
  void conclude(Trouble why, bool breaks_group) noexcept;
  void let_go_of_gpu() noexcept;

  std::mutex mutex_;  // guards everything below, and is held by continuations
  std::shared_ptr<const Moment> ready_;
  std::shared_ptr<Transfer> notice_;
  std::shared_ptr<Transfer> awaited_;
  std::shared_ptr<const Moment> moment_;
  Continuation next_;
  std::unique_ptr<Scratch> scratch_;
  bool is_on_gpu_ = false;  // something of it, perhaps still running
};

class DeviceSend final : public DeviceMessage {
 public:
  using DeviceMessage::DeviceMessage;
  void begin() override;

 private:
  void load();
  void offer();
  void heed(Answer answer);
  void send_through_host();

  bool is_small_ = false;
};

class DeviceReceive final : public DeviceMessage {
 public:
  using DeviceMessage::DeviceMessage;
  void begin() override;

 private:
  void compare(const Notice& notice);
  void refuse(const Notice& notice);
  void take(const Offer& offer);
  void receive_through_host();
  void store(std::function<void(CudaPointer target)> copy, Continuation next);
};

}  // namespace phalanx::cuda
