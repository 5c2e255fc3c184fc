// The reductions of every instruction set this processor has, against the same sums done one element at a time.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <random>
#include <type_traits>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "../core/kernels.hpp"
#include "../core/kernels_isa.hpp"
#include "../core/shared_writer.hpp"
#include "check.hpp"

using namespace phalanx;

namespace {

using Reduce = void (*)(const Reduction&, std::byte*, const std::byte* const*, int, std::size_t);

struct Variant {
  const char* name;
  Reduce reduce;
};

std::vector<Variant> variants() {
  std::vector<Variant> all = {{"chosen", reduce}, {"baseline", baseline::reduce}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) all.push_back({"avx2", avx2::reduce});
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    all.push_back({"avx512", avx512::reduce});
#endif
  return all;
}

// Half types as the compiler knows them, or by arithmetic in double: nothing shared with the kernels.
struct Half {
  using Wide = float;
  std::uint16_t bits;
  float wide() const {
    const double sign = bits & 0x8000 ? -1 : 1;
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) return fraction != 0 ? NAN : float(sign * INFINITY);
    return float(sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25)));
  }
  static Half from(float value) {
    const _Float16 half = static_cast<_Float16>(value);
    Half result;
    std::memcpy(&result.bits, &half, 2);
    return result;
  }
};

struct BrainHalf {
  using Wide = float;
  std::uint16_t bits;
  float wide() const {
    const std::uint32_t word = std::uint32_t(bits) << 16;
    float result;
    std::memcpy(&result, &word, 4);
    return result;
  }
  static BrainHalf from(float value) {
    if (std::isnan(value)) return {0x7fc0};
    std::uint32_t word;
    std::memcpy(&word, &value, 4);
    const auto down = std::uint16_t(word >> 16);
    const std::uint32_t rest = word & 0xffff;
    const bool is_up = rest > 0x8000 || (rest == 0x8000 && (down & 1) != 0);
    return {std::uint16_t(down + is_up)};
  }
};

template <class T>
struct Plain {
  using Wide = T;
  T value;
  T wide() const { return value; }
  static Plain from(T v) { return {v}; }
};

template <class W>
W combine(ReduceOp op, W a, W b) {
  if constexpr (std::is_integral_v<W>) {
    const auto x = std::uint64_t(a), y = std::uint64_t(b);
    switch (op) {
      case ReduceOp::kProduct: return W(x * y);
      case ReduceOp::kBand: return W(x & y);
      case ReduceOp::kBor: return W(x | y);
      case ReduceOp::kBxor: return W(x ^ y);
      case ReduceOp::kMin: return std::min(a, b);
      case ReduceOp::kMax: return std::max(a, b);
      default: return W(x + y);
    }
  } else {
    switch (op) {
      case ReduceOp::kProduct: return a * b;
      case ReduceOp::kMin: return std::isnan(a) || a < b ? a : b;
      case ReduceOp::kMax: return std::isnan(a) || a > b ? a : b;
      default: return a + b;
    }
  }
}

template <class T>
T expected(const Reduction& how, const std::vector<std::vector<T>>& sources, std::size_t i) {
  using W = typename T::Wide;
  const auto value = [&](std::size_t p) {
    // volatile: a product and a sum must not become one operation
    volatile W product = how.factors != nullptr ? W(sources[p][i].wide() * W(how.factors[p])) : sources[p][i].wide();
    return W(product);
  };
  W sum = value(0);
  for (std::size_t p = 1; p < sources.size(); ++p) sum = combine<W>(how.op, sum, value(p));
  if (how.op == ReduceOp::kAvg) sum = W(sum / W(how.num_ranks));
  return T::from(sum);
}

