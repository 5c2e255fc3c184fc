// float8 types as float32, and back: the same bits as in core/kernels_isa.cpp.
#ifdef PHX_REDUCE

enum class Beyond { kSaturated, kInfinity, kUnsignedNan };  // what becomes of a sum beyond the largest number
template <int kMantissa, int kBias, Beyond kBeyond>
struct Float8 { u8 bits; };
typedef Float8<3, 7, Beyond::kSaturated> E4M3;
typedef Float8<2, 15, Beyond::kInfinity> E5M2;
typedef Float8<3, 8, Beyond::kUnsignedNan> E4M3Z;
typedef Float8<2, 16, Beyond::kUnsignedNan> E5M2Z;
struct E8M0 { u8 bits; };  // an exponent alone

PHX_INLINE float power_of_two(int exponent) { return __uint_as_float(static_cast<u32>(127 + exponent) << 23); }

template <int kMantissa, int kBias, Beyond kBeyond>
PHX_INLINE float widen(Float8<kMantissa, kBias, kBeyond> f) {
  const u32 magnitude = f.bits & 0x7fu, sign = static_cast<u32>(f.bits & 0x80u) << 24;
  const u32 normal = (magnitude << (23 - kMantissa)) + (static_cast<u32>(127 - kBias) << 23);
  const u32 tiny = __float_as_uint(static_cast<float>(magnitude) * power_of_two(1 - kBias - kMantissa));
  const u32 finite = magnitude < (1u << kMantissa) ? tiny : normal;
  if constexpr (kBeyond == Beyond::kUnsignedNan) return __uint_as_float(f.bits == 0x80u ? 0xffc00000u : sign | finite);
  else if constexpr (kBeyond == Beyond::kSaturated) return __uint_as_float(sign | (magnitude == 0x7fu ? 0x7fc00000u : finite));
  else return __uint_as_float(sign | (magnitude >= 0x7cu ? 0x7f800000u | (magnitude & 3u) << 21 : finite));
}

template <int kMantissa, int kBias, Beyond kBeyond>
PHX_INLINE void narrow(float f, Float8<kMantissa, kBias, kBeyond>& to) {
  constexpr int kDropped = 23 - kMantissa;
  const u32 u = __float_as_uint(f), magnitude = u & 0x7fffffffu, sign = (u >> 24) & 0x80u;
  const u32 shifted = magnitude - (static_cast<u32>(127 - kBias) << 23);
  const u32 normal = (shifted + ((1u << (kDropped - 1)) - 1u) + ((shifted >> kDropped) & 1u)) >> kDropped;
  // The unit of this power of two is the least number: the addition rounds for us.
  const float unit = power_of_two(24 - kBias - kMantissa);
  const u32 tiny = __float_as_uint(__uint_as_float(magnitude) + unit) - __float_as_uint(unit);
  const u32 rounded = magnitude < (static_cast<u32>(128 - kBias) << 23) ? tiny : normal;
  if constexpr (kBeyond == Beyond::kUnsignedNan)
    to.bits = static_cast<u8>(rounded > 0x7fu ? 0x80u : rounded == 0 ? 0u : sign | rounded);
  else if constexpr (kBeyond == Beyond::kSaturated)
    to.bits = static_cast<u8>(sign | (magnitude > 0x7f800000u ? 0x7fu : rounded > 0x7eu ? 0x7eu : rounded));
  else
    to.bits = static_cast<u8>(sign | (magnitude > 0x7f800000u ? 0x7fu : rounded > 0x7cu ? 0x7cu : rounded));
}

// Only chosen among, so what is narrowed is a power of two or NaN.
PHX_INLINE float widen(E8M0 f) {
  const u32 finite = f.bits == 0 ? 0x00400000u : static_cast<u32>(f.bits) << 23;
  return __uint_as_float(f.bits == 0xffu ? 0x7fc00000u : finite);
}
PHX_INLINE void narrow(float f, E8M0& to) { to.bits = static_cast<u8>(__float_as_uint(f) >> 23); }

#endif  // PHX_REDUCE
