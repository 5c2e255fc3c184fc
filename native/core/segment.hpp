// An anonymous memory file, mapped: the memory that ranks of one host share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace phalanx {

// The machine can't provide the memory. Has the numbers, for the message.
struct OutOfMemory : std::runtime_error {
  OutOfMemory(std::size_t needed, std::size_t available);
  std::size_t needed_bytes;
  std::size_t available_bytes;
};

// How many bytes can still be used before the kernel kills a process, by free memory and the limits of control groups. The cache
// of files counts as available. `process` is as for ControlGroups.
std::size_t available_memory_bytes(const std::string& process = "/proc/self");

enum class Access { kRead, kWrite };

// Owns its mapping and its descriptor; the memory vanishes with the last process that holds either, also after SIGKILL.
class Segment {
 public:
  // /proc shows the label, or as much of it as the kernel allows. Reserves the first `reserved` bytes at once, so that writes
  // there can't end in SIGBUS; the rest is for reserve(). Throws OutOfMemory, also if only the rest would not fit.
  static Segment create(const std::string& label, std::size_t bytes, std::size_t reserved);
  static Segment create(const std::string& label, std::size_t bytes) { return create(label, bytes, bytes); }
  // Maps a descriptor received from the creator, which must be a memory file that nobody can shrink. The caller keeps its
  // descriptor. Throws std::runtime_error.
  static Segment attach(int descriptor, Access access = Access::kWrite);
  // Keeps a copy of the descriptor, so that other processes of this user find the memory through /proc.
  void keep_descriptor(int descriptor) noexcept;

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  Segment(const Segment&) = delete;
  ~Segment();

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }
  int descriptor() const noexcept { return descriptor_; }
  // Peers have attached: the descriptor is no longer needed, the mapping stays.
  void close_descriptor() noexcept;

 private:
  Segment(int descriptor, std::byte* data, std::size_t bytes) noexcept
      : descriptor_(descriptor), data_(data), bytes_(bytes) {}
  static std::byte* map(int descriptor, std::size_t bytes, Access access);

  int descriptor_;
  std::byte* data_;
  std::size_t bytes_;
};

// Reserve pages of a segment before they are first written. Throws OutOfMemory.
void reserve(std::byte* data, std::size_t bytes);

}  // namespace phalanx
