#include "kernels.hpp"

#include <cstdint>
#include <cstring>

#include "float_environment.hpp"
#include "kernels_isa.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace phalanx {
namespace {

using Reduce = void (*)(const Reduction&, std::byte*, const std::byte* const*, int, std::size_t);

Reduce choose_reduce() {
#if defined(PHALANX_X86_VARIANTS)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    return avx512::reduce;
  if (__builtin_cpu_supports("avx2")) return avx2::reduce;
#endif
  return baseline::reduce;
}

}  // namespace

void reduce(const Reduction& how, std::byte* destination, const std::byte* const* sources, int num_sources,
            std::size_t count) {
  static const Reduce chosen = choose_reduce();
  const PlainFloats plain;
  chosen(how, destination, sources, num_sources, count);
}

void copy_streaming(std::byte* destination, const std::byte* source, std::size_t bytes) {
#if defined(__x86_64__)
  const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(destination) % 64) % 64;
  if (bytes < head + 64) {
    std::memcpy(destination, source, bytes);
    return;
  }
  std::memcpy(destination, source, head);
  std::size_t at = head;
  for (; at + 64 <= bytes; at += 64) {
    const auto* from = reinterpret_cast<const __m128i*>(source + at);
    auto* to = reinterpret_cast<__m128i*>(destination + at);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1), c = _mm_loadu_si128(from + 2),
                  d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  // Streaming stores are weakly ordered: they must be visible before any flag that follows.
  _mm_sfence();
  std::memcpy(destination + at, source + at, bytes - at);
#else
  std::memcpy(destination, source, bytes);
#endif
}

}  // namespace phalanx
