// The collectives over hosts, as ../collectives/collectives.hpp has them for one host. Numbers of ranks are those of the whole group.
#pragma once

#include <cstddef>

#include "../collectives/collectives.hpp"
#include "host_group.hpp"

namespace phalanx {

void barrier(HostGroup& self, const Call& call);
void broadcast(HostGroup& self, const Call& call, std::byte* data, std::size_t bytes);
// Symmetric memory does not exist over hosts: the place is not used.
void all_reduce(HostGroup& self, const Call& call, std::byte* data, const SymmetricPlace& place);
void reduce_to_root(HostGroup& self, const Call& call, std::byte* data);
void all_gather(HostGroup& self, const Call& call, const std::byte* input, std::byte* const* outputs, const std::size_t* bytes);
void gather(HostGroup& self, const Call& call, const std::byte* input, std::byte* const* outputs, std::size_t bytes);
void scatter(HostGroup& self, const Call& call, const std::byte* const* inputs, std::byte* output, std::size_t bytes);
void reduce_scatter(HostGroup& self, const Call& call, const std::byte* const* inputs, std::byte* output, const std::size_t* bytes);
void all_to_all(HostGroup& self, const Call& call, const std::byte* const* inputs, const std::size_t* input_bytes,
                std::byte* const* outputs, const std::size_t* output_bytes);

}  // namespace phalanx
