// Reductions: every source is read once, in the order of ranks, and the result goes to every target.
#ifdef PHX_REDUCE

struct Half { u16 bits; };
struct BrainHalf { u16 bits; };

// In the order of core/types.hpp; complex numbers come as their parts.
template <int index, class First, class... Rest>
struct Nth { typedef typename Nth<index - 1, Rest...>::type type; };
template <class First, class... Rest>
struct Nth<0, First, Rest...> { typedef First type; };
typedef Nth<PHX_TYPE, u8, signed char, u8, short, u16, int, u32, i64, u64, Half, BrainHalf, float, double,
            float, double, E4M3, E5M2, E4M3Z, E5M2Z, E8M0> ElementAt;
typedef ElementAt::type Element;

enum Op { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor, kPremulSum };

// Truth values: sum and max mean "any", product and min mean "all".
constexpr Op meaning(bool of_truth, Op op) {
  if (!of_truth) return op;
  return op == kSum || op == kMax ? kBor : op == kProduct || op == kMin ? kBand : op;
}
constexpr Op kOp = meaning(PHX_TYPE == 0, static_cast<Op>(PHX_OP));
constexpr bool kSelects = kOp == kMin || kOp == kMax;
constexpr bool kIsBitwise = kOp == kBand || kOp == kBor || kOp == kBxor;
constexpr int kInFlight = kOp == kAvg ? 4 : 8;  // loads under way before the first is used; a division takes registers

PHX_INLINE float widen(BrainHalf h) { return __uint_as_float(static_cast<u32>(h.bits) << 16); }

PHX_INLINE float widen(Half h) {
#ifdef __CUDA_ARCH__
  float f;  // exact, subnormal numbers too; a NaN may change its bits, which neither arithmetic nor a comparison sees
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
  return f;
#else
  const u32 magnitude = h.bits & 0x7fffu, sign = static_cast<u32>(h.bits & 0x8000u) << 16;
  const u32 finite = __float_as_uint(__uint_as_float(magnitude << 13) * 0x1p112f);
  return __uint_as_float(sign | (magnitude >= 0x7c00u ? 0x7f800000u | (magnitude << 13) : finite));
#endif
}

PHX_INLINE void narrow(float f, BrainHalf& to) {
  const u32 u = __float_as_uint(f);
  const u32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  to.bits = static_cast<u16>(f != f ? (u >> 16) | 0x40u : rounded);
}

PHX_INLINE void narrow(float f, Half& to) {
  const u32 u = __float_as_uint(f), sign = (u >> 16) & 0x8000u;
#ifdef __CUDA_ARCH__
  u16 rounded;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(f));
  to.bits = static_cast<u16>(f != f ? sign | 0x7e00u : rounded);
#else
  const u32 magnitude = u & 0x7fffffffu, shifted = magnitude - (112u << 23);
  const u32 normal = (shifted + 0xfffu + ((shifted >> 13) & 1u)) >> 13;
  // Below 2^-14 the unit of 0.5f is that of a half: the addition rounds for us.
  const u32 tiny = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - __float_as_uint(0.5f);
  const u32 large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const u32 result = magnitude >= 0x477ff000u ? large : magnitude < 0x38800000u ? tiny : normal;
  to.bits = static_cast<u16>(sign | result);
#endif
}

template <class T>
PHX_INLINE T widen(T value) { return value; }
template <class T>
PHX_INLINE void narrow(T value, T& to) { to = value; }
// A chosen half is stored as it was, but a NaN as narrowing it would have made it.
PHX_INLINE void narrow(Half h, Half& to) {
  to.bits = (h.bits & 0x7fffu) > 0x7c00u ? static_cast<u16>((h.bits & 0x8000u) | 0x7e00u) : h.bits;
}
PHX_INLINE void narrow(BrainHalf h, BrainHalf& to) {
  to.bits = (h.bits & 0x7fffu) > 0x7f80u ? static_cast<u16>(h.bits | 0x40u) : h.bits;
}

template <bool, class A, class>
struct Either { typedef A type; };
template <class A, class B>
struct Either<false, A, B> { typedef B type; };

