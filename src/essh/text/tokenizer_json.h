#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "essh/text/bpe_tokenizer.h"

namespace essh {

// Hugging Face's tokenizer.json of a byte-level BPE. An unsupported component (another model, a normalizer, another
// pre-tokenizer) is an Unsupported error that names it. Messages start with `place`.
std::unique_ptr<Tokenizer> read_tokenizer_json(std::string_view text, const std::string& place);
std::string write_tokenizer_json(const BpeSpec& spec);

}  // namespace essh
