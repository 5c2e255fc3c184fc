// The vocabulary of a call: element types, reductions, operations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace phalanx {

enum class DType : std::uint8_t {
  kBool, kInt8, kUInt8, kInt16, kUInt16, kInt32, kUInt32, kInt64, kUInt64,
  kFloat16, kBFloat16, kFloat32, kFloat64, kComplex64, kComplex128,
  kFloat8E4M3, kFloat8E5M2, kFloat8E4M3Z, kFloat8E5M2Z,  // Z: one zero, no infinity ("fnuz")
  kFloat8E8M0,                                           // powers of two: compared, never added
  // Moved, never reduced.
  kFloat4x2, kComplex32, kOpaque1, kOpaque2, kOpaque4, kOpaque8, kOpaque16,
  kCount
};

enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor, kPremulSum, kCount };

enum class Operation : std::uint8_t {
  kNone, kAllReduce, kReduce, kBroadcast, kAllGather, kGather, kScatter, kReduceScatter,
  kAllToAll, kBarrier, kSend, kRecv,
  kRefused,  // the caller's arguments were bad; peers in the same operation must learn of it
  kCount
};

constexpr std::size_t item_bytes(DType t) noexcept {
  switch (t) {
    case DType::kBool: case DType::kInt8: case DType::kUInt8: case DType::kOpaque1:
    case DType::kFloat8E4M3: case DType::kFloat8E5M2: case DType::kFloat8E4M3Z: case DType::kFloat8E5M2Z:
    case DType::kFloat8E8M0: case DType::kFloat4x2: return 1;
    case DType::kInt16: case DType::kUInt16: case DType::kFloat16: case DType::kBFloat16:
    case DType::kOpaque2: return 2;
    case DType::kInt32: case DType::kUInt32: case DType::kFloat32: case DType::kOpaque4:
    case DType::kComplex32: return 4;
    case DType::kComplex128: case DType::kOpaque16: return 16;
    default: return 8;
  }
}

constexpr bool is_complex(DType t) noexcept { return t == DType::kComplex64 || t == DType::kComplex128; }

constexpr bool is_floating(DType t) noexcept {
  return (t >= DType::kFloat16 && t <= DType::kFloat64) || (t >= DType::kFloat8E4M3 && t <= DType::kFloat8E5M2Z);
}

constexpr bool is_opaque(DType t) noexcept { return t >= DType::kFloat4x2; }

// Whether `op` has a meaning for elements of type `t`.
constexpr bool is_reducible(DType t, ReduceOp op) noexcept {
  if (is_opaque(t)) return false;
  if (t == DType::kFloat8E8M0) return op == ReduceOp::kMin || op == ReduceOp::kMax;
  switch (op) {
    case ReduceOp::kSum: return true;
    case ReduceOp::kAvg: case ReduceOp::kPremulSum: return is_floating(t) || is_complex(t);
    case ReduceOp::kProduct: case ReduceOp::kMin: case ReduceOp::kMax: return !is_complex(t);
    case ReduceOp::kBand: case ReduceOp::kBor: case ReduceOp::kBxor: return !is_floating(t) && !is_complex(t);
    default: return false;
  }
}

}  // namespace phalanx
