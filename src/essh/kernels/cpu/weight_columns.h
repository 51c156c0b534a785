#pragma once
#include <algorithm>
#include <cstring>

#include "essh/kernels/cpu/vectors.h"
#include "essh/tensor/weight.h"
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__F16C__)
#include <immintrin.h>
#endif

namespace essh::cpu {
namespace detail {

// The lower 16 bits of each word as IEEE half precision.
inline Lanes<float> from_half(Lanes<std::uint32_t> words) {
#if defined(__AVX512F__)
  const __m512i bits = reinterpret_cast<__m512i>(words);
  // Masked forms with all lanes set: GCC 12 warns inside the unmasked intrinsics.
  constexpr __mmask16 kAll = 0xffff;
  return reinterpret_cast<Lanes<float>>(_mm512_maskz_cvtph_ps(kAll, _mm512_maskz_cvtepi32_epi16(kAll, bits)));
#elif defined(__AVX2__) && defined(__F16C__)
  const __m256i bits = reinterpret_cast<__m256i>(words & 0xffffu);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  return reinterpret_cast<Lanes<float>>(_mm256_cvtph_ps(packed));
#elif defined(__aarch64__)
  const uint32x4_t bits = reinterpret_cast<uint32x4_t>(words);
  return reinterpret_cast<Lanes<float>>(vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(bits))));
#else
  const auto magnitude = (words & 0x7fffu) << 13, sign = (words & 0x8000u) << 16;
  const auto scaled = reinterpret_cast<Lanes<std::uint32_t>>(reinterpret_cast<Lanes<float>>(magnitude) * 0x1p112f);
  const auto is_special = reinterpret_cast<Lanes<std::uint32_t>>((words & 0x7c00u) == 0x7c00u);
  return reinterpret_cast<Lanes<float>>(scaled | sign | (is_special & 0x7f800000u));
#endif
}

// Widens a word of sizeof(T) bytes to the elements stored in it, lowest bits first.
template <class T, Format format>
struct Words;
template <>
struct Words<float, Format::F32> {
  using Word = std::uint32_t;
  template <int element>
  static Lanes<float> widen(Lanes<Word> words) {
    return reinterpret_cast<Lanes<float>>(words);
  }
};
template <>
struct Words<double, Format::F64> {
  using Word = std::uint64_t;
  template <int element>
  static Lanes<double> widen(Lanes<Word> words) {
    return reinterpret_cast<Lanes<double>>(words);
  }
};
template <>
struct Words<float, Format::BF16> {
  using Word = std::uint32_t;
  template <int element>
  static Lanes<float> widen(Lanes<Word> words) {
    return reinterpret_cast<Lanes<float>>(element == 0 ? words << 16 : words & 0xffff0000u);
  }
};
template <>
struct Words<float, Format::F16> {
  using Word = std::uint32_t;
  template <int element>
  static Lanes<float> widen(Lanes<Word> words) {
    return from_half(element == 0 ? words : words >> 16);
  }
};

}  // namespace detail

// Columns of a weight in registers: rows, one per lane, are transposed and widened on load.
template <class T, Format format>
class WeightColumns {
  using Word = typename detail::Words<T, format>::Word;
  static constexpr int kPieceRows = 16 / static_cast<int>(sizeof(Word));

 public:
  static constexpr Index kBytes = traits(format).block_bytes;
  static constexpr int kSpan = 16 / static_cast<int>(kBytes);  // elements of a row read at a time

  // Calls body(k, column) for constant k = 0 .. kSpan - 1, with element k of kLanes<T> rows; `stride` is in bytes.
  template <class Body>
  static inline __attribute__((always_inline)) void visit(const std::byte* rows, Index stride, const Body& body) {
    constexpr int kPerWord = kSpan / kPieceRows;
    Lanes<Word> words[kPieceRows];
    unrolled<kPieceRows>([&](auto r) __attribute__((always_inline)) {
      words[r()] = load_pieces<Word>(rows + r() * stride, kPieceRows * stride);
    });
    transpose_pieces(words);
    unrolled<kSpan>([&](auto k) __attribute__((always_inline)) {
      body(k, detail::Words<T, format>::template widen<k() % kPerWord>(words[k() / kPerWord]));
    });
  }
  // The same for a remainder of fewer rows than lanes or fewer than kSpan elements (k < `count`); missing rows are
  // zero.
  template <class Body>
  static inline __attribute__((always_inline)) void visit_part(const std::byte* rows, Index stride, Index row_count,
                                                               Index count, const Body& body) {
    std::byte padded[kLanes<T> * 16] = {};
    for (Index r = 0; r < row_count; ++r)
      std::memcpy(padded + r * 16, rows + r * stride, static_cast<std::size_t>(count * kBytes));
    visit(
        padded, 16, [&](auto k, Lanes<T> column) __attribute__((always_inline)) {
          if (k() < count) body(k, column);
        });
  }
};

// Calls body(std::integral_constant<Format, f>()); f is one of the formats whose words are as wide as T.
template <class T, class Body>
void with_format(Format format, const Body& body) {
  const auto call = [&]<Format f>() { body(std::integral_constant<Format, f>()); };
  if constexpr (std::is_same_v<T, double>) {
    if (format == Format::F64) return call.template operator()<Format::F64>();
  } else {
    switch (format) {
      case Format::F32:
        return call.template operator()<Format::F32>();
      case Format::BF16:
        return call.template operator()<Format::BF16>();
      case Format::F16:
        return call.template operator()<Format::F16>();
      default:
        break;
    }
  }
  fail(ErrorKind::Unsupported, "a product of {} with weights in {} does not run on the CPU",
       traits(format_of<T>()).name, traits(format).name);
}

}  // namespace essh::cpu
