#pragma once
#include <string>
#include <string_view>

#include "essh/text/bpe_tokenizer.h"

// Vocabularies that are plain lists without pattern and special tokens; both follow from the size.
namespace essh {

// tiktoken's form, one "base64 rank" per line: 128,000 ranks are Llama-3's (tokenizer.model), 50,256 are GPT-2's.
BpeSpec read_rank_file(std::string_view text, const std::string& place);
// GPT-2's vocab.bpe (merges.txt): merge i makes the token 256 + i, <|endoftext|> is last.
BpeSpec read_vocab_bpe(std::string_view text, const std::string& place);

// The steps before BPE that go with a pattern's name, "gpt2" or "llama3"; any other name is a Usage error.
std::vector<PreTokenizerStep> pattern_steps(std::string_view name);

}  // namespace essh
