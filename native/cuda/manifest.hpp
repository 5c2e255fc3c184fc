// What a rank tells the others about its device memory in an operation: which pieces of which allocations it gives or takes.
//
// With one region it fits into the post. What every rank needs from every other comes first, in the cache line that a rank
// reads anyway. The handles lie apart, in the slot: only a rank that has not opened an allocation yet reads them.
#pragma once

#include <cstdint>
#include <vector>

#include "../core/endpoint.hpp"
#include "cuda_driver.hpp"

namespace phalanx::cuda {

enum class Sharing : std::uint8_t {
  kPointers,     // this rank is a thread, and takes the others for threads of the same process
  kHandles,
  kNotPossible,  // this rank can't share its memory, or can't open that of others
};
// Whether a rank's blocks for the ranks are tensors of their own, or lie one after the other in one tensor.
enum class Form : std::uint8_t { kList, kSingle };

struct ManifestHeader {
  std::uint8_t num_regions;
  std::uint8_t num_buffers;
  Sharing sharing;
  Form form;
  std::int8_t ordinal;    // of the GPU in that process
  bool was_busy;          // its stream, at the call
  bool has_retired;
  std::uint64_t gpu;      // tells GPUs apart, alike in all processes
  std::uint64_t process;  // tells processes apart
  std::uint64_t ready;    // if it was: kPointers: the event after which the memory is ready; kHandles: since when it is
  std::uint64_t retired;  // if it has: an allocation that is no more
};
struct ManifestRegion {
  std::uint64_t offset;  // in its buffer; with plain pointers the address
  std::uint64_t bytes;
  std::uint64_t buffer;
};
struct ManifestBuffer {
  std::uint64_t id;  // no other allocation of the process ever has it
  std::uint64_t base;
};
static_assert(kSlotBytes / sizeof(ManifestRegion) < 256);  // so they can be counted
static_assert(sizeof(ManifestHeader) + sizeof(ManifestRegion) + sizeof(ManifestBuffer) <= kInlineBytes);

// A manifest to fill in. A rank uses one object again and again.
class Manifest {
 public:
  ManifestHeader header{};
  std::vector<ManifestRegion> regions;
  std::vector<ManifestBuffer> buffers;
  std::vector<IpcHandle> handles;  // of the buffers

  void clear() noexcept;
  bool fits() const noexcept { return bytes() + handles.size() * sizeof(IpcHandle) <= kSlotBytes; }
  // In the operation that has begun.
  void publish(Endpoint& endpoint, const Call& call);

 private:
  std::size_t bytes() const noexcept {
    return sizeof header + regions.size() * sizeof(ManifestRegion) + buffers.size() * sizeof(ManifestBuffer);
  }
};

// A published manifest, read in place: valid until the end of the operation.
struct ManifestView {
  // Of a rank that has arrived. Throws DeviceProblem.
  ManifestView(const Endpoint& endpoint, int rank);

  const ManifestHeader* header;
  const ManifestRegion* regions;
  const ManifestBuffer* buffers;
  const IpcHandle* handles;
};

}  // namespace phalanx::cuda
