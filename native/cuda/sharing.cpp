#include "sharing.hpp"

namespace phalanx::cuda {
namespace {

constexpr std::size_t kMostImports = 1024;
constexpr int kLooksPerOperation = 2;  // each may show a new allocation

// 0 when no allocation lies there.
std::uint64_t buffer_id(CudaPointer address) {
  std::uint64_t id = 0;
  return cuda_driver().pointer_attribute(&id, kPointerBufferId, address) == kCudaSuccess ? id : 0;
}

}  // namespace

const Exports::Allocation* Exports::show(const Region& region) {
  const auto address = reinterpret_cast<CudaPointer>(region.data);
  const std::uint64_t id = buffer_id(address);
  if (id == 0) throw DeviceProblem("the memory of a tensor was freed before the operation came to it; keep the tensor until wait() returns");
  if (const auto known = allocations_.find(id); known != allocations_.end()) return &known->second;
  Allocation allocation{};
  allocation.buffer.id = id;
  int is_exportable = 0;
  CudaResult result = cuda_driver().pointer_attribute(&is_exportable, kPointerIsExportable, address);
  if (result == kCudaSuccess && is_exportable == 0) result = kCudaInvalidValue;
  if (result == kCudaSuccess) result = cuda_driver().address_range(&allocation.buffer.base, &allocation.bytes, address);
  if (result == kCudaSuccess) result = cuda_driver().get_handle(&allocation.handle, allocation.buffer.base);
  if (result != kCudaSuccess) {
    why_ = "its memory can't be exported (" + cuda_driver().describe(result) +
           "); expandable segments of torch's allocator can't, nor managed memory or memory pools";
    return nullptr;
  }
  return &allocations_.emplace(id, allocation).first->second;
}

// The one that the manifest names last, if the region lies there too: tensors of a list mostly do.
const Exports::Allocation* Exports::last_on(const Manifest& manifest, const Region& region) const {
  if (manifest.buffers.empty()) return nullptr;
  const Allocation& last = allocations_.at(manifest.buffers.back().id);
  const auto address = reinterpret_cast<CudaPointer>(region.data);
  return address >= last.buffer.base && address < last.buffer.base + last.bytes ? &last : nullptr;
}

bool Exports::add(Manifest& manifest, const Region& region) {
  if (region.bytes == 0) {
    manifest.regions.push_back({0, 0, 0});
    return true;
  }
  const Allocation* allocation = last_on(manifest, region);
  if (allocation == nullptr) allocation = show(region);
  if (allocation == nullptr) return false;
  std::size_t index = 0;
  while (index < manifest.buffers.size() && manifest.buffers[index].id != allocation->buffer.id) ++index;
  if (index == manifest.buffers.size()) {
    manifest.buffers.push_back(allocation->buffer);
    manifest.handles.push_back(allocation->handle);
  }
  manifest.regions.push_back({reinterpret_cast<CudaPointer>(region.data) - allocation->buffer.base, region.bytes, index});
  return true;
}

void Exports::look_for_freed() {
  for (int look = 0; look < kLooksPerOperation && !allocations_.empty(); ++look) {
    auto next = allocations_.upper_bound(last_looked_at_);
    if (next == allocations_.end()) next = allocations_.begin();
    last_looked_at_ = next->first;
    if (buffer_id(next->second.buffer.base) == next->first) continue;
    retired_.push_back(next->first);
    allocations_.erase(next);
  }
}

std::uint64_t Exports::take_retired() {
  const std::uint64_t id = retired();
  if (id != 0) retired_.pop_back();
  return id;
}

CudaPointer Imports::open(int rank, const ManifestBuffer& buffer, const IpcHandle& handle) {
  const Key key{rank, buffer.id};
  if (const auto known = open_.find(key); known != open_.end()) {
    uses_.splice(uses_.begin(), uses_, known->second.use);
    return known->second.address;
  }
  CudaPointer address = 0;
  cuda_driver().check(cuda_driver().open_handle(&address, handle, kIpcLazyPeerAccess), "open a peer's GPU memory");
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

}  // namespace phalanx::cuda
