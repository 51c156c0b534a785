#include "essh/text/tokenizer_json.h"

#include <optional>
#include <unordered_map>

#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/base/utf8.h"
#include "essh/text/byte_alphabet.h"
#include "essh/text/tokenizer_nucleotide.h"

namespace essh {
namespace {

constexpr JsonLimits kLimits{.bytes = 64u << 20, .depth = 32, .values = 8u << 20};

// One object of the file; typed access whose errors name the place.
class Part {
 public:
  Part(const Json& value, std::string place) : value_(value), place_(std::move(place)) {
    if (!value.is_object()) fail(ErrorKind::BadFile, "{} must be an object", place_);
  }

  const std::string& place() const { return place_; }
  // The value of a key; null if absent.
  const Json& at(const char* key) const {
    static const Json kNull;
    const auto found = value_.find(key);
    return found == value_.end() ? kNull : *found;
  }
  Part object(const char* key) const { return Part(at(key), name(key)); }
  const Json& list(const char* key) const {
    const Json& found = at(key);
    if (!found.is_array()) fail(ErrorKind::BadFile, "{} must be a list", name(key));
    return found;
  }
  std::string text(const char* key) const {
    const Json& found = at(key);
    if (!found.is_string()) fail(ErrorKind::BadFile, "{} must be a string", name(key));
    return found.get<std::string>();
  }
  bool flag(const char* key, bool otherwise) const {
    const Json& found = at(key);
    if (found.is_null()) return otherwise;
    if (!found.is_boolean()) fail(ErrorKind::BadFile, "{} must be true or false", name(key));
    return found.get<bool>();
  }
  std::string type() const { return text("type"); }
  std::string name(const char* key) const { return place_ + "." + key; }

 private:
  const Json& value_;
  std::string place_;
};

TokenId read_id(const Json& value, const std::string& place) {
  if (!value.is_number_integer()) fail(ErrorKind::BadFile, "{}: an id must be a whole number", place);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= static_cast<std::uint64_t>(kMaxVocabulary)) {
    fail(ErrorKind::BadFile, "{}: the id {} is not between 0 and {}", place, to_text(value), kMaxVocabulary - 1);
  }
  return value.get<TokenId>();
}

// A component, or the list of components of a "Sequence", nested ones included.
void flatten(const Json& value, const char* list, const std::string& place, std::vector<Part>& parts) {
  Part part(value, place);
  if (part.type() != "Sequence") {
    parts.push_back(std::move(part));
    return;
  }
  const Json& inner = part.list(list);
  for (std::size_t i = 0; i < inner.size(); ++i)
    flatten(inner[i], list, fmt::format("{}.{}[{}]", place, list, i), parts);
}

std::vector<Part> components(const Json& value, const char* list, const std::string& place) {
  std::vector<Part> parts;
  if (!value.is_null()) flatten(value, list, place, parts);
  return parts;
}

[[noreturn]] void unsupported(const Part& part, std::string_view remedy) {
  fail(ErrorKind::Unsupported, "{}: {} is not supported; {}", part.place(), in_quotes(part.type()), remedy);
}

SplitStep read_split(const Part& part) {
  SplitStep step;
  const Part pattern = part.object("pattern");
  step.literal = pattern.at("Regex").is_null();
  step.pattern = pattern.text(step.literal ? "String" : "Regex");
  step.invert = part.flag("invert", false);
  const std::string behavior = part.text("behavior");
  if (behavior == "Removed") {
    step.behavior = SplitBehavior::Removed;
  } else if (behavior == "Isolated") {
    step.behavior = SplitBehavior::Isolated;
  } else if (behavior == "MergedWithPrevious") {
    step.behavior = SplitBehavior::MergedWithPrevious;
  } else if (behavior == "MergedWithNext") {
    step.behavior = SplitBehavior::MergedWithNext;
  } else if (behavior == "Contiguous") {
    step.behavior = SplitBehavior::Contiguous;
  } else {
    fail(ErrorKind::BadFile, "{} must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous",
         part.name("behavior"));
  }
  return step;
}

std::vector<PreTokenizerStep> read_steps(const Part& root) {
  std::vector<PreTokenizerStep> steps;
  const auto parts = components(root.at("pre_tokenizer"), "pretokenizers", root.name("pre_tokenizer"));
  for (const Part& part : parts) {
    if (!steps.empty() && std::holds_alternative<ByteLevelStep>(steps.back())) {
      unsupported(part, "nothing may follow \"ByteLevel\"");
    }
    const std::string type = part.type();
    if (type == "Split") {
      steps.emplace_back(read_split(part));
    } else if (type == "Digits") {
      steps.emplace_back(DigitsStep{part.flag("individual_digits", false)});
    } else if (type == "ByteLevel") {
      steps.emplace_back(ByteLevelStep{part.flag("add_prefix_space", true), part.flag("use_regex", true)});
    } else {
      unsupported(part, "supported are \"Split\", \"Digits\" and \"ByteLevel\"");
    }
  }
  if (steps.empty() || !std::holds_alternative<ByteLevelStep>(steps.back())) {
    fail(ErrorKind::Unsupported, "{}: only byte-level tokenizers are supported; it does not end in \"ByteLevel\"",
         root.name("pre_tokenizer"));
  }
  return steps;
}

void read_added(const Part& root, BpeSpec& spec) {
  if (root.at("added_tokens").is_null()) return;
  const Json& list = root.list("added_tokens");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Part part(list[i], fmt::format("{}[{}]", root.name("added_tokens"), i));
    AddedToken token;
    token.id = read_id(part.at("id"), part.place());
    token.content = part.text("content");
    token.single_word = part.flag("single_word", false);
    token.lstrip = part.flag("lstrip", false);
    token.rstrip = part.flag("rstrip", false);
    token.special = part.flag("special", false);
    token.normalized = part.flag("normalized", !token.special);
    spec.added.push_back(std::move(token));
  }
}

