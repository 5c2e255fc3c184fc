// The detector: it records what streams, the host and the allocator do, and finds accesses that are not ordered.
//
// It uses neither torch nor Python. Not for several threads at a time: races.hpp has the lock.
#pragma once

#include <set>

#include "races_copies.hpp"
#include "races_launch.hpp"
#include "races_report.hpp"
#include "races_reuse.hpp"

namespace phalanx::devices::races {

// look() checks an operation and take_in() records it afterwards, so that a refused operation is not recorded.
class Detector {
 public:
  using Reports = std::vector<Report>;

  // Returns the races: what the operation should have waited for.
  Reports look(const Launch& launch) {
    Reports reports;
    const Clock* clock = &clocks_.of(clocks_.index_of(launch.stream));
    Clock joined;
    if (launch.behind) {
      joined = *clock;
      joined.wait_for(clocks_.of(clocks_.index_of(*launch.behind)));
      clock = &joined;
    }
    // Reads come first: memory that is read and written is reported as read.
    for (const bool is_write : {false, true}) {
      for (const Access& access : launch.accesses) {
        if (access.is_write != is_write || access.lo == access.hi) continue;
        const auto block = blocks_.find(access.block);
        if (block != blocks_.end()) look_at(block->second.history, access, launch, *clock, reports);
      }
    }
    if (launch.on_host != nullptr && !copies_.is_empty())
      if (const BlockHistory* history = copies_.find(launch.on_host->footprint()))
        look_at(*history, *launch.on_host, launch, *clock, reports);
    return reports;
  }

  void take_in(const Launch& launch) {
    if (launch.behind) stream_waits(launch.stream, clocks_.of(clocks_.index_of(*launch.behind)));
    const std::size_t stream = clocks_.index_of(launch.stream);
    Touch touch{stream, clocks_.launch(stream), site_of(launch.stream, launch.operation, launch.where), 0, launch.kind};
    remember_launch(stream, touch.launch, touch.site);
    for (const bool is_write : {false, true}) {
      for (const Access& access : launch.accesses) {
        if (access.is_write != is_write || access.lo == access.hi) continue;
        touch.tensor = tensor_of(access);
        touch.is_write = is_write;
        blocks_[access.block].history.take_in(access.footprint(), touch);
      }
    }
    if (!launch.is_left_in_flight) return;
    touch.tensor = tensor_of(*launch.on_host);
    touch.is_write = launch.on_host->is_write;
    copies_.add(launch.on_host->block, launch.on_host->footprint(), touch, clocks_);
  }

  // The copy runs after both current streams, and both continue after it.
  static Launch copy_between_devices(StreamKey source, StreamKey destination, std::span<const Access> accesses,
                                     const std::string* operation, const Where& where) {
    return {source, accesses, operation, where, TouchKind::kOperation, destination};
  }
  void take_in_copy_between_devices(const Launch& copy) {
    take_in(copy);
    stream_waits(*copy.behind, clocks_.of(clocks_.index_of(copy.stream)));
  }

  // Each group of ranks has a stream for its collectives; groups may share one. A collective runs after the caller's
  // stream.
  static Launch collective(StreamKey caller, std::span<const Access> accesses, std::int64_t group_number, const std::string* operation,
                           const Where& where) {
    return {{caller.device, -1 - group_number % kGroupStreams}, accesses, operation, where, TouchKind::kCollective, caller};
  }

  // Returns its ticket.
  std::uint64_t take_in_collective(const Launch& collective) {
    take_in(collective);
    for (const Access& access : collective.accesses)
      record_stream(access.block, collective.stream);  // a group keeps its tensors until it is done
    collectives_.emplace(++num_collectives_, clocks_.of(clocks_.index_of(collective.stream)));
    if (collectives_.size() > kMostCollectives) {  // it was never waited for; from now on, it causes no reports
      clocks_.host_waits_for(collectives_.begin()->second);
      collectives_.erase(collectives_.begin());
    }
    return num_collectives_;
  }

  void wait_collective(std::uint64_t ticket, StreamKey key) {
    const auto found = collectives_.find(ticket);
    if (found != collectives_.end()) stream_waits(key, found->second);
  }

