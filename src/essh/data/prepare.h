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

// What preparation needs of a tokenizer.
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
  // Names of FASTA records that go, whole, to the validation split. A name that no record has is an error.
  std::vector<std::string> holdout = {};
  std::int64_t shard_tokens = 100'000'000;
  int part = 1;  // of 1..parts
  int parts = 1;
  bool strict = false;  // the first bad line is an error
  int threads = 1;
  std::uint64_t checkpoint_bytes = 256u << 20;  // of sources between two kept states
};

struct PrepareReport {
  DatasetManifest manifest;
  bool already = false;  // the dataset was there
  bool resumed = false;
  double seconds = 0;
  std::uint64_t text_bytes = 0;  // tokenised by this run
};

// Turns sources into the shards and the manifest of a dataset. The shards are a function of the plan and the bytes of
// the sources alone: threads and interruptions leave no trace.
//
// Each document is followed by the end-of-text token and goes, whole, to the validation split when the XXH64 of its
// first piece (see cut_document) falls below valid_fraction of all values, else to the training split. A long document
// (more than one piece, or a share of kLeastShareBytes or more) is split instead: of each piece, the last
// valid_fraction goes to validation, and both sides end with the end-of-text token. A record named in `holdout` goes
// whole to validation whatever valid_fraction says. No text at all is an error. Of
// `parts` parts, one takes every parts-th source when there are at least 8 sources per part, else the documents whose
// hash modulo `parts` it is. Run again after an interruption, it goes on where it was; sources or options that changed
// meanwhile are an error. With standard input or a pipe among the sources it starts again from the beginning.
PrepareReport prepare(const PrepareOptions& options, const TextEncoder& encoder);

}  // namespace essh
