#include "essh/data/dataset_manifest.h"

#include <fmt/format.h>

#include "essh/config/fields.h"

namespace essh {

template <class Visitor>
void fields(Visitor& visit, SourceFile& source) {
  visit("path", source.path, {.required = true});
  visit("format", source.format, {.required = true});
  visit("size", source.size, {.min = 0, .required = true});
  visit("mtime", source.mtime, {.required = true});
  visit("pipe", source.pipe, {.required = true});
}

template <class Visitor>
void fields(Visitor& visit, TokenFormat& tokens) {
  visit("hash", tokens.tokenizer_hash, {.required = true});
  visit("vocab_size", tokens.vocab_size, {.min = 1, .max = 0x1p31, .required = true});
}

template <class Visitor>
void fields(Visitor& visit, DatasetPlan& plan) {
  visit("tokenizer", plan.tokens, {.required = true});
  visit("eos_id", plan.eos_id, {.min = 0, .required = true});
  visit("field", plan.field, {.required = true});
  visit("valid_fraction", plan.valid_fraction, {.min = 0, .max = 1, .required = true});
  visit("holdout", plan.holdout, {});
  visit("shard_tokens", plan.shard_tokens, {.min = 1, .max = static_cast<double>(kMostTokens), .required = true});
  visit("part", plan.part, {.min = 1, .max = 99999, .required = true});
  visit("parts", plan.parts, {.min = 1, .max = 99999, .required = true});
}

template <class Visitor>
void fields(Visitor& visit, SplitManifest& split) {
  visit("tokens", split.tokens, {.min = 0, .max = static_cast<double>(kMostTokens), .required = true});
  visit("documents", split.documents, {.min = 0, .max = static_cast<double>(kMostTokens), .required = true});
  visit("bytes", split.bytes, {.min = 0, .max = 0x1p56, .required = true});
}

namespace {

constexpr const char* kFormat = "essh-dataset";
// Enough for a million sources.
constexpr JsonLimits kManifestLimits{.bytes = std::uint64_t{1} << 30, .depth = 8, .values = 64u << 20};

template <class T>
Json list_to_json(const std::vector<T>& list) {
  Json array = Json::array();
  for (const auto& element : list) array.push_back(write_fields(element));
  return array;
}

template <class T>
std::vector<T> list_from_json(const Json& array, const std::string& place) {
  if (!array.is_array()) fail(ErrorKind::BadFile, "{} must be a list", place);
  std::vector<T> list;
  for (std::size_t i = 0; i < array.size(); ++i) {
    T element;
    read_fields(element, array[i], fmt::format("{}[{}]", place, i));
    list.push_back(std::move(element));
  }
  return list;
}

const Json& member(const Json& object, const char* name, const std::string& place) {
  if (!object.is_object()) fail(ErrorKind::BadFile, "{}: expected a JSON object", place);
  const auto found = object.find(name);
  if (found == object.end()) fail(ErrorKind::BadFile, "{}: {} is missing", place, name);
  return *found;
}

SplitManifest split_from_json(const Json& object, const std::string& place) {
  SplitManifest split;
  read_fields(split, object, place, UnknownKeys::Ignore);
  split.shards = shards_from_json(member(object, "shards", place), place + ": shards");
  std::int64_t tokens = 0;
  std::int64_t documents = 0;
  for (const auto& shard : split.shards) {
    // Fields are bounded: no overflow up to 32768 full-sized shards, and the check below stops before that.
    tokens += shard.tokens;
    documents += shard.documents;
    if (tokens > split.tokens || documents > split.documents) break;
  }
  if (tokens != split.tokens || documents != split.documents) {
    fail(ErrorKind::BadFile, "{}: the shards do not add up to {} tokens in {} documents", place, split.tokens,
         split.documents);
  }
  return split;
}

Json split_to_json(const SplitManifest& split) {
  Json object = write_fields(split);
  object["shards"] = list_to_json(split.shards);
  return object;
}

}  // namespace

std::string part_suffix(int part, int parts) {
  return parts == 1 ? "" : fmt::format("-{}of{}", part, parts);
}

std::filesystem::path manifest_path(const std::filesystem::path& folder, int part, int parts) {
  return folder / fmt::format("dataset{}.json", part_suffix(part, parts));
}

Json to_json(const DatasetPlan& plan) {
  Json object = write_fields(plan);
  object["sources"] = list_to_json(plan.sources);
  return object;
}

Json to_json(const ShardEntry& entry) {
  return write_fields(entry);
}

DatasetPlan plan_from_json(const Json& object, const std::string& place) {
  DatasetPlan plan;
  read_fields(plan, object, place, UnknownKeys::Ignore);
  if (plan.tokens.tokenizer_hash.size() > 64)
    fail(ErrorKind::BadFile, "{}: tokenizer: hash is longer than 64 characters", place);
  if (plan.eos_id >= plan.tokens.vocab_size) {
    fail(ErrorKind::BadFile, "{}: eos_id {} is outside the vocabulary of {}", place, plan.eos_id,
         plan.tokens.vocab_size);
  }
  if (plan.part > plan.parts) fail(ErrorKind::BadFile, "{}: part {} of {}", place, plan.part, plan.parts);
  plan.sources = list_from_json<SourceFile>(member(object, "sources", place), place + ": sources");
  return plan;
}

std::vector<ShardEntry> shards_from_json(const Json& list, const std::string& place) {
  auto shards = list_from_json<ShardEntry>(list, place);
  for (const auto& shard : shards) {
    if (shard.file.empty() || shard.file.front() == '.' || shard.file.find('/') != std::string::npos ||
        shard.file.find('\0') != std::string::npos) {
      fail(ErrorKind::BadFile, "{}: \"{}\" is not a plain file name", place, shard.file);
    }
  }
  return shards;
}

std::string to_text(const DatasetManifest& manifest) {
  Json object = {{"format", kFormat}, {"version", 1}};
  object["plan"] = to_json(manifest.plan);
  object["train"] = split_to_json(manifest.train);
  object["valid"] = split_to_json(manifest.valid);
  object["bad_lines"] = {{"count", manifest.bad_lines}, {"first", manifest.first_bad_lines}};
  return to_text(object, 1) + "\n";
}

DatasetManifest read_manifest(const std::filesystem::path& path) {
  const auto place = path.string();
  const Json object = read_json(path, kManifestLimits);
  if (member(object, "format", place) != kFormat) fail(ErrorKind::BadFile, "{}: not a dataset of essh prepare", place);
  if (member(object, "version", place) != 1) fail(ErrorKind::Unsupported, "{}: this build reads version 1 only", place);
  DatasetManifest manifest;
  manifest.plan = plan_from_json(member(object, "plan", place), place + ": plan");
  manifest.train = split_from_json(member(object, "train", place), place + ": train");
  manifest.valid = split_from_json(member(object, "valid", place), place + ": valid");
  const auto& bad = member(object, "bad_lines", place);
  manifest.bad_lines =
      detail::json_value<std::int64_t>(member(bad, "count", place), {.min = 0}, place + ": bad_lines: count");
  manifest.first_bad_lines =
      detail::json_value<std::vector<std::string>>(member(bad, "first", place), {}, place + ": bad_lines: first");
  return manifest;
}

std::string difference(const DatasetPlan& before, const DatasetPlan& now) {
  if (before.tokens != now.tokens || before.eos_id != now.eos_id) return "the tokenizer differs";
  if (before.field != now.field) return fmt::format("the field was \"{}\"", before.field);
  if (before.valid_fraction != now.valid_fraction) return fmt::format("valid_fraction was {}", before.valid_fraction);
  if (before.holdout != now.holdout)
    return before.holdout.empty() ? "no record was held out"
                                  : fmt::format("the records held out were {}", fmt::join(before.holdout, ", "));
  if (before.shard_tokens != now.shard_tokens) return fmt::format("shard_tokens was {}", before.shard_tokens);
  if (before.part != now.part || before.parts != now.parts)
    return fmt::format("the part was {}/{}", before.part, before.parts);
  for (std::size_t i = 0; i < before.sources.size() || i < now.sources.size(); ++i) {
    if (i == now.sources.size()) return fmt::format("the source {} is no longer there", before.sources[i].path);
    if (i == before.sources.size()) return fmt::format("the source {} was added", now.sources[i].path);
    if (before.sources[i].path != now.sources[i].path) {
      return fmt::format("source {} was {}, now it is {}", i + 1, before.sources[i].path, now.sources[i].path);
    }
    if (before.sources[i] != now.sources[i]) return fmt::format("the source {} changed", now.sources[i].path);
  }
  return "";
}

}  // namespace essh
