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
  return reinterpret_cast<Lanes<float>>(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits)));
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

// How a word of sizeof(T) bytes widens to the elements that it stores.
template <class T, Format format>
struct Words;
template <>
struct Words<float, Format::F32> {
  using Word = std::uint32_t;
  static void widen(Lanes<Word> words, Lanes<float>* to) { to[0] = reinterpret_cast<Lanes<float>>(words); }
};
template <>
struct Words<double, Format::F64> {
  using Word = std::uint64_t;
  static void widen(Lanes<Word> words, Lanes<double>* to) { to[0] = reinterpret_cast<Lanes<double>>(words); }
};
template <>
struct Words<float, Format::BF16> {
  using Word = std::uint32_t;
  static void widen(Lanes<Word> words, Lanes<float>* to) {
    to[0] = reinterpret_cast<Lanes<float>>(words << 16);
    to[1] = reinterpret_cast<Lanes<float>>(words & 0xffff0000u);
  }
};
template <>
struct Words<float, Format::F16> {
  using Word = std::uint32_t;
  static void widen(Lanes<Word> words, Lanes<float>* to) {
    to[0] = from_half(words);
    to[1] = from_half(words >> 16);
  }
};

}  // namespace detail

// Columns of a weight in registers: the rows, one per lane, are transposed and widened on the way in.
template <class T, Format format>
struct WeightColumns {
  using Word = typename detail::Words<T, format>::Word;
  static constexpr Index kBytes = traits(format).block_bytes;
  static constexpr Index kSpan = 16 / kBytes;  // elements of a row that are read at a time
  using Columns = Lanes<T>[kSpan];

  // columns[k] = element k of kLanes<T> rows; `stride` in bytes.
  static inline void load(const std::byte* rows, Index stride, Columns& columns) {
    constexpr Index kPieceRows = 16 / static_cast<Index>(sizeof(Word)), kPerWord = kSpan / kPieceRows;
    Lanes<Word> words[kPieceRows];
    for (Index r = 0; r < kPieceRows; ++r) words[r] = load_pieces<Word>(rows + r * stride, kPieceRows * stride);
    transpose(words);
    for (Index i = 0; i < kPieceRows; ++i) detail::Words<T, format>::widen(words[i], columns + i * kPerWord);
  }
  // The same where fewer rows than lanes, or fewer elements than kSpan, are left; the missing ones read as zero.
  static void load_part(const std::byte* rows, Index stride, Index row_count, Index count, Columns& columns) {
    std::byte padded[kLanes<T> * 16] = {};
    for (Index r = 0; r < row_count; ++r)
      std::memcpy(padded + r * 16, rows + r * stride, static_cast<std::size_t>(count * kBytes));
    load(padded, 16, columns);
  }

 private:
  // Square blocks of 16 bytes' width.
  static inline void transpose(Lanes<std::uint32_t> (&words)[4]) {
    using Pairs = Lanes<std::uint64_t>;
    const auto pairs = [](auto a) { return reinterpret_cast<Pairs>(a); };
    const Pairs a = pairs(unpack<false, std::uint32_t>(words[0], words[1]));
    const Pairs b = pairs(unpack<false, std::uint32_t>(words[2], words[3]));
    const Pairs c = pairs(unpack<true, std::uint32_t>(words[0], words[1]));
    const Pairs d = pairs(unpack<true, std::uint32_t>(words[2], words[3]));
    words[0] = reinterpret_cast<Lanes<std::uint32_t>>(unpack<false, std::uint64_t>(a, b));
    words[1] = reinterpret_cast<Lanes<std::uint32_t>>(unpack<true, std::uint64_t>(a, b));
    words[2] = reinterpret_cast<Lanes<std::uint32_t>>(unpack<false, std::uint64_t>(c, d));
    words[3] = reinterpret_cast<Lanes<std::uint32_t>>(unpack<true, std::uint64_t>(c, d));
  }
  static inline void transpose(Lanes<std::uint64_t> (&words)[2]) {
    const auto low = unpack<false, std::uint64_t>(words[0], words[1]);
    words[1] = unpack<true, std::uint64_t>(words[0], words[1]);
    words[0] = low;
  }
};

// Calls body(std::integral_constant<Format, f>()) for the format, of those whose words are as wide as T.
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