void read_template(const Part& part, BpeSpec& spec) {
  const Json& single = part.list("single");
  bool before = true;
  for (std::size_t i = 0; i < single.size(); ++i) {
    const Part piece(single[i], fmt::format("{}[{}]", part.name("single"), i));
    if (!piece.at("Sequence").is_null()) {
      if (!before || piece.object("Sequence").text("id") != "A") {
        fail(ErrorKind::BadFile, "{} must hold the sequence A once", part.name("single"));
      }
      before = false;
      continue;
    }
    const std::string name = piece.object("SpecialToken").text("id");
    const Json& ids = Part(part.object("special_tokens").at(name.c_str()), part.name("special_tokens")).list("ids");
    for (const Json& id : ids) {
      (before ? spec.prefix : spec.suffix).push_back(read_id(id, part.name("special_tokens")));
    }
  }
  if (before) fail(ErrorKind::BadFile, "{} must hold the sequence A once", part.name("single"));
}

void read_post_processor(const Part& root, BpeSpec& spec) {
  bool seen = false;
  for (const Part& part : components(root.at("post_processor"), "processors", root.name("post_processor"))) {
    const std::string type = part.type();
    // As a post-processor, ByteLevel only changes offsets, which we do not return.
    if (type == "ByteLevel") continue;
    if (type != "TemplateProcessing" || seen)
      unsupported(part, "supported are \"ByteLevel\" and one \"TemplateProcessing\"");
    read_template(part, spec);
    seen = true;
  }
}

void read_merges(const Part& model, const std::unordered_map<std::string_view, TokenId>& ids, BpeSpec& spec) {
  const Json& merges = model.list("merges");
  spec.merges.reserve(merges.size());
  std::string both;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const Json& merge = merges[rank];
    std::string_view left;
    std::string_view right;
    if (merge.is_string()) {
      const std::string_view line = merge.text();
      const std::size_t space = line.find(' ');
      if (space != std::string_view::npos && line.find(' ', space + 1) == std::string_view::npos) {
        left = line.substr(0, space);
        right = line.substr(space + 1);
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].text();
      right = merge[1].text();
    }
    if (left.empty() || right.empty()) {
      fail(ErrorKind::BadFile, "{}[{}] must be two tokens, \"a b\" or [\"a\", \"b\"]", model.name("merges"), rank);
    }
    both.assign(left).append(right);
    BpeMerge found{};
    for (const auto& [text, id] : {std::pair(left, &found.left), std::pair(right, &found.right),
                                   std::pair(std::string_view(both), &found.result)}) {
      const auto entry = ids.find(text);
      if (entry == ids.end()) {
        fail(ErrorKind::BadFile, "{}[{}]: {} is not in the vocabulary", model.name("merges"), rank, in_quotes(text));
      }
      *id = entry->second;
    }
    spec.merges.push_back(found);
  }
}

