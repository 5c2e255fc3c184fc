#include "manifest.hpp"

#include <cstring>

namespace phalanx::cuda {
namespace {

template <class T>
std::byte* put(std::byte* at, const T* values, std::size_t count) {
  if (count != 0) std::memcpy(at, values, count * sizeof(T));
  return at + count * sizeof(T);
}

// The payload lies before them, unless it is in the post.
std::size_t handles_offset(std::size_t payload_bytes) { return payload_bytes <= kInlineBytes ? 0 : payload_bytes; }

}  // namespace

void Manifest::clear() noexcept {
  header = {};
  regions.clear();
  buffers.clear();
  handles.clear();
}

void Manifest::publish(Endpoint& endpoint, const Call& call) {
  header.num_regions = std::uint8_t(regions.size());
  header.num_buffers = std::uint8_t(buffers.size());
  std::byte payload[kSlotBytes];
  std::byte* at = put(payload, &header, 1);
  at = put(at, regions.data(), regions.size());
  put(at, buffers.data(), buffers.size());
  put(endpoint.layout().slot(endpoint.rank(), endpoint.seq()) + handles_offset(bytes()), handles.data(), handles.size());
  endpoint.publish(call, payload, bytes(), bytes());
}

ManifestView::ManifestView(const Endpoint& endpoint, int rank) {
  const std::size_t bytes = endpoint.layout().post(rank, endpoint.seq()).extra;
  const std::byte* payload = endpoint.payload(rank, bytes);
  header = reinterpret_cast<const ManifestHeader*>(payload);
  regions = reinterpret_cast<const ManifestRegion*>(payload + sizeof *header);
  buffers = reinterpret_cast<const ManifestBuffer*>(regions + header->num_regions);
  handles = reinterpret_cast<const IpcHandle*>(endpoint.layout().slot(rank, endpoint.seq()) + handles_offset(bytes));
  if (bytes < sizeof *header || reinterpret_cast<const std::byte*>(buffers + header->num_buffers) != payload + bytes)
    throw DeviceProblem("a peer's description of its device memory has another size than it says");
}

}  // namespace phalanx::cuda
