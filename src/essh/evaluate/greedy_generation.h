#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "essh/decode/engine.h"
#include "essh/text/tokenizer.h"

namespace essh {

struct GenerationOptions {
  Index max_tokens = 48;
  std::vector<std::string> stop = {"\n"};
};

// Greedy continuations of prompts: up to the first stop string, the end-of-text token or `max_tokens`. All prompts
// advance together, one token each in a pass.
std::vector<std::string> generate_greedily(Engine& engine, const Tier& tier,
                                           std::span<const std::vector<TokenId>> prompts, const Tokenizer& tokenizer,
                                           const GenerationOptions& options);

// Whether one of the answers occurs in the text; the case of ASCII letters is ignored.
bool contains_answer(std::string_view text, std::span<const std::string> answers);

}  // namespace essh
