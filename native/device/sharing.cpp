#include "sharing.hpp"

#include <cstring>

namespace phalanx::device {
namespace {

constexpr std::size_t kMostImports = 1024;

template <class T>
std::byte* put(std::byte* at, const T* values, std::size_t count) {
  if (count != 0) std::memcpy(at, values, count * sizeof(T));
  return at + count * sizeof(T);
}

template <class T>
const std::byte* get(const std::byte* at, T* values, std::size_t count) {
  if (count != 0) std::memcpy(values, at, count * sizeof(T));
  return at + count * sizeof(T);
}

// 0 when no allocation lies there.
std::uint64_t buffer_id(CudaPointer address) {
  std::uint64_t id = 0;
  return cuda().pointer_attribute(&id, kPointerBufferId, address) == kCudaSuccess ? id : 0;
}

}  // namespace

std::vector<std::byte> Card::pack() const {
  std::vector<std::byte> packed(bytes());
  std::byte* at = put(packed.data(), &header, 1);
  at = put(at, buffers.data(), buffers.size());
  put(at, regions.data(), regions.size());
  return packed;
}

Card Card::unpack(const std::byte* data, std::size_t bytes) {
  Card card;
  if (bytes < sizeof card.header) throw DeviceProblem("a peer's card of device memory is too short");
  data = get(data, &card.header, 1);
  card.buffers.resize(card.header.num_buffers);
  card.regions.resize(card.header.num_regions);
  if (card.bytes() != bytes) throw DeviceProblem("a peer's card of device memory has another size than it says");
  data = get(data, card.buffers.data(), card.buffers.size());
  get(data, card.regions.data(), card.regions.size());
  return card;
}

const Exports::Allocation* Exports::find(std::uint64_t id, CudaPointer address) {
  if (const auto known = allocations_.find(id); known != allocations_.end()) return &known->second;
  Allocation allocation{};
  int is_exportable = 0;
  CudaPointer base = 0;
  CudaResult result = cuda().pointer_attribute(&is_exportable, kPointerIsExportable, address);
  if (result == kCudaSuccess && is_exportable == 0) result = kCudaInvalidValue;
  if (result == kCudaSuccess) result = cuda().address_range(&base, &allocation.bytes, address);
  if (result == kCudaSuccess) result = cuda().get_handle(&allocation.handle, base);
  if (result != kCudaSuccess) {
    why_ = "its memory can't be exported (" + cuda().describe(result) +
           "); expandable segments of torch's allocator can't, nor managed memory or memory pools";
    return nullptr;
  }
  allocation.base = base;
  return &allocations_.emplace(id, allocation).first->second;
}

bool Exports::add(Card& card, std::span<const Region> regions) {
  // Before new ones come, which have higher numbers and are alive; two at a time, for each operation may add one.
  look_for_freed();
  look_for_freed();
  for (const Region& region : regions) {
    if (region.bytes == 0) {
      card.regions.push_back({0, 0, 0});
      continue;
    }
    const auto address = reinterpret_cast<CudaPointer>(region.data);
    const std::uint64_t id = buffer_id(address);
    if (id == 0) throw DeviceProblem("the memory of a tensor was freed before the operation came to it; keep the tensor until wait() returns");
    const Allocation* allocation = find(id, address);
    if (allocation == nullptr) return false;
    std::size_t index = 0;
    while (index < card.buffers.size() && card.buffers[index].id != id) ++index;
    if (index == card.buffers.size()) card.buffers.push_back({id, allocation->base, allocation->handle});
    card.regions.push_back({address - allocation->base, region.bytes, index});
  }
  return true;
}

void Exports::look_for_freed() {
  auto next = allocations_.upper_bound(last_looked_at_);
  if (next == allocations_.end()) next = allocations_.begin();
  if (next == allocations_.end()) return;
  last_looked_at_ = next->first;
  if (buffer_id(next->second.base) == next->first) return;
  retired_.push_back(next->first);
  allocations_.erase(next);
}

std::uint64_t Exports::take_retired() {
  if (retired_.empty()) return 0;
  const std::uint64_t id = retired_.back();
  retired_.pop_back();
  return id;
}

CudaPointer Imports::open(int rank, const CardBuffer& buffer) {
  const Key key{rank, buffer.id};
  if (const auto known = open_.find(key); known != open_.end()) {
    uses_.splice(uses_.begin(), uses_, known->second.use);
    return known->second.address;
  }
  CudaPointer address = 0;
  cuda().check(cuda().open_handle(&address, buffer.handle, kIpcLazyPeerAccess), "open a peer's GPU memory");
  uses_.push_front(key);
  open_.emplace(key, Mapping{address, uses_.begin()});
  return address;
}

void Imports::forget(int rank, std::uint64_t id) {
  if (const auto known = open_.find(Key{rank, id}); known != open_.end()) close(known);
}

void Imports::trim() noexcept {
  while (open_.size() > kMostImports) close(open_.find(uses_.back()));
}

void Imports::close(std::map<Key, Mapping>::iterator mapping) noexcept {
  if (const CudaDriver* driver = cuda_if_usable()) driver->close_handle(mapping->second.address);
  uses_.erase(mapping->second.use);
  open_.erase(mapping);
}

void Imports::close_all() noexcept {
  const CudaDriver* driver = cuda_if_usable();
  CudaContext previous;
  const bool is_current = driver != nullptr && driver->push_context(gpu_.context()) == kCudaSuccess;
  while (!open_.empty()) close(open_.begin());
  if (is_current) driver->pop_context(&previous);
}

}  // namespace phalanx::device
