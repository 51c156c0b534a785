#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "essh/base/rng.h"

namespace essh::fuzz {

// Mutates byte strings at random, deterministically per seed. Besides blind damage it knows enough JSON to get past the
// parser: it edits numbers, inserts tokens, and copies, removes and swaps members.
class Mutator {
 public:
  // `tokens` are words of the format to insert.
  Mutator(std::uint64_t seed, std::vector<std::string> tokens) : rng_(seed), tokens_(std::move(tokens)) {}

  Rng& rng() { return rng_; }
  bool one_in(std::uint64_t n) { return rng_.below(n) == 0; }
  template <class List>
  const auto& pick(const List& list) {
    return list[rng_.below(std::size(list))];
  }

  // One to four changes, most often one. `other` is a second valid input to splice from.
  void mutate(std::string& image, std::string_view other) {
    do change(image, other);
    while (one_in(3));
    if (image.size() > kMaxBytes) image.resize(kMaxBytes);
  }

  // A number near the limits of the usual types, or any other.
  std::uint64_t number() {
    static constexpr std::uint64_t kEdges[] = {0,          1,          2,          7,          8,         9,
                                               127,        255,        256,        65535,      65536,     0x7fffffff,
                                               0x80000000, 0xffffffff, 1ull << 32, 1ull << 53, INT64_MAX, 1ull << 63,
                                               UINT64_MAX, 100000000,  100000001};
    return one_in(4) ? rng_.next64() >> rng_.below(64) : pick(kEdges);
  }

  void mutate_json(std::string& text, std::string_view other) {
    switch (rng_.below(6)) {
      case 0:
        edit_number(text);
        break;
      case 1:
        insert_token(text);
        break;
      case 2:
        copy_member(text, true);
        break;
      case 3:
        copy_member(text, false);
        break;
      case 4:
        remove_member(text);
        break;
      default:
        mutate(text, other);
        break;
    }
  }

  void edit_number(std::string& text) {
    const auto digit = [](char c) { return c >= '0' && c <= '9'; };
    const std::size_t start = position(text);
    const auto begin = static_cast<std::size_t>(std::find_if(text.begin() + start, text.end(), digit) - text.begin());
    if (begin == text.size()) return;
    const auto end = static_cast<std::size_t>(std::find_if_not(text.begin() + begin, text.end(), digit) - text.begin());
    static constexpr std::string_view kOdd[] = {"-1",
                                                "-4294967295",
                                                "-9223372036854775807",
                                                "1.5",
                                                "1e3",
                                                "1e999",
                                                "-0",
                                                "18446744073709551616",
                                                "",
                                                "null",
                                                "\"1\"",
                                                "[1]",
                                                "00"};
    text.replace(begin, end - begin, one_in(4) ? std::string(pick(kOdd)) : std::to_string(number()));
  }

  void insert_token(std::string& text) {
    if (tokens_.empty()) return;
    const std::size_t at = position(text);
    const std::size_t replaced = one_in(2) ? 0 : std::min<std::size_t>(rng_.below(12), text.size() - at);
    text.replace(at, replaced, pick(tokens_));
  }

 private:
  static constexpr std::size_t kMaxBytes = 1 << 16;

  std::size_t position(std::string_view text) { return rng_.below(text.size() + 1); }
  std::pair<std::size_t, std::size_t> range(std::string_view text) {
    const std::size_t begin = position(text);
    return {begin, std::min<std::size_t>(rng_.below(64), text.size() - begin)};
  }

  void change(std::string& image, std::string_view other) {
    const std::size_t at = position(image);
    switch (rng_.below(9)) {
      case 0:
        if (at < image.size()) image[at] = static_cast<char>(image[at] ^ (1 << rng_.below(8)));
        break;
      case 1:
        if (at < image.size()) image[at] = static_cast<char>(rng_.next());
        break;
      case 2:
        image.resize(at);
        break;
      case 3:
        image.append(1 + rng_.below(32), static_cast<char>(rng_.next()));
        break;
      case 4: {  // splice: a range of the other image replaces a range of this one
        const auto [begin, length] = range(image);
        const auto [from, taken] = range(other);
        image.replace(begin, length, other.substr(from, taken));
        break;
      }
      case 5: {  // repeats a range of the image elsewhere
        const auto [from, taken] = range(image);
        image.insert(at, std::string(image, from, taken));
        break;
      }
      case 6: {
        const auto [begin, length] = range(image);
        image.erase(begin, length);
        break;
      }
      case 7:
        edit_number(image);
        break;
      default:
        insert_token(image);
        break;
    }
  }

  // The member "key": value around or after a random position, without the comma; empty if there is none.
  std::pair<std::size_t, std::size_t> member(std::string_view text) {
    const std::size_t colon = text.find("\":", position(text));
    if (colon == std::string_view::npos || colon == 0) return {0, 0};
    const std::size_t begin = text.rfind('"', colon - 1);
    if (begin == std::string_view::npos) return {0, 0};
    int depth = 0;
    bool in_string = false;
    std::size_t end = colon + 2;
    for (; end < text.size(); ++end) {
      const char c = text[end];
      if (c == '"') in_string = !in_string;
      if (in_string) continue;
      if ((c == ',' || c == '}' || c == ']') && depth == 0) break;
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
    }
    return {begin, end - begin};
  }

  void copy_member(std::string& text, bool rename) {
    const auto [begin, length] = member(text);
    if (length == 0) return;
    std::string copy(text, begin, length);
    if (rename) copy.insert(1, 1, static_cast<char>('a' + rng_.below(26)));
    text.insert(begin, copy + ",");
  }

  void remove_member(std::string& text) {
    const auto [begin, length] = member(text);
    const bool comma = begin + length < text.size() && text[begin + length] == ',';
    text.erase(begin, length + (comma ? 1 : 0));
  }

  Rng rng_;
  std::vector<std::string> tokens_;
};

}  // namespace essh::fuzz