void read_model(const Part& model, BpeSpec& spec) {
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.at(affix).is_null() && !model.text(affix).empty()) {
      fail(ErrorKind::Unsupported, "{} is not supported: only byte-level vocabularies are", model.name(affix));
    }
  }
  const Json& dropout = model.at("dropout");
  if (!dropout.is_null() && !(dropout.is_number() && dropout.get<double>() == 0)) {
    fail(ErrorKind::Unsupported, "{} is not supported: encoding must give the same ids every time",
         model.name("dropout"));
  }
  spec.ignore_merges = model.flag("ignore_merges", false);

  const Json& vocab = model.at("vocab");
  if (!vocab.is_object()) fail(ErrorKind::BadFile, "{} must be an object", model.name("vocab"));
  std::unordered_map<std::string_view, TokenId> ids;
  ids.reserve(vocab.size());
  for (const auto& [text, value] : vocab.items()) {
    const TokenId id = read_id(value, model.name("vocab"));
    if (static_cast<std::size_t>(id) >= spec.vocab.size()) spec.vocab.resize(static_cast<std::size_t>(id) + 1);
    VocabEntry& entry = spec.vocab[static_cast<std::size_t>(id)];
    if (entry.present) fail(ErrorKind::BadFile, "{}: two tokens have the id {}", model.name("vocab"), id);
    if (text.empty()) fail(ErrorKind::BadFile, "{}: the token of id {} is empty", model.name("vocab"), id);
    const auto bytes = from_byte_alphabet(text);
    entry = {bytes.value_or(text), true, !bytes.has_value()};
    ids.emplace(text, id);
  }
  read_merges(model, ids, spec);

  const Json& unknown = model.at("unk_token");
  if (!unknown.is_null() || model.flag("byte_fallback", false)) {
    for (int byte = 0; byte < 256; ++byte) {
      const char text = static_cast<char>(byte);
      if (!ids.contains(to_byte_alphabet({&text, 1}))) {
        fail(ErrorKind::Unsupported,
             "{}: an unknown token or byte fallback is only supported where all 256 bytes have tokens; "
             "byte {} has none",
             model.place(), byte);
      }
    }
  }
}