// Halves and float8s are added in float32 and rounded once; the least of halves is one of them.
template <class T> struct Accumulator { typedef T type; };
template <> struct Accumulator<Half> { typedef Either<kSelects, Half, float>::type type; };
template <> struct Accumulator<BrainHalf> { typedef Either<kSelects, BrainHalf, float>::type type; };
template <int kMantissa, int kBias, Beyond kBeyond>
struct Accumulator<Float8<kMantissa, kBias, kBeyond>> { typedef float type; };
template <> struct Accumulator<E8M0> { typedef float type; };

PHX_INLINE void begin(Half h, Half& to) { to = h; }
PHX_INLINE void begin(BrainHalf h, BrainHalf& to) { to = h; }
template <class T, class Acc>
PHX_INLINE void begin(T value, Acc& to) { to = widen(value); }

// Signed overflow wraps, and u16 would multiply as int.
template <class T> struct Wrapping { typedef T type; };
template <> struct Wrapping<signed char> { typedef u32 type; };
template <> struct Wrapping<short> { typedef u32 type; };
template <> struct Wrapping<u16> { typedef u32 type; };
template <> struct Wrapping<int> { typedef u32 type; };
template <> struct Wrapping<i64> { typedef u64 type; };

template <class T>
PHX_INLINE T combine(T a, T b) {
  if constexpr (kSelects) {
    // A NaN on any rank is the result on all.
    const auto x = widen(a), y = widen(b);
    return ((kOp == kMin ? x < y : x > y) || x != x) ? a : b;
  } else if constexpr (kOp == kBand) {
    return static_cast<T>(a & b);
  } else if constexpr (kOp == kBor) {
    return static_cast<T>(a | b);
  } else if constexpr (kOp == kBxor) {
    return static_cast<T>(a ^ b);
  } else {
    typedef typename Wrapping<T>::type U;
    if constexpr (kOp == kProduct) return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
}

// To divide by a power of two is to multiply by its inverse, bit for bit and several times as fast.
template <class Acc>
PHX_INLINE Acc divided(Acc sum, double divisor) {
  const bool is_power_of_two = (__double_as_longlong(divisor) & 0xfffffffffffffll) == 0;
  return is_power_of_two ? sum * static_cast<Acc>(1 / divisor) : sum / static_cast<Acc>(divisor);
}

// The values of the sources at one piece, reduced in their order.
template <class Piece>
struct Partial {
  // Bits have no type: wide pieces take 32 of them at a time.
  typedef typename Either<kIsBitwise && sizeof(Piece) == 16, u32, Element>::type Item;
  typedef typename Accumulator<Item>::type Acc;
  static constexpr int kItems = sizeof(Piece) / sizeof(Item);
  union Items { Piece piece; Item items[kItems]; };
  Acc acc[kItems];

  PHX_INLINE void take(bool is_first, Piece piece, double factor) {
    const Items in = {piece};
    PHX_UNROLL for (int i = 0; i < kItems; ++i) {
      Acc value;
      begin(in.items[i], value);
      if constexpr (kOp == kPremulSum) value *= static_cast<Acc>(factor);
      acc[i] = is_first ? value : combine(acc[i], value);
    }
  }

  PHX_INLINE Piece result(double divisor) const {
    Items out;
    PHX_UNROLL for (int i = 0; i < kItems; ++i) {
      if constexpr (kOp == kAvg) narrow(divided(acc[i], divisor), out.items[i]);
      else narrow(acc[i], out.items[i]);
    }
    return out.piece;
  }
};

template <int kSources, int kUnroll, class Piece>
PHX_INLINE void load_sources(Piece (&pieces)[kSources][kUnroll], const u64* sources, const u64 (&offsets)[kUnroll]) {
  PHX_UNROLL for (int s = 0; s < kSources; ++s)
    PHX_UNROLL for (int u = 0; u < kUnroll; ++u) pieces[s][u] = load<Piece>(sources[s] + offsets[u]);
}

template <int kSources, class Pieces>
PHX_INLINE void reduce_known(const Entry& entry, const Pieces& pieces, double divisor) {
  typedef typename Pieces::Piece Piece;
  constexpr int kUnroll = kSources < kInFlight ? kInFlight / kSources : 1;
  u64 sources[kSources];
  double factors[kSources];
  PHX_UNROLL for (int s = 0; s < kSources; ++s) {
    sources[s] = entry.sources[s];
    factors[s] = kOp == kPremulSum ? entry.factor(s) : 1;
  }
  for_each_piece<kUnroll>(pieces, [&](const u64(&offsets)[kUnroll], const bool(&is_there)[kUnroll]) {
    Piece loaded[kSources][kUnroll], results[kUnroll];
    load_sources(loaded, sources, offsets);
    PHX_UNROLL for (int u = 0; u < kUnroll; ++u) {
      Partial<Piece> partial;
      PHX_UNROLL for (int s = 0; s < kSources; ++s) partial.take(s == 0, loaded[s][u], factors[s]);
      results[u] = partial.result(divisor);
    }
    store_to_targets(entry, results, offsets, is_there);
  });
}

// The next sources of a number that only the arguments knows.
template <int kSources, int kUnroll, class Piece>
PHX_INLINE void take_next(Partial<Piece> (&partials)[kUnroll], const Entry& entry, u64 from,
                          const u64 (&offsets)[kUnroll]) {
  Piece loaded[kSources][kUnroll];
  load_sources(loaded, entry.sources + from, offsets);
  PHX_UNROLL for (int s = 0; s < kSources; ++s) {
    const double factor = kOp == kPremulSum ? entry.factor(from + s) : 1;
    PHX_UNROLL for (int u = 0; u < kUnroll; ++u) partials[u].take(false, loaded[s][u], factor);
  }
}

template <class Pieces>
PHX_INLINE void reduce_unknown(const Entry& entry, const Pieces& pieces, double divisor) {
  typedef typename Pieces::Piece Piece;
  constexpr int kAtOnce = 4, kUnroll = Partial<Piece>::kItems > 4 ? 1 : kInFlight / kAtOnce;  // or registers run out
  for_each_piece<kUnroll>(pieces, [&](const u64(&offsets)[kUnroll], const bool(&is_there)[kUnroll]) {
    Partial<Piece> partials[kUnroll];
    const double factor = kOp == kPremulSum ? entry.factor(0) : 1;
    PHX_UNROLL for (int u = 0; u < kUnroll; ++u)
      partials[u].take(true, load<Piece>(entry.sources[0] + offsets[u]), factor);
    u64 s = 1;
    for (; s + kAtOnce <= entry.num_sources; s += kAtOnce) take_next<kAtOnce>(partials, entry, s, offsets);
    for (; s < entry.num_sources; ++s) take_next<1>(partials, entry, s, offsets);
    Piece results[kUnroll];
    PHX_UNROLL for (int u = 0; u < kUnroll; ++u) results[u] = partials[u].result(divisor);
    store_to_targets(entry, results, offsets, is_there);
  });
}

template <int kSources, class Pieces>
PHX_INLINE void reduce_pieces(const Entry& entry, const Pieces& pieces, double divisor) {
  if constexpr (kSources) reduce_known<kSources>(entry, pieces, divisor);
  else reduce_unknown(entry, pieces, divisor);
}

// kSources is 0 when only the arguments knows how many there are.
template <int kSources>
PHX_INLINE void reduce(const KernelArguments& arguments) {
  const Entry entry(arguments);
  const Cut<Vector, Element> cut(entry.sources[0], entry.first * sizeof(Element), entry.count * sizeof(Element),
                                 entry.misalignment() == 0);
  reduce_pieces<kSources>(entry, cut.wide, arguments.divisor);
  reduce_pieces<kSources>(entry, cut.small, arguments.divisor);
}

PHX_KERNEL(reduce_2, KernelArguments) { reduce<2>(arguments); }
PHX_KERNEL(reduce_4, KernelArguments) { reduce<4>(arguments); }
PHX_KERNEL(reduce_8, KernelArguments) { reduce<8>(arguments); }
PHX_KERNEL(reduce_any, KernelArguments) { reduce<0>(arguments); }

#endif  // PHX_REDUCE