  // An operation of the CPU on memory that copies may still use.
  Reports host_touches(std::span<const Access> accesses, const std::string* operation, const Where& where) {
    Reports reports;
    for (const Access& access : accesses) {
      const BlockHistory* history = copies_.find(access.footprint());
      if (history == nullptr) continue;
      const auto is_done = [&](const Touch& earlier) { return earlier.launch <= clocks_.host().of(earlier.stream); };
      history->look(access.footprint(), access.is_write, is_done, [&](const Touch& earlier) {
        report(earlier, {{}, operation, where}, access, clocks_.host(), RaceKind::kHost, reports);
      });
    }
    return reports;
  }

  // Copies from or to pinned memory.
  bool has_copies_in_flight() {
    copies_.forget_settled(clocks_);
    return !copies_.is_empty();
  }
  bool is_in_flight(std::span<const Access> accesses) const {
    return std::any_of(accesses.begin(), accesses.end(),
                       [&](const Access& access) { return copies_.find(access.footprint()) != nullptr; });
  }

  void record(const void* event, StreamKey key) { clocks_.record(event, clocks_.index_of(key)); }
  void forget_event(const void* event) { clocks_.forget_event(event); }
  void wait(StreamKey key, const void* event) {
    if (const Clock* clock = clocks_.of_event(event)) stream_waits(key, *clock);
  }
  void host_waits_for_stream(StreamKey key) { clocks_.host_waits_for(clocks_.of(clocks_.index_of(key))); }
  void host_waits_for_device(int device) { clocks_.host_waits_for_device(device); }
  void host_waits_for_event(const void* event) {
    if (const Clock* clock = clocks_.of_event(event)) clocks_.host_waits_for(*clock);
  }

  void allocated(const void* start, std::size_t size_bytes, StreamKey key, const std::string* operation, const Where& where) {
    const std::size_t stream = clocks_.index_of(key);
    Block block{key, size_bytes, site_of(key, operation, where), {}, {}};
    std::vector<Touch> touches = reuse_.is_empty() ? std::vector<Touch>() : reuse_.take(key, size_bytes, clocks_.of(stream));
    touches.insert(touches.begin(), Touch{stream, clocks_.launch(stream), block.site, 0, TouchKind::kAllocation, true});
    const auto lo = reinterpret_cast<std::uintptr_t>(start);
    block.history.start_with(lo, lo + size_bytes, std::move(touches));
    blocks_.insert_or_assign(start, std::move(block));
  }

  void record_stream(const void* start, StreamKey key) {
    const auto found = blocks_.find(start);
    if (found != blocks_.end()) found->second.recorded.insert(clocks_.index_of(key));
  }

  void freed(const void* start, const Where& where) {
    copies_.freed(start);
    const auto found = blocks_.find(start);
    if (found == blocks_.end()) return;
    const Block& block = found->second;
    if (block.owner) keep_risks(block, where);
    blocks_.erase(found);
  }

  void emptied_cache() { reuse_.clear(); }

  std::size_t num_blocks() const { return blocks_.size(); }

 private:
  struct Block {
    std::optional<StreamKey> owner;  // the stream it was allocated on; none if that was before the detector was on
    std::size_t size_bytes = 0;
    SiteId site = 0;
    std::set<std::size_t> recorded{};
    BlockHistory history{};
  };

  static constexpr std::int64_t kGroupStreams = 64;  // streams make every clock longer
  static constexpr std::size_t kMostCollectives = 1 << 12, kLaunchesKept = 64;

  void stream_waits(StreamKey key, const Clock& clock) { clocks_.of(clocks_.index_of(key)).wait_for(clock); }

  SiteId site_of(StreamKey key, const std::string* operation, const Where& where) {
    Site site{key, operation, where.place, where.backward_node, {}};
    if (where.forward.is_known) {
      if (where.backward_node != nullptr)
        site.forward = forward_lines_.find(where.forward, *where.backward_node);
      else if (where.place.is_known() && operation != nullptr)
        forward_lines_.remember(where.forward, operation, where.place);
    }
    return sites_.number_of(site);
  }

  TensorId tensor_of(const Access& access) {
    if (access.dtype == nullptr) return 0;
    std::string text = std::string(access.dtype) + " (";
    for (std::size_t at = 0; at < access.sizes.size(); ++at) text += (at > 0 ? ", " : "") + std::to_string(access.sizes[at]);
    if (access.sizes.size() == 1) text += ",";
    return tensors_.number_of(text + ")");
  }

