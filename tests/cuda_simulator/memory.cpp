// Device memory of the simulated driver: files in memory, which other processes can map.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "simulator.hpp"

using namespace simulator;

namespace {

// What is in the 64 bytes of an IPC handle.
struct Ticket {
  std::uint64_t id, epoch, bytes;
  int pid, file, device;
};
static_assert(sizeof(Ticket) <= 64);
struct IpcHandle {
  unsigned char bytes[64];
};

struct Block {
  std::size_t bytes;
  std::uint64_t id;
  int device;
  int file = -1;        // -1: another process has it
  std::string name;     // of the file
  int num_openings = 0;  // of another process's memory
};

struct Memory {
  std::mutex mutex;  // guards what follows
  std::map<Address, Block> blocks;
  std::uint64_t next_id = 1;
  std::map<int, std::size_t> bytes_in_use;  // per device, without what other processes have
};

Memory& memory() {
  static Memory& one = *new Memory;
  return one;
}

// Tells this process from an earlier one with its number.
std::uint64_t epoch() {
  static const std::uint64_t value =
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  return value;
}

std::string name_of(const Ticket& ticket) {
  const std::string process = std::to_string(ticket.pid) + "-" + std::to_string(ticket.epoch);
  return "simulated-gpu-" + process + "-" + std::to_string(ticket.id);
}

// The caller holds the mutex.
std::map<Address, Block>::iterator find(Address address) {
  auto& blocks = memory().blocks;
  auto found = blocks.upper_bound(address);
  if (found == blocks.begin()) return blocks.end();
  --found;
  return address < found->first + found->second.bytes ? found : blocks.end();
}

void* map_file(int file, std::size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return address == MAP_FAILED ? nullptr : address;
}

// The exporter's file, if it is still the one the ticket is for: numbers of files are used again.
int open_exported(const Ticket& ticket) {
  const std::string path = "/proc/" + std::to_string(ticket.pid) + "/fd/" + std::to_string(ticket.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return -1;
  char target[256] = {};
  const std::string own = "/proc/self/fd/" + std::to_string(file);
  const bool is_known = readlink(own.c_str(), target, sizeof target - 1) > 0;
  if (is_known && std::string(target).find(name_of(ticket) + " ") != std::string::npos) return file;
  close(file);
  return -1;
}

std::size_t capacity() { return static_cast<std::size_t>(setting("SIMULATED_GPU_BYTES", 64l << 30)); }

long count_blocks(bool is_mapping) {
  const std::lock_guard lock(memory().mutex);
  long count = 0;
  for (const auto& [address, block] : memory().blocks) count += (block.num_openings > 0) == is_mapping;
  return count;
}

}  // namespace

bool simulator::is_on_device(Address address, std::size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  const auto found = find(address);
  return found != memory().blocks.end() && address + bytes <= found->first + found->second.bytes;
}

#define CHECK_USABLE() \
  if (const Result why = usable(); why != kSuccess) return why

EXPORT Result cuMemAlloc_v2(Address* address, std::size_t bytes) {
  CHECK_USABLE();
  if (current_context() == nullptr) return kInvalidContext;
  if (bytes == 0) return kInvalidValue;
  const int device = device_of(current_context());
  const std::lock_guard lock(memory().mutex);
  std::size_t& in_use = memory().bytes_in_use[device];
  if (in_use + bytes > capacity()) return kOutOfMemory;
  const Ticket ticket{memory().next_id++, epoch(), bytes, getpid(), -1, device};
  const std::string name = name_of(ticket);
  const int file = memfd_create(name.c_str(), MFD_CLOEXEC);
  void* place = file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0 ? map_file(file, bytes) : nullptr;
  if (place == nullptr) {
    if (file >= 0) close(file);
    return kOutOfMemory;
  }
  in_use += bytes;
  *address = reinterpret_cast<Address>(place);
  memory().blocks[*address] = Block{bytes, ticket.id, device, file, name, 0};
  return kSuccess;
}

EXPORT Result cuMemFree_v2(Address address) {
  CHECK_USABLE();
  if (address == 0) return kSuccess;
  wait_for_all_streams();  // as the real one does
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().blocks.find(address);
  if (found == memory().blocks.end() || found->second.file < 0) return kInvalidValue;
  munmap(reinterpret_cast<void*>(address), found->second.bytes);
  close(found->second.file);
  memory().bytes_in_use[found->second.device] -= found->second.bytes;
  memory().blocks.erase(found);
  return kSuccess;
}

EXPORT Result cuMemGetAddressRange_v2(Address* base, std::size_t* bytes, Address address) {
  CHECK_USABLE();
  const std::lock_guard lock(memory().mutex);
  const auto found = find(address);
  if (found == memory().blocks.end()) return kInvalidValue;
  if (base != nullptr) *base = found->first;
  if (bytes != nullptr) *bytes = found->second.bytes;
  return kSuccess;
}

EXPORT Result cuPointerGetAttribute(void* value, int attribute, Address address) {
  CHECK_USABLE();
  const std::lock_guard lock(memory().mutex);
  const auto found = find(address);
  if (found == memory().blocks.end()) return kInvalidValue;
  switch (attribute) {
    case 7: *static_cast<std::uint64_t*>(value) = found->second.id; return kSuccess;
    case 9: *static_cast<int*>(value) = found->second.device; return kSuccess;
    case 13:  // one byte: whoever reads more must have cleared it
      *static_cast<bool*>(value) = found->second.file >= 0 && setting("SIMULATED_NOT_EXPORTABLE") == 0;
      return kSuccess;
    default: return kInvalidValue;
  }
}

EXPORT Result cuIpcGetMemHandle(IpcHandle* handle, Address address) {
  CHECK_USABLE();
  const std::lock_guard lock(memory().mutex);
  const auto found = find(address);
  if (found == memory().blocks.end() || found->second.file < 0 || setting("SIMULATED_NOT_EXPORTABLE") != 0)
    return kInvalidValue;
  const Block& block = found->second;
  const Ticket ticket{block.id, epoch(), block.bytes, getpid(), block.file, block.device};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &ticket, sizeof ticket);
  return kSuccess;
}

