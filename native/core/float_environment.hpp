// How this thread's processor rounds, and what it does with numbers near zero.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace phalanx {

// While it lives, this thread rounds to nearest and keeps denormal numbers, as it did when it started. A program may have
// changed that on one rank only (torch.set_flush_denormal), but all ranks must get the same bits.
class PlainFloats {
 public:
  PlainFloats() noexcept : before_(read()) {
    if ((before_ & kChanged) != 0) [[unlikely]]
      write(before_ & ~kChanged);
  }
  ~PlainFloats() {
    if ((before_ & kChanged) != 0) [[unlikely]]
      write(before_);
  }
  PlainFloats(const PlainFloats&) = delete;

 private:
#if defined(__x86_64__)
  using Word = std::uint32_t;
  static constexpr Word kChanged = 0x8000 | 0x0040 | 0x6000;  // flush to zero, denormals are zero, rounding
  static Word read() noexcept { return _mm_getcsr(); }
  static void write(Word word) noexcept { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = std::uint64_t;
  static constexpr Word kChanged = 1u << 24 | 1u << 19 | 3u << 22;  // FZ, FZ16, rounding
  static Word read() noexcept {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) noexcept { asm volatile("msr fpcr, %0" ::"r"(word)); }
#else
  using Word = std::uint32_t;
  static constexpr Word kChanged = 0;
  static Word read() noexcept { return 0; }
  static void write(Word) noexcept {}
#endif

  const Word before_;
};

}  // namespace phalanx
