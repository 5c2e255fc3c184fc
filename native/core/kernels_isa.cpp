// Compiled once per instruction set (PHALANX_ISA). Uses no inline function of the standard library: the linker could
// pick the copy made for a newer processor.
#include <stdint.h>

#include "kernels_isa.hpp"

namespace phalanx::PHALANX_ISA {
namespace {

constexpr size_t kBlock = 512;  // elements: the accumulator stays in the first-level cache

struct Half { uint16_t bits; };
struct BrainHalf { uint16_t bits; };

inline uint32_t bits_of(float f) { return __builtin_bit_cast(uint32_t, f); }
inline float float_of(uint32_t u) { return __builtin_bit_cast(float, u); }

// Widening shifts the exponent field into place and corrects its bias with one exact multiplication.
inline float widen(Half h) {
  const uint32_t magnitude = h.bits & 0x7fffu, sign = static_cast<uint32_t>(h.bits & 0x8000u) << 16;
  const uint32_t finite = bits_of(float_of(magnitude << 13) * 0x1p112f);
  const uint32_t special = 0x7f800000u | (magnitude << 13);
  return float_of(sign | (magnitude >= 0x7c00u ? special : finite));
}

inline Half narrow(Half, float f) {
  const uint32_t u = bits_of(f), magnitude = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
  const uint32_t shifted = magnitude - (112u << 23);
  const uint32_t normal = (shifted + 0xfffu + ((shifted >> 13) & 1u)) >> 13;
  // Below 2^-14, the last bit of 0.5f is worth as much as that of a half, so the addition rounds for us.
  const uint32_t tiny = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t result = magnitude >= 0x477ff000u ? large : magnitude < 0x38800000u ? tiny : normal;
  return Half{static_cast<uint16_t>(sign | result)};
}

inline float widen(BrainHalf h) { return float_of(static_cast<uint32_t>(h.bits) << 16); }

inline BrainHalf narrow(BrainHalf, float f) {
  const uint32_t u = bits_of(f);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t nan = (u >> 16) | 0x40u;
  return BrainHalf{static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

// float8 types: kMantissa bits after an exponent with the bias kBias.
enum class Beyond { kSaturated, kInfinity, kUnsignedNan };  // what becomes of a sum beyond the largest number
template <int kMantissa, int kBias, Beyond kBeyond>
struct Float8 { uint8_t bits; };
using E4M3 = Float8<3, 7, Beyond::kSaturated>;
using E5M2 = Float8<2, 15, Beyond::kInfinity>;
using E4M3Z = Float8<3, 8, Beyond::kUnsignedNan>;
using E5M2Z = Float8<2, 16, Beyond::kUnsignedNan>;
struct E8M0 { uint8_t bits; };  // an exponent alone

constexpr float power_of_two(int exponent) { return __builtin_bit_cast(float, static_cast<uint32_t>(127 + exponent) << 23); }

template <int kMantissa, int kBias, Beyond kBeyond>
inline float widen(Float8<kMantissa, kBias, kBeyond> f) {
  const uint32_t magnitude = f.bits & 0x7fu, sign = static_cast<uint32_t>(f.bits & 0x80u) << 24;
  const uint32_t normal = (magnitude << (23 - kMantissa)) + (static_cast<uint32_t>(127 - kBias) << 23);
  const uint32_t tiny = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * power_of_two(1 - kBias - kMantissa));
  const uint32_t finite = magnitude < (1u << kMantissa) ? tiny : normal;
  if constexpr (kBeyond == Beyond::kUnsignedNan) return float_of(f.bits == 0x80u ? 0xffc00000u : sign | finite);
  if constexpr (kBeyond == Beyond::kSaturated) return float_of(sign | (magnitude == 0x7fu ? 0x7fc00000u : finite));
  const uint32_t special = 0x7f800000u | (magnitude & 3u) << 21;
  return float_of(sign | (magnitude >= 0x7cu ? special : finite));
}

template <int kMantissa, int kBias, Beyond kBeyond>
inline Float8<kMantissa, kBias, kBeyond> narrow(Float8<kMantissa, kBias, kBeyond>, float f) {
  constexpr int kDropped = 23 - kMantissa;
  const uint32_t u = bits_of(f), magnitude = u & 0x7fffffffu, sign = (u >> 24) & 0x80u;
  const uint32_t shifted = magnitude - (static_cast<uint32_t>(127 - kBias) << 23);
  const uint32_t normal = (shifted + ((1u << (kDropped - 1)) - 1u) + ((shifted >> kDropped) & 1u)) >> kDropped;
  // The last bit of this power of two is worth the smallest number of the type, so the addition rounds for us.
  constexpr float kUnit = power_of_two(24 - kBias - kMantissa);
  const uint32_t tiny = bits_of(float_of(magnitude) + kUnit) - bits_of(kUnit);
  const uint32_t rounded = magnitude < (static_cast<uint32_t>(128 - kBias) << 23) ? tiny : normal;
  uint32_t result;
  if constexpr (kBeyond == Beyond::kUnsignedNan)
    result = rounded > 0x7fu ? 0x80u : rounded == 0 ? 0u : sign | rounded;
  else if constexpr (kBeyond == Beyond::kSaturated)
    result = sign | (magnitude > 0x7f800000u ? 0x7fu : rounded > 0x7eu ? 0x7eu : rounded);
  else
    result = sign | (magnitude > 0x7f800000u ? 0x7fu : rounded > 0x7cu ? 0x7cu : rounded);
  return {static_cast<uint8_t>(result)};
}

// Reductions only choose one of these numbers, so the number to narrow is a power of two or NaN.
inline float widen(E8M0 f) {
  const uint32_t finite = f.bits == 0 ? 0x00400000u : static_cast<uint32_t>(f.bits) << 23;
  return float_of(f.bits == 0xffu ? 0x7fc00000u : finite);
}
inline E8M0 narrow(E8M0, float f) { return {static_cast<uint8_t>(bits_of(f) >> 23)}; }

template <class T>
inline T widen(T value) { return value; }
template <class T>
inline T narrow(T, T value) { return value; }

template <class T> struct Accumulator { using type = T; };
template <> struct Accumulator<Half> { using type = float; };
template <> struct Accumulator<BrainHalf> { using type = float; };
template <int kMantissa, int kBias, Beyond kBeyond>
struct Accumulator<Float8<kMantissa, kBias, kBeyond>> { using type = float; };
template <> struct Accumulator<E8M0> { using type = float; };

// Signed overflow wraps, as it does in torch.
template <class T> struct Unsigned { using type = T; };
template <> struct Unsigned<int8_t> { using type = uint8_t; };
template <> struct Unsigned<int16_t> { using type = uint32_t; };  // uint16_t would multiply as int
template <> struct Unsigned<uint16_t> { using type = uint32_t; };
template <> struct Unsigned<int32_t> { using type = uint32_t; };
template <> struct Unsigned<int64_t> { using type = uint64_t; };

struct Add {
  template <class T> static T apply(T a, T b) {
    using U = typename Unsigned<T>::type;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
};
struct Multiply {
  template <class T> static T apply(T a, T b) {
    using U = typename Unsigned<T>::type;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  }
};
// If any rank has a NaN, the result is NaN on all ranks.
struct Least { template <class T> static T apply(T a, T b) { return (a < b || a != a) ? a : b; } };
struct Greatest { template <class T> static T apply(T a, T b) { return (a > b || a != a) ? a : b; } };
struct And { template <class T> static T apply(T a, T b) { return static_cast<T>(a & b); } };
struct Or { template <class T> static T apply(T a, T b) { return static_cast<T>(a | b); } };
struct Xor { template <class T> static T apply(T a, T b) { return static_cast<T>(a ^ b); } };

template <class T>
using Acc = typename Accumulator<T>::type;

template <class T>
inline const T* source(const std::byte* const* sources, int p, size_t at) {
  return reinterpret_cast<const T*>(sources[p]) + at;
}

template <class T, class Op>
void combine(Acc<T>* __restrict acc, const std::byte* const* sources, int num_sources, size_t at, size_t n) {
  int p = 1;
  for (; p + 3 <= num_sources; p += 3) {
    const T *a = source<T>(sources, p, at), *b = source<T>(sources, p + 1, at), *c = source<T>(sources, p + 2, at);
    for (size_t i = 0; i < n; ++i)
      acc[i] = Op::apply(Op::apply(Op::apply(acc[i], widen(a[i])), widen(b[i])), widen(c[i]));
  }
  for (; p < num_sources; ++p) {
    const T* a = source<T>(sources, p, at);
    for (size_t i = 0; i < n; ++i) acc[i] = Op::apply(acc[i], widen(a[i]));
  }
}

// Not inlined: otherwise every call would set up the stack of all of them.
template <class T, class Op>
[[gnu::noinline]] void run(const Reduction& how, std::byte* destination, const std::byte* const* sources, int num_sources, size_t count) {
  const bool is_average = how.op == ReduceOp::kAvg;
  T* out = reinterpret_cast<T*>(destination);
  if (num_sources == 2 && !is_average) {
    const T *a = source<T>(sources, 0, 0), *b = source<T>(sources, 1, 0);
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) out[i] = narrow(T{}, Op::apply(widen(a[i]), widen(b[i])));
    return;
  }
  alignas(64) Acc<T> acc[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t n = count - at < kBlock ? count - at : kBlock;
    const T* first = source<T>(sources, 0, at);
    for (size_t i = 0; i < n; ++i) acc[i] = widen(first[i]);
    combine<T, Op>(acc, sources, num_sources, at, n);
    if (is_average) {
      const auto divisor = static_cast<Acc<T>>(how.num_ranks);
      for (size_t i = 0; i < n; ++i) acc[i] = static_cast<Acc<T>>(acc[i] / divisor);
    }
    for (size_t i = 0; i < n; ++i) out[at + i] = narrow(T{}, acc[i]);
  }
}

template <class T>
[[gnu::noinline]] void run_premul(const Reduction& how, std::byte* destination, const std::byte* const* sources, int num_sources,
                size_t count) {
  T* out = reinterpret_cast<T*>(destination);
  alignas(64) Acc<T> acc[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t n = count - at < kBlock ? count - at : kBlock;
    for (int p = 0; p < num_sources; ++p) {
      const T* a = source<T>(sources, p, at);
      const auto factor = static_cast<Acc<T>>(how.factors[p]);
      if (p == 0) {
        for (size_t i = 0; i < n; ++i) acc[i] = widen(a[i]) * factor;
      } else {
        for (size_t i = 0; i < n; ++i) acc[i] += widen(a[i]) * factor;
      }
    }
    for (size_t i = 0; i < n; ++i) out[at + i] = narrow(T{}, acc[i]);
  }
}

#define PHALANX_ARGUMENTS how, destination, sources, num_sources, count

template <class T>
void reduce_float(const Reduction& how, std::byte* destination, const std::byte* const* sources, int num_sources,
                  size_t count) {
  switch (how.op) {
    case ReduceOp::kProduct: return run<T, Multiply>(PHALANX_ARGUMENTS);
    case ReduceOp::kMin: return run<T, Least>(PHALANX_ARGUMENTS);
    case ReduceOp::kMax: return run<T, Greatest>(PHALANX_ARGUMENTS);
    case ReduceOp::kPremulSum: return run_premul<T>(PHALANX_ARGUMENTS);
    default: return run<T, Add>(PHALANX_ARGUMENTS);
  }
}

template <class T>
void reduce_integer(const Reduction& how, std::byte* destination, const std::byte* const* sources, int num_sources,
                    size_t count) {
  switch (how.op) {
    case ReduceOp::kProduct: return run<T, Multiply>(PHALANX_ARGUMENTS);
    case ReduceOp::kMin: return run<T, Least>(PHALANX_ARGUMENTS);
    case ReduceOp::kMax: return run<T, Greatest>(PHALANX_ARGUMENTS);
    case ReduceOp::kBand: return run<T, And>(PHALANX_ARGUMENTS);
    case ReduceOp::kBor: return run<T, Or>(PHALANX_ARGUMENTS);
    case ReduceOp::kBxor: return run<T, Xor>(PHALANX_ARGUMENTS);
    default: return run<T, Add>(PHALANX_ARGUMENTS);
  }
}

// Truth values: sum and max mean "any", product and min mean "all".
void reduce_bool(const Reduction& how, std::byte* destination, const std::byte* const* sources, int num_sources,
                 size_t count) {
  switch (how.op) {
    case ReduceOp::kSum: case ReduceOp::kMax: case ReduceOp::kBor: return run<uint8_t, Or>(PHALANX_ARGUMENTS);
    case ReduceOp::kBxor: return run<uint8_t, Xor>(PHALANX_ARGUMENTS);
    default: return run<uint8_t, And>(PHALANX_ARGUMENTS);
  }
}

}  // namespace

void reduce(const Reduction& how, std::byte* destination, const std::byte* const* sources, int num_sources,
            size_t count) {
  switch (how.dtype) {
    case DType::kBool: return reduce_bool(PHALANX_ARGUMENTS);
    case DType::kInt8: return reduce_integer<int8_t>(PHALANX_ARGUMENTS);
    case DType::kUInt8: return reduce_integer<uint8_t>(PHALANX_ARGUMENTS);
    case DType::kInt16: return reduce_integer<int16_t>(PHALANX_ARGUMENTS);
    case DType::kUInt16: return reduce_integer<uint16_t>(PHALANX_ARGUMENTS);
    case DType::kInt32: return reduce_integer<int32_t>(PHALANX_ARGUMENTS);
    case DType::kUInt32: return reduce_integer<uint32_t>(PHALANX_ARGUMENTS);
    case DType::kInt64: return reduce_integer<int64_t>(PHALANX_ARGUMENTS);
    case DType::kUInt64: return reduce_integer<uint64_t>(PHALANX_ARGUMENTS);
    case DType::kFloat16: return reduce_float<Half>(PHALANX_ARGUMENTS);
    case DType::kBFloat16: return reduce_float<BrainHalf>(PHALANX_ARGUMENTS);
    case DType::kFloat32: return reduce_float<float>(PHALANX_ARGUMENTS);
    case DType::kFloat64: return reduce_float<double>(PHALANX_ARGUMENTS);
    case DType::kFloat8E4M3: return reduce_float<E4M3>(PHALANX_ARGUMENTS);
    case DType::kFloat8E5M2: return reduce_float<E5M2>(PHALANX_ARGUMENTS);
    case DType::kFloat8E4M3Z: return reduce_float<E4M3Z>(PHALANX_ARGUMENTS);
    case DType::kFloat8E5M2Z: return reduce_float<E5M2Z>(PHALANX_ARGUMENTS);
    case DType::kFloat8E8M0:
      return how.op == ReduceOp::kMin ? run<E8M0, Least>(PHALANX_ARGUMENTS) : run<E8M0, Greatest>(PHALANX_ARGUMENTS);
    default: break;
  }
  Reduction parts = how;  // a complex sum is the sum of its parts
  parts.dtype = how.dtype == DType::kComplex64 ? DType::kFloat32 : DType::kFloat64;
  count *= 2;
  if (parts.dtype == DType::kFloat32) return reduce_float<float>(parts, destination, sources, num_sources, count);
  return reduce_float<double>(parts, destination, sources, num_sources, count);
}

}  // namespace phalanx::PHALANX_ISA