  void look_at(const BlockHistory& history, const Access& access, const Launch& launch, const Clock& clock, Reports& reports) {
    const auto is_ordered = [&](const Touch& earlier) { return earlier.launch <= clock.of(earlier.stream); };
    history.look(access.footprint(), access.is_write, is_ordered, [&](const Touch& earlier) {
      report(earlier, {launch.stream, launch.operation, launch.where}, access, clock, kind_of(earlier), reports);
    });
  }

  static RaceKind kind_of(const Touch& earlier) {
    if (earlier.former_life != nullptr) return RaceKind::kReuse;
    if (earlier.kind == TouchKind::kAllocation) return RaceKind::kAllocation;
    return earlier.kind == TouchKind::kCollective ? RaceKind::kCollective : RaceKind::kStreams;
  }

  struct Doer {
    StreamKey stream;
    const std::string* operation;
    const Where& where;
  };

  void report(const Touch& earlier, const Doer& here, const Access& access, const Clock& clock, RaceKind kind,
              Reports& reports) {
    Report made;
    made.kind = kind;
    made.here = {sites_[site_of(here.stream, here.operation, here.where)], access.is_write, tensors_[tensor_of(access)]};
    made.earlier = {sites_[earlier.site], earlier.is_write, tensors_[earlier.tensor]};
    if (earlier.former_life != nullptr) {
      made.freed = sites_[earlier.former_life->freed];
      made.allocated = sites_[earlier.former_life->allocated];
    }
    made.has_waited = clock.of(earlier.stream) > 0;
    find_launch(earlier.stream, clock.of(earlier.stream), made.waited);
    const auto is_same = [&](const Report& other) {
      return other.kind == made.kind && other.here.site == made.here.site && other.earlier.site == made.earlier.site &&
             other.here.tensor == made.here.tensor &&
             (other.here.is_write == made.here.is_write || other.earlier.is_write == made.earlier.is_write);
    };
    if (std::none_of(reports.begin(), reports.end(), is_same)) reports.push_back(std::move(made));
  }

  // The block returns to its owner's pool. Keep the accesses of other streams that the owner has not waited for.
  void keep_risks(const Block& block, const Where& where) {
    const std::size_t owner = clocks_.index_of(*block.owner);
    const Clock& clock = clocks_.of(owner);
    std::shared_ptr<const FormerLife> life;
    FreedMemory freed{block.size_bytes, {}};
    block.history.each_touch([&](const Touch& touch) {
      if (touch.stream == owner || touch.launch <= clock.of(touch.stream)) return;
      if (block.recorded.contains(touch.stream) || touch.former_life != nullptr) return;
      if (life == nullptr) {
        const FormerLife now{block.site, site_of(*block.owner, nullptr, where)};
        life = std::make_shared<const FormerLife>(now);
      }
      for (Touch& kept : freed.touches) {
        if (kept.stream != touch.stream || kept.is_write != touch.is_write) continue;
        if (kept.launch < touch.launch) kept = touch;
        kept.gaps = nullptr;
        kept.former_life = life;
        return;
      }
      freed.touches.push_back(touch);
      freed.touches.back().gaps = nullptr;
      freed.touches.back().former_life = life;
    });
    if (!freed.touches.empty()) reuse_.add(*block.owner, std::move(freed));
  }

  void remember_launch(std::size_t stream, std::uint64_t launch, SiteId site) {
    if (stream >= recent_.size()) recent_.resize(stream + 1);
    auto& launches = recent_[stream];
    if (launches.size() == kLaunchesKept) launches.pop_front();
    launches.emplace_back(launch, site);
  }

  // The last launch of a stream up to the given one, if it is still in the list.
  void find_launch(std::size_t stream, std::uint64_t up_to, Site& found) const {
    if (stream >= recent_.size()) return;
    const auto& launches = recent_[stream];
    const auto is_before = [&](const auto& launch) { return launch.first <= up_to; };
    const auto last = std::find_if(launches.rbegin(), launches.rend(), is_before);
    if (last != launches.rend()) found = sites_[last->second];
  }

  Clocks clocks_;
  Sites sites_;
  Tensors tensors_;
  ForwardLines forward_lines_;
  std::unordered_map<const void*, Block> blocks_;
  CopiesInFlight copies_;
  ReusePools reuse_;
  std::map<std::uint64_t, Clock> collectives_;
  std::uint64_t num_collectives_ = 0;
  std::vector<std::deque<std::pair<std::uint64_t, SiteId>>> recent_;
};

}  // namespace phalanx::devices::races
