#include "essh/export/verify.h"

#include <memory>

#include "apps/essh/device_options.h"
#include "apps/essh/number_option.h"
#include "apps/essh/verbs.h"
#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/base/temporary.h"
#include "essh/evaluate/evaluation_text.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {

struct VerifyOptions {
  std::vector<std::string> models;
  std::string parent, tokenizer;
  std::vector<std::filesystem::path> data;
  std::int64_t length = VerifyInput{}.length;
  bool json = false;
  DeviceOptions device{.device = "cpu"};
};

// The start of the held-out text, in shorter sequences if there is little; random tokens without text.
VerifyInput input_of(const VerifyOptions& o, const std::filesystem::path& parent) {
  VerifyInput input{.length = o.length};
  if (o.data.empty()) return input;
  const auto text = EvaluationText::open(o.data, parent, o.tokenizer,
                                         static_cast<TokenId>(read_config(parent).eos_token_id), input.needed());
  if (text.tokens() < input.needed()) {
    input.length = text.tokens() / (VerifyInput::kBatches * VerifyInput::kSequences);
    if (input.length < 2)
      fail(ErrorKind::Usage, "{}: {} tokens are too few to compare models on; give more text", text.name(),
           text.tokens());
    log::info("{}: {} tokens, so that sequences have {} instead of {}", text.name(), text.tokens(), input.length,
              o.length);
  }
  input.tokens.resize(static_cast<std::size_t>(input.needed()));
  text.read(0, input.tokens);
  input.name = text.name();
  return input;
}

void run(const VerifyOptions& o) {
  OpenDevice device(o.device);
  if (o.parent.empty() && !o.data.empty())
    fail(ErrorKind::Usage, "verify: --data is what a model is compared with its --parent on; name the parent too");
  std::optional<std::filesystem::path> parent;
  if (!o.parent.empty()) parent = model_of_run(o.parent);
  const auto input = parent ? input_of(o, *parent) : VerifyInput{};
  Json list = Json::array();
  std::size_t bad = 0;
  for (const auto& model : o.models) {
    // `exports/*` also matches folders that another command is writing, or that a killed one left behind.
    const auto path = std::filesystem::path(model) / "";
    if (is_temporary_name(path.parent_path().filename().string())) {
      log::warn("{}: an unfinished folder, passed over", model);
      continue;
    }
    const auto result = verify_model(model, parent, device.stream, o.device.chosen_precision(), input);
    bad += !result.good();
    Json checks = Json::array();
    for (const auto& check : result.checks) {
      checks.push_back({{"check", check.name}, {"good", check.good}, {"detail", check.detail}});
      if (!o.json) fmt::print("{} {:<12} {}: {}\n", check.good ? "ok  " : "FAIL", check.name, model, check.detail);
    }
    list.push_back({{"model", model}, {"good", result.good()}, {"checks", checks}});
  }
  if (list.empty()) fail(ErrorKind::Usage, "verify: none of these is a finished model folder");
  if (o.json) fmt::print("{}\n", to_text({{"good", bad == 0}, {"models", list}}, 2));
  if (bad > 0) fail(ErrorKind::BadFile, "{} of {} folders failed verification", bad, o.models.size());
}

}  // namespace

void add_verify(Verb& app) {
  auto* verb = app.add_subcommand("verify", "files, hashes, shapes, finiteness; bitwise against the parent");
  auto o = std::make_shared<VerifyOptions>();
  verb->add_option("MODEL", o->models, "model folders")->required();
  verb->add_option("--parent", o->parent, "the family or the run they were exported from");
  verb->add_option("--data", o->data,
                   "compare on held-out text: a prepared dataset, or files (default: random tokens)");
  verb->add_option("--tokenizer", o->tokenizer, "a tokenizer for text files, when the parent has none");
  add_number(*verb, "--length", o->length, "most tokens of each of the 2 x 4 sequences compared", 2,
             std::int64_t{1} << 24)
      ->capture_default_str();
  verb->add_flag("--json", o->json, "print JSON");
  o->device.add_to(*verb);
  verb->footer(
      "Example: essh verify exports/T4 --parent models/tiny --data heldout.txt\n"
      "         essh verify exports/* --parent models/tiny --device cuda");
  verb->callback([o] { run(*o); });
}

}  // namespace essh::verbs