EXPORT Result cuIpcOpenMemHandle_v2(Address* address, IpcHandle handle, unsigned flags) {
  CHECK_USABLE();
  if (current_context() == nullptr) return kInvalidContext;
  if (flags != 1) return kInvalidValue;  // lazy peer access is the only kind there is
  Ticket ticket;
  std::memcpy(&ticket, &handle, sizeof ticket);
  if (ticket.pid == getpid()) return kInvalidContext;
  if (setting("SIMULATED_NO_IPC") != 0) return kInvalidHandle;
  if (ticket.device != device_of(current_context()) && setting("SIMULATED_NO_PEER") != 0) return kPeerAccessUnsupported;
  const std::lock_guard lock(memory().mutex);
  const std::string name = name_of(ticket);
  for (auto& [base, block] : memory().blocks) {
    if (block.num_openings == 0 || block.name != name) continue;
    ++block.num_openings;
    *address = base;
    return kSuccess;
  }
  const int file = open_exported(ticket);
  if (file < 0) return kInvalidValue;
  void* place = map_file(file, ticket.bytes);
  close(file);
  if (place == nullptr) return kOutOfMemory;
  *address = reinterpret_cast<Address>(place);
  memory().blocks[*address] = Block{ticket.bytes, memory().next_id++, ticket.device, -1, name, 1};
  return kSuccess;
}

EXPORT Result cuIpcCloseMemHandle(Address address) {
  CHECK_USABLE();
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().blocks.find(address);
  if (found == memory().blocks.end() || found->second.num_openings == 0) return kInvalidValue;
  if (--found->second.num_openings > 0) return kSuccess;
  munmap(reinterpret_cast<void*>(address), found->second.bytes);
  memory().blocks.erase(found);
  return kSuccess;
}

EXPORT long sim_num_mappings() { return count_blocks(true); }

EXPORT long sim_num_allocations() { return count_blocks(false); }

EXPORT long sim_bytes_in_use() {
  const std::lock_guard lock(memory().mutex);
  long bytes = 0;
  for (const auto& [device, in_use] : memory().bytes_in_use) bytes += static_cast<long>(in_use);
  return bytes;
}
