#include "essh/evaluate/greedy_generation.h"

#include <algorithm>
#include <cmath>

namespace essh {
namespace {

struct Writing {
  Slot slot;
  std::vector<TokenId> tokens = {};
  std::string text = {};
  bool ended = false;
};

std::string lower(std::string_view text) {
  std::string out(text);
  for (auto& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

// Appends the next token.
void advance(Writing& w, std::span<const float> logits, const Tokenizer& tokenizer, TokenId eos,
             const GenerationOptions& options) {
  const auto best = std::ranges::max_element(logits);
  if (!std::isfinite(*best)) fail(ErrorKind::BadFile, "generation: the logits are not finite");
  const auto token = static_cast<TokenId>(best - logits.begin());
  w.ended = token == eos;
  if (w.ended) return;
  w.tokens.push_back(token);
  w.text = tokenizer.decode(w.tokens);
  auto end = std::string::npos;
  for (const auto& stop : options.stop) end = std::min(end, w.text.find(stop));
  w.ended = end != std::string::npos || std::ssize(w.tokens) >= options.max_tokens;
  w.text.resize(std::min(end, w.text.size()));
}

}  // namespace

std::vector<std::string> generate_greedily(Engine& engine, const Tier& tier,
                                           std::span<const std::vector<TokenId>> prompts, const Tokenizer& tokenizer,
                                           const GenerationOptions& options) {
  const auto eos = static_cast<TokenId>(engine.config().eos_token_id);
  std::vector<Writing> all;
  std::vector<Chunk> chunks;
  for (const auto& prompt : prompts) {
    all.push_back({.slot = engine.open(tier)});
    chunks.push_back({.slot = all.back().slot, .tokens = prompt});
  }
  std::vector<std::size_t> active(all.size());
  for (std::size_t i = 0; i < active.size(); ++i) active[i] = i;
  Outputs outputs;
  while (!chunks.empty()) {
    engine.run(chunks, outputs);
    for (std::size_t k = 0; k < active.size(); ++k) {
      const auto logits = outputs.entries[k].logits;
      advance(all[active[k]], {logits.row(logits.rows - 1), static_cast<std::size_t>(logits.cols)}, tokenizer, eos,
              options);
    }
    std::erase_if(active, [&](std::size_t i) { return all[i].ended; });
    chunks.clear();
    for (const auto i : active) chunks.push_back({.slot = all[i].slot, .tokens = std::span(&all[i].tokens.back(), 1)});
  }
  std::vector<std::string> texts;
  for (auto& one : all) {
    engine.close(one.slot);
    texts.push_back(std::move(one.text));
  }
  return texts;
}

bool contains_answer(std::string_view text, std::span<const std::string> answers) {
  const auto own = lower(text);
  return std::ranges::any_of(answers,
                             [&](const std::string& answer) { return own.find(lower(answer)) != std::string::npos; });
}

}  // namespace essh