Json step_json(const PreTokenizerStep& step) {
  if (const auto* split = std::get_if<SplitStep>(&step)) {
    static constexpr const char* kNames[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                             "Contiguous"};
    return {{"type", "Split"},
            {"pattern", {{split->literal ? "String" : "Regex", split->pattern}}},
            {"behavior", kNames[static_cast<int>(split->behavior)]},
            {"invert", split->invert}};
  }
  if (const auto* digits = std::get_if<DigitsStep>(&step)) {
    return {{"type", "Digits"}, {"individual_digits", digits->individual_digits}};
  }
  const auto& last = std::get<ByteLevelStep>(step);
  return {{"type", "ByteLevel"},
          {"add_prefix_space", last.add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", last.use_regex}};
}

std::string vocab_text(const VocabEntry& entry) {
  return entry.literal ? entry.bytes : to_byte_alphabet(entry.bytes);
}

Json template_json(const BpeSpec& spec) {
  if (spec.prefix.empty() && spec.suffix.empty()) return nullptr;
  Json special = Json::object();
  const auto piece = [&](TokenId id, int sequence) {
    std::string name;
    for (const AddedToken& token : spec.added) {
      if (token.id == id) name = token.content;
    }
    if (name.empty()) name = vocab_text(spec.vocab[static_cast<std::size_t>(id)]);
    special[name] = {{"id", name}, {"ids", Json::array({id})}, {"tokens", Json::array({name})}};
    return Json{{"SpecialToken", {{"id", name}, {"type_id", sequence}}}};
  };
  Json single = Json::array();
  Json pair = Json::array();
  for (int sequence = 0; sequence < 2; ++sequence) {
    Json around = Json::array();
    for (const TokenId id : spec.prefix) around.push_back(piece(id, sequence));
    around.push_back({{"Sequence", {{"id", sequence == 0 ? "A" : "B"}, {"type_id", sequence}}}});
    for (const TokenId id : spec.suffix) around.push_back(piece(id, sequence));
    if (sequence == 0) single = around;
    for (auto& part : around) pair.push_back(std::move(part));
  }
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

}  // namespace

std::unique_ptr<Tokenizer> read_tokenizer_json(std::string_view text, const std::string& place) {
  const Json file = parse_json(text, place, kLimits);
  if (!file.is_object()) fail(ErrorKind::BadFile, "{}: expected a JSON object", place);
  const Part root(file, place + ": tokenizer");
  const Part model = root.object("model");
  // Old files have no type; they have merges.
  const std::string type = model.at("type").is_null() && !model.at("merges").is_null() ? "BPE" : model.type();
  if (type == "WordLevel" && is_nucleotide_json(file)) return make_nucleotide_tokenizer();
  if (type != "BPE") unsupported(model, "only byte-level \"BPE\" models are");

  BpeSpec spec;
  for (const Part& part : components(root.at("normalizer"), "normalizers", root.name("normalizer"))) {
    unsupported(part, "only tokenizers without a normalizer are");
  }
  spec.steps = read_steps(root);
  for (const Part& part : components(root.at("decoder"), "decoders", root.name("decoder"))) {
    if (part.type() != "ByteLevel") unsupported(part, "only \"ByteLevel\" is");
  }
  for (const char* key : {"truncation", "padding"}) {
    if (!root.at(key).is_null()) log::info("{} is not used: texts are encoded whole", root.name(key));
  }
  read_added(root, spec);
  read_model(model, spec);
  read_post_processor(root, spec);
  guess_text_ends(spec);
  return std::make_unique<BpeTokenizer>(std::move(spec), place);
}

std::string write_tokenizer_json(const BpeSpec& spec) {
  Json added = Json::array();
  for (const AddedToken& token : spec.added) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  Json steps = Json::array();
  for (const PreTokenizerStep& step : spec.steps) steps.push_back(step_json(step));
  const Json pre_tokenizer = steps.size() == 1 ? steps.front() : Json{{"type", "Sequence"}, {"pretokenizers", steps}};

  // The vocabulary is written line by line: insertion into one Json object would be quadratic.
  std::string text = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n";
  text += fmt::format("  \"added_tokens\": {},\n  \"normalizer\": null,\n", to_text(added));
  text += fmt::format("  \"pre_tokenizer\": {},\n", to_text(pre_tokenizer));
  text += fmt::format("  \"post_processor\": {},\n", to_text(template_json(spec)));
  text += fmt::format("  \"decoder\": {},\n", to_text(step_json(ByteLevelStep{})));
  text += fmt::format(
      "  \"model\": {{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
      "    \"byte_fallback\": false,\n    \"ignore_merges\": {},\n    \"vocab\": {{",
      spec.ignore_merges);
  std::vector<std::string> quoted(spec.vocab.size());
  const char* separator = "\n";
  for (std::size_t id = 0; id < spec.vocab.size(); ++id) {
    if (!spec.vocab[id].present) continue;
    quoted[id] = to_text(Json(vocab_text(spec.vocab[id])));
    text += fmt::format("{}      {}: {}", separator, quoted[id], id);
    separator = ",\n";
  }
  text += "\n    },\n    \"merges\": [";
  separator = "\n";
  for (const BpeMerge& merge : spec.merges) {
    text += fmt::format("{}      [{}, {}]", separator, quoted[static_cast<std::size_t>(merge.left)],
                        quoted[static_cast<std::size_t>(merge.right)]);
    separator = ",\n";
  }
  text += "\n    ]\n  }\n}\n";
  return text;
}

}  // namespace essh
