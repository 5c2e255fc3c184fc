// The kernels of collectives on a GPU: one launch reads the input of every rank and writes the output of every rank.
//
// Compiled at run time: this file with reduce.cu for one type and one reduction (PHX_REDUCE, PHX_TYPE, PHX_OP), with copy.cu
// (PHX_COPY), or with strided.cu (PHX_STRIDED).
// No header is included: NVRTC has none, and any C++ compiler can stand in for it (tests/cuda_simulator does).
// Results are those of core/kernels_isa.cpp bit for bit, but for a NaN that arithmetic made: its bits are the device's.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr int kThreads = 512, kBlocksPerMultiprocessor = 2;

// Whoever runs the kernels without a GPU has its own way to begin one.
#ifndef PHX_KERNEL
#define PHX_KERNEL(name, Parameters) \
  extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor) \
      name(const __grid_constant__ Parameters arguments)
#endif
#define PHX_INLINE __device__ __forceinline__
#define PHX_UNROLL _Pragma("unroll")

// Laid out as in cuda/kernel_arguments.hpp. An entry: the range [first, last) in elements (reduce) or bytes (copy), the sources,
// the targets (null: none), and for a premultiplied sum the bits of a double per source.
struct KernelArguments {
  u64 num_sources, num_targets, stride;
  u64 spill;  // where the words are when they do not fit below
  double divisor;
  u64 words[480];
};

struct alignas(16) Vector { u32 lanes[4]; };

// Every byte is used once: leave the first-level cache alone. Volatile, or loads could sink to their first use. Never
// .nc, which is for memory that nobody writes: targets may be sources.
template <class Piece>
PHX_INLINE Piece load(u64 address) { return *reinterpret_cast<const Piece*>(address); }

template <>
PHX_INLINE Vector load<Vector>(u64 address) {
#ifdef __CUDA_ARCH__
  Vector v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.lanes[0]), "=r"(v.lanes[1]), "=r"(v.lanes[2]), "=r"(v.lanes[3]) : "l"(address));
  return v;
#else
  return *reinterpret_cast<const Vector*>(address);
#endif
}

template <class Piece>
PHX_INLINE void store(u64 address, Piece piece) { *reinterpret_cast<Piece*>(address) = piece; }

PHX_INLINE void store(u64 address, Vector v) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
               :: "l"(address), "r"(v.lanes[0]), "r"(v.lanes[1]), "r"(v.lanes[2]), "r"(v.lanes[3]) : "memory");
#else
  *reinterpret_cast<Vector*>(address) = v;
#endif
}

// A row of blocks works on one entry.
struct Entry {
  u64 first, count, num_sources, num_targets;
  const u64 *sources, *targets;

  PHX_INLINE explicit Entry(const KernelArguments& arguments) : num_sources(arguments.num_sources), num_targets(arguments.num_targets) {
    const u64* words = (arguments.spill ? reinterpret_cast<const u64*>(arguments.spill) : arguments.words) + blockIdx.y * arguments.stride;
    first = words[0];
    count = words[1] > first ? words[1] - first : 0;
    sources = words + 2;
    targets = sources + num_sources;
  }
  PHX_INLINE double factor(u64 source) const { return __longlong_as_double(targets[num_targets + source]); }

  // The bits below 16 in which two addresses differ.
  PHX_INLINE u64 misalignment() const {
    u64 differences = 0;
#pragma unroll 4
    for (u64 s = 1; s < num_sources; ++s) differences |= sources[s] ^ sources[0];
#pragma unroll 4
    for (u64 t = 0; t < num_targets; ++t)
      if (targets[t]) differences |= targets[t] ^ sources[0];
    return differences & 15;
  }
};

// Pieces that lie one after the other, but for a gap that other pieces fill.
template <class Type>
struct Run {
  typedef Type Piece;
  u64 count, begin, before_gap, gap;  // begin and gap in bytes
  PHX_INLINE u64 offset(u64 i) const { return begin + i * sizeof(Piece) + (i < before_gap ? 0 : gap); }
};

// Cuts a range of `bytes` at `begin` bytes behind `address` into aligned wide pieces and the small ones around them.
template <class Wide, class Small>
struct Cut {
  Run<Wide> wide;
  Run<Small> small;

  PHX_INLINE Cut(u64 address, u64 begin, u64 bytes, bool may_be_wide) {
    u64 head = (sizeof(Wide) - (address + begin) % sizeof(Wide)) % sizeof(Wide);
    if (!may_be_wide || head > bytes) head = bytes;
    const u64 middle = (bytes - head) / sizeof(Wide) * sizeof(Wide);
    wide = {middle / sizeof(Wide), begin + head, ~0ull, 0};
    small = {(bytes - middle) / sizeof(Small), begin, head / sizeof(Small), middle};
  }
};

// Calls body(offsets, is_there) with the offsets of `kUnroll` pieces until the grid's row has had them all. An offset
// behind the end is that of the last piece: it can be loaded, and is not to be stored.
template <int kUnroll, class Pieces, class Body>
PHX_INLINE void for_each_piece(const Pieces& pieces, const Body& body) {
  const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
  for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < pieces.count; i += kUnroll * step) {
    u64 offsets[kUnroll];
    bool is_there[kUnroll];
    PHX_UNROLL for (int u = 0; u < kUnroll; ++u) {
      const u64 at = i + u * step;
      is_there[u] = at < pieces.count;
      offsets[u] = pieces.offset(is_there[u] ? at : pieces.count - 1);
    }
    body(offsets, is_there);
  }
}

template <int kUnroll, class Piece>
PHX_INLINE void store_all(u64 target, const Piece (&pieces)[kUnroll], const u64 (&offsets)[kUnroll],
                          const bool (&is_there)[kUnroll]) {
  PHX_UNROLL for (int u = 0; u < kUnroll; ++u)
    if (is_there[u]) store(target + offsets[u], pieces[u]);
}

template <int kUnroll, class Piece>
PHX_INLINE void store_to_targets(const Entry& entry, const Piece (&pieces)[kUnroll], const u64 (&offsets)[kUnroll],
                                 const bool (&is_there)[kUnroll]) {
#pragma unroll 1
  for (u64 t = 0; t < entry.num_targets; ++t)
    if (const u64 target = entry.targets[t]) store_all(target, pieces, offsets, is_there);
}
