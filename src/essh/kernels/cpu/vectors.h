#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__FMA__)
#include <immintrin.h>
#endif

// Vector registers through the compiler's vector types: one source for AVX-512, AVX2, NEON and scalar machines.
namespace essh::cpu {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

// Whether there are 32 vector registers; 16 otherwise.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr bool kManyRegisters = true;
#else
inline constexpr bool kManyRegisters = false;
#endif

// Lanes of T in one vector.
template <class T>
inline constexpr std::int64_t kLanes = kVectorBytes / static_cast<int>(sizeof(T));

namespace detail {
template <class T, int Bytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(Bytes)));
  typedef T anywhere __attribute__((vector_size(Bytes), aligned(1), may_alias));
};
}  // namespace detail

template <class T, int Bytes = kVectorBytes>
using Lanes = typename detail::VectorOf<T, Bytes>::type;

// Unaligned load and store by one instruction. std::memcpy would not do: with -march=skylake-avx512, GCC 12 copies 64
// bytes by 256-bit moves, which forces the vector onto the stack.
template <class T, int Bytes = kVectorBytes>
inline Lanes<T, Bytes> load(const void* from) {
  return *static_cast<const typename detail::VectorOf<T, Bytes>::anywhere*>(from);
}
template <class T, int Bytes = kVectorBytes>
inline void store(void* to, Lanes<T, Bytes> value) {
  *static_cast<typename detail::VectorOf<T, Bytes>::anywhere*>(to) = value;
}

// a * b + c, rounded once if the processor has fused multiply-add. Explicit, because whether the compiler fuses depends
// on its optimisations.
template <class T, int Bytes = kVectorBytes>
inline __attribute__((always_inline)) Lanes<T, Bytes> multiply_add(T a, Lanes<T, Bytes> b, Lanes<T, Bytes> c) {
#if defined(__aarch64__)
  static_assert(Bytes == 16);
  if constexpr (sizeof(T) == 4)
    return vfmaq_n_f32(c, b, a);
  else
    return vfmaq_n_f64(c, b, a);
#elif defined(__FMA__)
  const Lanes<T, Bytes> wide = a - Lanes<T, Bytes>{};
#if defined(__AVX512F__)
  if constexpr (Bytes == 64 && sizeof(T) == 4) return _mm512_fmadd_ps(wide, b, c);
  if constexpr (Bytes == 64 && sizeof(T) == 8) return _mm512_fmadd_pd(wide, b, c);
#endif
  if constexpr (Bytes == 32 && sizeof(T) == 4) return _mm256_fmadd_ps(wide, b, c);
  if constexpr (Bytes == 32 && sizeof(T) == 8) return _mm256_fmadd_pd(wide, b, c);
  if constexpr (Bytes == 16 && sizeof(T) == 4) return _mm_fmadd_ps(wide, b, c);
  if constexpr (Bytes == 16 && sizeof(T) == 8) return _mm_fmadd_pd(wide, b, c);
#else
  return a * b + c;
#endif
}

// The same in the register of the sum. GCC lets an x86 product take any register: in an unrolled loop, sums then move
// about and some go to the stack.
template <class T, int Bytes = kVectorBytes>
inline __attribute__((always_inline)) Lanes<T, Bytes> multiply_add_in_place(T a, Lanes<T, Bytes> b,
                                                                            Lanes<T, Bytes> sum) {
#if defined(__FMA__)
  const Lanes<T, Bytes> wide = a - Lanes<T, Bytes>{};
  if constexpr (sizeof(T) == 4)
    asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(wide), "v"(b));
  else
    asm("vfmadd231pd %2, %1, %0" : "+v"(sum) : "v"(wide), "v"(b));
  return sum;
#else
  return multiply_add<T, Bytes>(a, b, sum);
#endif
}

// multiply_add() with element `lane` of a vector for a.
template <int lane, class T, int Bytes = kVectorBytes>
inline __attribute__((always_inline)) Lanes<T, Bytes> multiply_add_lane(Lanes<T, Bytes> a, Lanes<T, Bytes> b,
                                                                        Lanes<T, Bytes> c) {
#if defined(__aarch64__)
  static_assert(Bytes == 16);
  if constexpr (sizeof(T) == 4)
    return vfmaq_laneq_f32(c, b, a, lane);
  else
    return vfmaq_laneq_f64(c, b, a, lane);
#else
  return multiply_add<T, Bytes>(a[lane], b, c);
#endif
}

