// The collectives, one file each. All run on the calling thread and block until done or until trouble.
//
// Pointers are to contiguous memory. Sizes are bytes; every rank's list has one entry per rank.
#pragma once

#include <cstddef>

#include "../endpoint.hpp"
#include "../symmetric.hpp"

namespace phalanx {

void barrier(Endpoint& self, const Call& call);
void broadcast(Endpoint& self, const Call& call, std::byte* data, std::size_t bytes);
void all_reduce(Endpoint& self, const Call& call, std::byte* data, const SymmetricPlace& place);
// The data of ranks other than the root stays as it was.
void reduce_to_root(Endpoint& self, const Call& call, std::byte* data);
void all_gather(Endpoint& self, const Call& call, const std::byte* input, std::byte* const* outputs,
                const std::size_t* bytes);
// `outputs` is read on the root only.
void gather(Endpoint& self, const Call& call, const std::byte* input, std::byte* const* outputs, std::size_t bytes);
// `inputs` is read on the root only.
void scatter(Endpoint& self, const Call& call, const std::byte* const* inputs, std::byte* output, std::size_t bytes);
void reduce_scatter(Endpoint& self, const Call& call, const std::byte* const* inputs, std::byte* output,
                    const std::size_t* bytes);
void all_to_all(Endpoint& self, const Call& call, const std::byte* const* inputs, const std::size_t* input_bytes,
                std::byte* const* outputs, const std::size_t* output_bytes);

}  // namespace phalanx
