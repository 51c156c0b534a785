#pragma once
#include <cstddef>
#include <string_view>

// Hand-written splitters for the patterns of GPT-2 and Llama-3: linear time, no recursion, any bytes. Bytes that are
// not UTF-8 count as characters that are neither letter, number nor space.
namespace essh {

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The end of the match that starts at text[begin], begin < text.size(). Matches of these patterns are contiguous.
std::size_t gpt2_word_end(std::string_view text, std::size_t begin);
std::size_t llama3_word_end(std::string_view text, std::size_t begin);
// The end of the longest sequence of \p{N}, or of other characters, that starts at text[begin].
std::size_t number_run_end(std::string_view text, std::size_t begin);

}  // namespace essh