template <class T>
bool is_same(const T& a, const T& b) {
  if constexpr (!std::is_integral_v<typename T::Wide>) {
    if (std::isnan(b.wide())) return std::isnan(a.wide());
  }
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

// Random bits hold NaNs, infinities and denormals; half of the numbers are of ordinary size.
template <class T>
void fill(std::vector<T>& data, std::mt19937_64& random) {
  for (T& item : data) {
    const std::uint64_t bits = random();
    std::memcpy(&item, &bits, sizeof(T));
    using W = typename T::Wide;
    if (!std::is_integral_v<W> && (random() & 1) != 0) item = T::from(W(double(std::int64_t(bits) >> 40) / 1024));
  }
}

template <class T>
void compare(const Variant& variant, const Reduction& how, std::size_t num_sources, std::size_t count, int alias,
             std::mt19937_64& random, std::size_t parts = 1) {
  std::vector<std::vector<T>> sources(num_sources, std::vector<T>(count * parts));
  for (auto& source : sources) fill(source, random);
  const auto original = sources;
  std::vector<T> separate(count * parts);
  std::vector<const std::byte*> pointers;
  for (auto& source : sources) pointers.push_back(reinterpret_cast<const std::byte*>(source.data()));
  std::vector<T>& out = alias < 0 ? separate : sources[std::size_t(alias)];
  variant.reduce(how, reinterpret_cast<std::byte*>(out.data()), pointers.data(), int(num_sources), count);
  for (std::size_t i = 0; i < count * parts; ++i) {
    if (is_same(out[i], expected(how, original, i))) continue;
    throw check::Failure(std::string(variant.name) + " dtype " + std::to_string(int(how.dtype)) + " op " +
                         std::to_string(int(how.op)) + " of " + std::to_string(num_sources) + " sources differs at " +
                         std::to_string(i) + " of " + std::to_string(count));
  }
}

template <class T>
void compare_all(DType dtype, std::size_t parts = 1) {
  std::mt19937_64 random(7 + std::uint64_t(dtype));
  const double factors[] = {0.5, -3.0, 1.0 / 3, 2.0, 7.25, 0.1, -1.0, 1e-3, 5.0};
  for (const Variant& variant : variants()) {
    for (int op = 0; op < int(ReduceOp::kCount); ++op) {
      if (!is_reducible(dtype, ReduceOp(op))) continue;
      for (const std::size_t num_sources : {1u, 2u, 3u, 4u, 5u, 9u}) {
        Reduction how{dtype, ReduceOp(op), int(num_sources), ReduceOp(op) == ReduceOp::kPremulSum ? factors : nullptr};
        for (const std::size_t count : {0u, 1u, 33u, 512u, 1027u}) {
          compare<T>(variant, how, num_sources, count, -1, random, parts);
          compare<T>(variant, how, num_sources, count, 0, random, parts);
          compare<T>(variant, how, num_sources, count, int(num_sources) - 1, random, parts);
        }
      }
    }
  }
}

}  // namespace

TEST(integers_of_every_size) {
  compare_all<Plain<std::int8_t>>(DType::kInt8);
  compare_all<Plain<std::uint8_t>>(DType::kUInt8);
  compare_all<Plain<std::int16_t>>(DType::kInt16);
  compare_all<Plain<std::uint16_t>>(DType::kUInt16);
  compare_all<Plain<std::int32_t>>(DType::kInt32);
  compare_all<Plain<std::uint32_t>>(DType::kUInt32);
  compare_all<Plain<std::int64_t>>(DType::kInt64);
  compare_all<Plain<std::uint64_t>>(DType::kUInt64);
}

TEST(floats_with_nan_and_denormals) {
  compare_all<Plain<float>>(DType::kFloat32);
  compare_all<Plain<double>>(DType::kFloat64);
}

TEST(halves_are_reduced_in_float_and_rounded_once) {
  compare_all<Half>(DType::kFloat16);
  compare_all<BrainHalf>(DType::kBFloat16);
}

TEST(complex_numbers_by_their_parts) {
  compare_all<Plain<float>>(DType::kComplex64, 2);
  compare_all<Plain<double>>(DType::kComplex128, 2);
}

TEST(truth_values) {
  const std::uint8_t a[] = {0, 0, 1, 1}, b[] = {0, 1, 0, 1}, all[] = {0, 0, 0, 1}, any[] = {0, 1, 1, 1}, odd[] = {0, 1, 1, 0};
  const std::byte* sources[] = {reinterpret_cast<const std::byte*>(a), reinterpret_cast<const std::byte*>(b)};
  for (const Variant& variant : variants()) {
    for (int op = 0; op < int(ReduceOp::kCount); ++op) {
      if (!is_reducible(DType::kBool, ReduceOp(op))) continue;
      std::uint8_t out[4];
      variant.reduce({DType::kBool, ReduceOp(op), 2, nullptr}, reinterpret_cast<std::byte*>(out), sources, 2, 4);
      const bool is_all = ReduceOp(op) == ReduceOp::kProduct || ReduceOp(op) == ReduceOp::kMin || ReduceOp(op) == ReduceOp::kBand;
      CHECK(std::memcmp(out, is_all ? all : ReduceOp(op) == ReduceOp::kBxor ? odd : any, 4) == 0);
    }
  }
}

