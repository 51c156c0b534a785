#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "essh/data/dataset_manifest.h"
#include "essh/data/document_reader.h"

namespace essh {

// The tokenizer interface of preparation.
struct TextEncoder {
  TokenFormat format;
  std::int32_t eos_id = 0;
  // Appends the tokens of a text. Called from several threads at once.
  std::function<void(std::string_view, std::vector<std::int32_t>&)> encode;
};

struct PrepareOptions {
  std::vector<std::string> inputs;  // see find_sources()
  std::filesystem::path folder;     // the dataset's
  std::optional<CorpusFormat> format;
  std::string field = "text";
  double valid_fraction = 0.01;
  // Names of FASTA records that go to the validation split as a whole. An unknown name is an error.
  std::vector<std::string> holdout = {};
  std::int64_t shard_tokens = 100'000'000;
  int part = 1;  // of 1..parts
  int parts = 1;
  bool strict = false;  // the first bad line is an error
  int threads = 1;
  std::uint64_t checkpoint_bytes = 256u << 20;  // of sources between two saved states
};

struct PrepareReport {
  DatasetManifest manifest;
  bool already = false;  // the dataset was already complete
  bool resumed = false;
  double seconds = 0;
  std::uint64_t text_bytes = 0;  // tokenised by this call
};

// Turns sources into the shards and the manifest of a dataset. The shards depend only on the plan and the bytes of the
// sources, not on threads or interruptions.
//
// Each document is followed by the end-of-text token. It goes to the validation split if the XXH64 of its first piece
// (see cut_document), as a fraction of 2^64, is below valid_fraction. A long document (more than one piece, or a share
// of kLeastShareBytes or more) is split instead: the last valid_fraction of each piece goes to validation, and both
// sides end with the end-of-text token. A record named in `holdout` goes to validation as a whole. No text at all is an
// error. With `parts` > 1, a part takes every parts-th source if there are at least 8 sources per part, else the
// documents whose hash modulo `parts` is its index. A second call after an interruption resumes; changed sources or
// options are then an error. With standard input or a pipe among the sources it starts from the beginning.
PrepareReport prepare(const PrepareOptions& options, const TextEncoder& encoder);

}  // namespace essh
