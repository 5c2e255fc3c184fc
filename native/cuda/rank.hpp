// One rank's part in collectives of device memory.
//
// The protocol, within one operation of the endpoint (seq):
//
//   every rank      waits until its own stream has reached the call (ranks as threads leave that to the leader), publishes
//                   its manifest, and waits for all arrivals. Now all know all manifests, and decide alike:
//   somebody can't share   ->  the operation is over, unsuccessful: the caller stages it through the host.
//   leaders         on each GPU the rank whose stream was the last to reach the call: the GPU is that process's now, and to
//                   hand it to another takes longer than most operations. The lowest, if all were there already. It opens
//                   what it needs; post_step(kClaimed), or kUnopened if it can't.
//                   With several leaders each waits for the others' word first (kUnopened may be kSeen by then), so that
//                   nobody writes in vain.
//                   Then it looks whether the group has failed; if not it launches one kernel for its slice of all the
//                   elements, waits for it on the host, and posts kDone. Should anything go wrong after kClaimed, it sets the
//                   group's fault, and posts kReleased when nothing runs any more.
//   every rank      waits for kClaimed of all leaders within the call's time, then for kDone: what is claimed ends soon.
//                   kUnopened instead: everybody posts kSeen and waits for everybody's, so that no leader is in the next
//                   operation before all have seen its word; then as above.
//
// A rank that gives up after it has published, for whatever reason, sets the group's fault first and then looks at
// everybody's words: while one is kClaimed, its memory may be written, so it stays until that is over or the leader is
// dead. Dekker with the leader's post and look: either the leader sees the fault, or the rank sees the claim.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../core/endpoint.hpp"
#include "entries.hpp"
#include "gpu.hpp"
#include "sharing.hpp"

namespace phalanx::cuda {

// What this rank gives to an operation; see Side for what lies where.
struct Operands {
  std::shared_ptr<const Moment> ready;
  Form form = Form::kList;
  std::vector<Region> regions;
};

using Warn = std::function<void(const std::string&)>;

// One thread at a time, as its endpoint.
class DeviceRank {
 public:
  DeviceRank(Endpoint& endpoint, Gpu& gpu, Warn warn);
  ~DeviceRank() { gpu_.give_stream(stream_); }
  DeviceRank(const DeviceRank&) = delete;

  Gpu& gpu() const noexcept { return gpu_; }
  CudaStream stream() const noexcept { return stream_; }
  // Within an operation that has begun; ends it. Returns when the data is in place for every stream. False: memory can't be
  // shared, and nothing was done. Throws Trouble and DeviceProblem. Needs Current.
  bool run(const Call& call, const Operands& operands);

  // Block until a rank's stream has passed the event, within the call's time. Returns when it was seen to have passed, or 0 if
  // it had before.
  std::int64_t await(const Call& call, CudaEvent event, int rank);
  // Block until everything on our stream is over.
  void finish();

  // What messages need.
  Exports& exports() noexcept { return exports_; }
  Imports& imports() noexcept { return imports_; }
  bool is_single_process() const noexcept { return is_single_process_; }

 private:
  enum Step : std::uint64_t { kClaimed = 1, kDone = 2, kUnopened = 3, kSeen = 4, kReleased = 5 };

  void fill_card(const Operands& operands, std::int64_t ready_ns);
  void meet(const Call& call, const Operands& operands, std::int64_t ready_ns);
  bool can_all_share() const noexcept;
  void find_leaders();
  bool decide(const Call& call);
  bool lead(const Call& call);
  bool follow(const Call& call);
  bool has_not_opened(int leader) const noexcept;
  bool agree_to_stage(const Call& call);
  void resolve();
  void launch(const Call& call);
  void launch_batch(const ModuleKey& key, std::size_t first, std::size_t count);
  unsigned blocks_for(std::uint64_t bytes, std::size_t num_entries) const noexcept;
  void release() noexcept;
  void hold_until_untouched() noexcept;
  void cannot_share(const std::string& why);

  Endpoint& endpoint_;
  Gpu& gpu_;
  Warn warn_;
  const CudaStream stream_;
  const std::uint64_t process_;
  bool is_single_process_;  // as far as is known
  bool can_share_ = true;
  Exports exports_;
  Imports imports_;

  // Of one operation; kept for their memory.
  Manifest manifest_;
  std::vector<ManifestView> manifests_;  // of all ranks
  std::vector<int> leaders_;
  std::vector<CudaPointer> bases_;  // of one rank's buffers
  std::vector<Side> sides_;      // of all ranks
  Entries entries_;
};

}  // namespace phalanx::cuda