// One source: what is widened and narrowed again must come back, for all of the 65536 halves.
TEST(every_half_survives) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<std::uint16_t> in(65536), out(65536);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = std::uint16_t(i);
    const auto* source = reinterpret_cast<const std::byte*>(in.data());
    const std::uint16_t infinity = dtype == DType::kFloat16 ? 0x7c00 : 0x7f80;
    for (const Variant& variant : variants()) {
      variant.reduce({dtype, ReduceOp::kSum, 1, nullptr}, reinterpret_cast<std::byte*>(out.data()), &source, 1, in.size());
      for (std::size_t i = 0; i < in.size(); ++i) {
        const bool is_nan = (in[i] & 0x7fff) > infinity;
        CHECK(is_nan ? (out[i] & 0x7fff) > infinity : out[i] == in[i]);
      }
    }
  }
}

// Products of all halves with a factor fall everywhere between two halves, and on the middle.
TEST(halves_round_to_nearest_even) {
  for (const double factor : {1.0 / 3, 0.75, 1.0009765625, 1.00048828125, 1e-4, 1e-7, 3.0, 0.5, 0.0001220703125}) {
    std::vector<Half> half(65536), half_out(65536);
    std::vector<BrainHalf> brain(65536), brain_out(65536);
    for (std::size_t i = 0; i < half.size(); ++i) half[i].bits = brain[i].bits = std::uint16_t(i);
    const auto* half_source = reinterpret_cast<const std::byte*>(half.data());
    const auto* brain_source = reinterpret_cast<const std::byte*>(brain.data());
    for (const Variant& variant : variants()) {
      variant.reduce({DType::kFloat16, ReduceOp::kPremulSum, 1, &factor}, reinterpret_cast<std::byte*>(half_out.data()),
                     &half_source, 1, half.size());
      variant.reduce({DType::kBFloat16, ReduceOp::kPremulSum, 1, &factor}, reinterpret_cast<std::byte*>(brain_out.data()),
                     &brain_source, 1, brain.size());
      for (std::size_t i = 0; i < half.size(); ++i) {
        CHECK(is_same(half_out[i], Half::from(half[i].wide() * float(factor))));
        CHECK(is_same(brain_out[i], BrainHalf::from(brain[i].wide() * float(factor))));
      }
    }
  }
}

// float8 by its definition, in double: the value of each of the 256 patterns, and the nearest of them to a sum.
struct Float8Kind {
  DType dtype;
  int mantissa, bias;
  bool is_unsigned_zero;  // 0x80 is NaN, and there is no infinity
};

double value_of(const Float8Kind& kind, int bits) {
  const int magnitude = bits & 0x7f, exponent = magnitude >> kind.mantissa, fraction = magnitude & ((1 << kind.mantissa) - 1);
  if (kind.is_unsigned_zero ? bits == 0x80 : kind.mantissa == 3 ? magnitude == 0x7f : magnitude > 0x7c) return NAN;
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  if (!kind.is_unsigned_zero && kind.mantissa == 2 && magnitude == 0x7c) return sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - kind.bias - kind.mantissa);
  return sign * std::ldexp((1 << kind.mantissa) + fraction, exponent - kind.bias - kind.mantissa);
}

