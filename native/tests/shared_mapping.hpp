// Ranks of one process on one and the same mapping of a segment.
//
// Every rank maps its segment for itself, at an address of its own, so the thread sanitizer would see no two ranks at the
// same memory and find nothing. Here they use one address. It needs members that are private, and reaches them by the one
// way the language leaves open: access is not checked in an explicit instantiation.
#pragma once

#include <sys/mman.h>

#include <memory>

#include "../core/endpoint.hpp"

namespace ranks {

template <class Key, typename Key::Pointer kMember>
struct Opened {
  friend typename Key::Pointer member(Key) { return kMember; }
};

struct SegmentData {
  using Pointer = std::byte* phalanx::Segment::*;
  friend Pointer member(SegmentData);
};
template struct Opened<SegmentData, &phalanx::Segment::data_>;

struct EndpointSegment {
  using Pointer = phalanx::Segment phalanx::Endpoint::*;
  friend Pointer member(EndpointSegment);
};
template struct Opened<EndpointSegment, &phalanx::Endpoint::segment_>;

// A second segment over the memory of the first, which must live longer. Disown it before it goes.
inline phalanx::Segment alias(const phalanx::Segment& segment) {
  phalanx::Segment second = phalanx::Segment::attach(segment.descriptor());
  munmap(second.data(), second.size());
  second.*member(SegmentData{}) = segment.data();
  return second;
}

inline void disown(phalanx::Segment& segment) { segment.*member(SegmentData{}) = nullptr; }

inline std::shared_ptr<phalanx::Endpoint> endpoint_on(const phalanx::Segment& segment, int rank) {
  auto endpoint = std::make_shared<phalanx::Endpoint>(alias(segment), rank, true);
  disown((*endpoint).*member(EndpointSegment{}));
  return endpoint;
}

}  // namespace ranks