namespace detail {

template <class Body, int... I>
inline __attribute__((always_inline)) void repeat(const Body& body, std::integer_sequence<int, I...>) {
  (body(std::integral_constant<int, I>()), ...);
}

template <class V, std::size_t... Lane>
inline auto concatenate(V low, V high, std::index_sequence<Lane...>) {
  return __builtin_shufflevector(low, high, Lane...);
}

template <class V, std::size_t... Lane>
inline auto halves(V v, std::index_sequence<Lane...>) {
  return std::pair(__builtin_shufflevector(v, v, Lane...), __builtin_shufflevector(v, v, (Lane + sizeof...(Lane))...));
}

// Source index of element i of an unpack; `Width` elements are 16 bytes, within which unpack instructions interleave.
template <bool High, std::size_t Width, std::size_t Count>
constexpr std::size_t unpacked(std::size_t i) {
  return i / Width * Width + i % Width / 2 + (High ? Width / 2 : 0) + i % 2 * Count;
}
template <bool High, class T, class V, std::size_t... Lane>
inline V unpack(V a, V b, std::index_sequence<Lane...>) {
  constexpr std::size_t kWidth = 16 / sizeof(T);
  return __builtin_shufflevector(a, b, unpacked<High, kWidth, sizeof...(Lane)>(Lane)...);
}

}  // namespace detail

// body(i) for i = 0 .. Count - 1 with constant i: an array of vectors indexed only by such constants stays in
// registers.
template <int Count, class Body>
inline __attribute__((always_inline)) void unrolled(const Body& body) {
  detail::repeat(body, std::make_integer_sequence<int, Count>());
}

// A vector gathered from 16-byte pieces, piece i at from + i * step bytes.
template <class T, int Bytes = kVectorBytes>
inline Lanes<T, Bytes> load_pieces(const std::byte* from, std::int64_t step) {
#if defined(__AVX512F__)
  if constexpr (Bytes == 64) {
    // Inserted from memory; GCC 12 would load each piece and shuffle. Masked forms, see from_half().
    constexpr __mmask16 kAll = 0xffff;
    const auto at = [&](int i) { return reinterpret_cast<__m128i>(load<T, 16>(from + i * step)); };
    __m512i all = _mm512_zextsi128_si512(at(0));
    all = _mm512_maskz_inserti32x4(kAll, all, at(1), 1);
    all = _mm512_maskz_inserti32x4(kAll, all, at(2), 2);
    return reinterpret_cast<Lanes<T, Bytes>>(_mm512_maskz_inserti32x4(kAll, all, at(3), 3));
  }
#endif
  if constexpr (Bytes == 16) {
    return load<T, 16>(from);
  } else {
    constexpr int kHalf = Bytes / 2;
    return detail::concatenate(load_pieces<T, kHalf>(from, step), load_pieces<T, kHalf>(from + kHalf / 16 * step, step),
                               std::make_index_sequence<static_cast<std::size_t>(Bytes) / sizeof(T)>());
  }
}

// Interleaves the elements of the lower (or upper) halves of each 16 bytes of a and b.
template <bool High, class T>
inline Lanes<T> unpack(Lanes<T> a, Lanes<T> b) {
  return detail::unpack<High, T>(a, b, std::make_index_sequence<static_cast<std::size_t>(kLanes<T>)>());
}

// Transposes square blocks, each 16 bytes wide.
inline __attribute__((always_inline)) void transpose_pieces(Lanes<std::uint32_t> (&words)[4]) {
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
inline __attribute__((always_inline)) void transpose_pieces(Lanes<std::uint64_t> (&words)[2]) {
  const auto low = unpack<false, std::uint64_t>(words[0], words[1]);
  words[1] = unpack<true, std::uint64_t>(words[0], words[1]);
  words[0] = low;
}

}  // namespace essh::cpu