TEST(every_pair_of_float8s_adds_up_to_the_nearest_one_on_every_instruction_set) {
  for (const Float8Kind& kind : {Float8Kind{DType::kFloat8E4M3, 3, 7, false}, {DType::kFloat8E5M2, 2, 15, false},
                                 {DType::kFloat8E4M3Z, 3, 8, true}, {DType::kFloat8E5M2Z, 2, 16, true}}) {
    std::vector<std::uint8_t> a(65536), b(65536), out(65536), of_baseline(65536);
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = std::uint8_t(i >> 8);
      b[i] = std::uint8_t(i);
    }
    const std::byte* sources[] = {reinterpret_cast<const std::byte*>(a.data()), reinterpret_cast<const std::byte*>(b.data())};
    const Reduction how{kind.dtype, ReduceOp::kSum, 2, nullptr};
    baseline::reduce(how, reinterpret_cast<std::byte*>(of_baseline.data()), sources, 2, out.size());
    const int largest = kind.is_unsigned_zero ? 0x7f : kind.mantissa == 3 ? 0x7e : 0x7b;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double sum = value_of(kind, a[i]) + value_of(kind, b[i]), got = value_of(kind, of_baseline[i]);
      CHECK(std::isnan(sum) ? std::isnan(got) : std::isnan(got) || !std::signbit(sum * got) || sum * got == 0);
      if (std::isnan(got) || std::isinf(got) || std::fabs(sum) > value_of(kind, largest)) continue;
      const double below = of_baseline[i] % 128 == 0 ? -std::fabs(value_of(kind, 1)) : value_of(kind, of_baseline[i] % 128 - 1);
      const double step = std::fabs(got) - below;  // the distance to the neighbour nearer to zero
      CHECK(std::fabs(sum - got) <= step);
    }
    for (const Variant& variant : variants()) {
      variant.reduce(how, reinterpret_cast<std::byte*>(out.data()), sources, 2, out.size());
      CHECK(out == of_baseline);
    }
  }
}

TEST(streaming_copies_write_what_they_should_and_no_more) {
  std::vector<std::byte> from(4096), to(4096);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = std::byte(i * 7 + 1);
  for (std::size_t offset = 0; offset < 70; offset += 3) {
    for (const std::size_t bytes : {0u, 1u, 63u, 64u, 127u, 128u, 1000u, 3000u}) {
      std::fill(to.begin(), to.end(), std::byte{0});
      copy_streaming(to.data() + offset, from.data() + offset / 2, bytes);
      CHECK(std::memcmp(to.data() + offset, from.data() + offset / 2, bytes) == 0);
      for (std::size_t i = 0; i < to.size(); ++i) CHECK((i >= offset && i < offset + bytes) || to[i] == std::byte{0});
    }
  }
}

// Whichever way it chooses, and however often it changes its mind.
TEST(a_shared_writer_writes_what_it_was_given) {
  constexpr std::size_t kRoom = 64 * 1024;
  std::vector<std::byte> source(kRoom + 64), target(kRoom + 64);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = std::byte(i * 131 + 7);
  for (const auto& [is_crowded, place] : {std::pair{false, Place::kHot}, {false, Place::kTurning}, {true, Place::kTurning}}) {
    phalanx::SharedWriter writer(is_crowded, place);
    std::size_t seed = 1;
    for (int turn = 0; turn < 3000; ++turn) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      const std::size_t bytes = (seed >> 33) % kRoom >> (seed >> 20) % 12, from = (seed >> 8) % 64, to = (seed >> 14) % 64;
      std::fill(target.begin(), target.end(), std::byte{0});
      writer.write(target.data() + to, source.data() + from, bytes);
      CHECK(std::equal(target.begin() + long(to), target.begin() + long(to + bytes), source.begin() + long(from)));
      CHECK(to == 0 || target[to - 1] == std::byte{0});
      CHECK(target[to + bytes] == std::byte{0});
    }
  }
}

TEST(the_same_bits_whatever_the_thread_does_with_denormals_and_rounding) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  std::vector<float> a(100, 3 * tiny), b(100, 4 * tiny), c(100, 1.0f + 0x1p-23f), d(100, 0x1p-24f);
  const auto sum = [](std::vector<float>& one, std::vector<float>& other) {
    std::vector<float> result(one.size());
    const std::byte* sources[] = {reinterpret_cast<std::byte*>(one.data()), reinterpret_cast<std::byte*>(other.data())};
    reduce({DType::kFloat32, ReduceOp::kSum, 2, nullptr}, reinterpret_cast<std::byte*>(result.data()), sources, 2, result.size());
    return result;
  };
  const std::vector<float> small = sum(a, b), rounded = sum(c, d);
  CHECK(small[0] == 7 * tiny);
  std::fesetround(FE_DOWNWARD);
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);
  const unsigned asked = _mm_getcsr();
#endif
  const std::vector<float> small_again = sum(a, b), rounded_again = sum(c, d);
#if defined(__x86_64__)
  CHECK_EQUAL(_mm_getcsr() & ~0x3fu, asked & ~0x3fu);  // without the flags of what has happened
  _mm_setcsr(asked & ~0x8040u);
#endif
  CHECK_EQUAL(std::fegetround(), FE_DOWNWARD);
  std::fesetround(FE_TONEAREST);
  CHECK(small_again == small && rounded_again == rounded);
}
