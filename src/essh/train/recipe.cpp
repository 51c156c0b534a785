#include "essh/train/recipe.h"

#include <fmt/format.h>

#include <array>
#include <set>

#include "essh/base/file.h"
#include "essh/base/utf8.h"
#include "essh/config/fields.h"
#include "essh/config/yaml.h"
#include "essh/model/slice.h"
#include "essh/spectral/modal_init.h"
#include "essh/train/named_settings.h"

namespace essh {
namespace {

constexpr std::uint64_t kRecipeBytes = 1u << 20;

// The paper's constants at the two scales, and recipes for small machines.
constexpr std::array<std::pair<const char*, const char*>, 10> kRecipes = {{
    {"tiny", R"(model: {preset: tiny}
data: {context: 256}
optimizer: {algorithm: muon, rate: 6.0e-3, embedding_rate: 4, warmup: 0.1}
elastic: {warmup_tokens: 1.0e5, full_share: 0.5, smallest_share: 0.4, kl: 0, ordering_period: 50}
run: {steps: 400, batch: 8, micro_batch: 4, validate_every: 100, checkpoint_every: 100, validation_windows: 32}
refine: {steps: 20, batch: 8, rate: 6.0e-4, warmup: 0, decay: matrices, moments: kept, schedule: linear, order: continued, tv: 1,
  sampling: shuffle, smallest_share: 0.3}
)"},
    {"370m", R"(model: {preset: 370m}
data: {context: 2048}
optimizer: {rate: 1.2e-3}
run: {steps: 28229, batch: 128, micro_batch: 8, validate_every: 500, checkpoint_every: 250, validation_windows: 128}
refine: {steps: 2060, batch: 64, rate: 6.0e-5}
)"},
    {"1.5b", R"(model: {preset: 1.5b}
data: {context: 2048}
optimizer: {rate: 1.0e-3}
run: {steps: 190735, batch: 256, micro_batch: 4, validate_every: 1000, checkpoint_every: 200, validation_windows: 128}
refine: {steps: 4120, batch: 64, rate: 6.0e-5, sampling: shuffle}
)"},
    {"transformer-370m", R"(model: {preset: transformer-370m}
data: {context: 2048}
optimizer: {rate: 1.2e-3}
elastic: {sampling: dense}
run: {steps: 28229, batch: 128, micro_batch: 8, validate_every: 500, checkpoint_every: 250, validation_windows: 128}
)"},
    {"transformer-1.5b", R"(model: {preset: transformer-1.5b}
data: {context: 2048}
optimizer: {rate: 1.0e-3}
elastic: {sampling: dense}
run: {steps: 190735, batch: 256, micro_batch: 4, validate_every: 1000, checkpoint_every: 200, validation_windows: 128}
)"},
    {"matformer-370m", R"(model: {preset: matformer-370m}
data: {context: 2048}
optimizer: {rate: 1.2e-3}
elastic: {budgets: [0.125, 0.25, 0.5, 1], full_share: 0, warmup_tokens: 0, kl: 0, ffn_scale: 1, ordering_period: 0}
run: {steps: 28229, batch: 128, micro_batch: 8, validate_every: 500, checkpoint_every: 250, validation_windows: 128}
)"},
    // Post-hoc elastification of a dense parent, which model.start and elastic.teacher name.
    {"posthoc", R"(model: {preset: 370m}
data: {context: 2048}
optimizer: {rate: 1.0e-4, schedule: constant, warmup: 0.01}
elastic:
  parameter_targets: [1, 0.75, 0.5, 2.403e8, 1.621e8]
  full_share: 0
  warmup_tokens: 0
  kl: 1
  label: 1
  ffn_scale: 1
  mixer_scale: 1
  ordering_period: 0
  calibration_tokens: 2.0e6
run: {steps: 1908, batch: 128, micro_batch: 8, validate_every: 250, checkpoint_every: 250, validation_windows: 128}
)"},
    {"dna", R"(model: {preset: dna, vocab_size: 12}
data: {context: 1024}
optimizer: {rate: 3.0e-3}
run: {steps: 11445, batch: 256, micro_batch: 32, validate_every: 500, checkpoint_every: 500, validation_windows: 256}
refine: {steps: 2060, batch: 128, rate: 1.5e-4}
)"},
    {"mqar", R"(model: {preset: synthetic}
data: {task: mqar, context: 256, pairs: 64}
optimizer: {rate: 1.0e-3}
elastic: {warmup_tokens: 2.0e6, full_share: 0.5}
run: {steps: 20000, batch: 64, micro_batch: 16, validate_every: 1000, checkpoint_every: 2000, validation_windows: 128}
refine: {steps: 500, batch: 64, rate: 1.0e-4}
)"},
    {"palindrome", R"(model: {preset: synthetic, vocab_size: 67}
data: {task: palindrome, context: 256}
optimizer: {rate: 1.0e-3}
elastic: {warmup_tokens: 2.0e6, full_share: 0.5}
run: {steps: 20000, batch: 64, micro_batch: 16, validate_every: 1000, checkpoint_every: 2000, validation_windows: 128}
refine: {steps: 500, batch: 64, rate: 1.0e-4}
)"},
}};

// "run.steps=100" into the object.
void apply(Json& object, const std::string& setting) {
  const auto equals = setting.find('=');
  if (equals == std::string::npos) fail(ErrorKind::Usage, "setting {}: write it as a.b=value", in_quotes(setting));
  Json* place = &object;
  std::string path = setting.substr(0, equals);
  const auto check_group = [&] {
    if (!place->is_object() && !place->is_null())
      fail(ErrorKind::Usage, "setting {}: what stands before .{} is a value, not a group", in_quotes(setting), path);
  };
  for (std::size_t dot; check_group(), (dot = path.find('.')) != std::string::npos; path = path.substr(dot + 1))
    place = &(*place)[path.substr(0, dot)];
  (*place)[path] = parse_yaml(setting.substr(equals + 1), "setting " + setting.substr(0, equals));
}

void one_of(const std::string& value, const std::string& place, std::vector<std::string> known) {
  if (std::find(known.begin(), known.end(), value) == known.end()) {
    fail(ErrorKind::BadFile, "{} must be one of {}, got {}{}", place, fmt::join(known, ", "), in_quotes(value),
         suggestion(value, known));
  }
}

void check(const Recipe& r, const std::string& place) {
  one_of(r.model.clock, place + ": model.clock", {"input", "fixed"});
  one_of(r.model.gates, place + ": model.gates", {"input", "neutral"});
  one_of(r.optimizer.algorithm, place + ": optimizer.algorithm", {"adamw", "muon"});
  one_of(r.optimizer.schedule, place + ": optimizer.schedule", {"cosine", "wsd", "constant"});
  one_of(r.elastic.sampling, place + ": elastic.sampling",
         {"fixed", "ramp", "progressive", "gap", "adaptive", "dense"});
  one_of(r.run.nonfinite, place + ": run.nonfinite", {"stop", "skip", "rollback"});
  one_of(r.run.precision, place + ": run.precision", {"auto", "bf16", "float32"});
  one_of(r.refine.sampling, place + ": refine.sampling", {"step", "shuffle"});
  one_of(r.refine.decay, place + ": refine.decay", {"all", "matrices"});
  one_of(r.refine.moments, place + ": refine.moments", {"fresh", "kept"});
  one_of(r.refine.schedule, place + ": refine.schedule", {"cosine", "linear"});
  one_of(r.refine.order, place + ": refine.order", {"own", "continued"});
  parse_modal_init(r.model.modes);
  if (!r.data.task.empty() && !r.data.path.empty())
    fail(ErrorKind::BadFile, "{}: data.path and data.task exclude each other", place);
  if (r.run.batch % r.run.micro_batch != 0)
    fail(ErrorKind::BadFile, "{}: run.batch must be a multiple of run.micro_batch", place);
  if (r.refine.batch % r.run.micro_batch != 0)
    fail(ErrorKind::BadFile, "{}: refine.batch must be a multiple of run.micro_batch", place);
  if (r.elastic.joint && !r.elastic.teacher.empty())
    fail(ErrorKind::BadFile, "{}: elastic.joint and elastic.teacher exclude each other: one model teaches", place);
  if (!r.elastic.budgets.empty() && !r.elastic.parameter_targets.empty())
    fail(ErrorKind::BadFile, "{}: elastic.budgets and elastic.parameter_targets exclude each other", place);
  for (const auto* budgets : {&r.elastic.budgets, &r.elastic.parameter_targets, &r.refine.budgets}) {
    for (const double budget : *budgets) {
      if (!(budget > 0)) fail(ErrorKind::BadFile, "{}: budgets must be above zero", place);
    }
  }
}

// YAML's flow style is JSON; numbers stay exact.
std::string yaml_lines(const Json& object, int indent) {
  std::string text;
  for (const auto& [key, value] : object.items()) {
    if (value.is_object())
      text += fmt::format("{:{}}{}:\n{}", "", indent, key, yaml_lines(value, indent + 2));
    else
      text += fmt::format("{:{}}{}: {}\n", "", indent, key, to_text(value));
  }
  return text;
}

}  // namespace

Recipe parse_recipe(const std::string& yaml, const std::string& place, const std::vector<std::string>& settings) {
  auto object = parse_yaml(yaml, place);
  for (const auto& setting : settings) apply(object, setting);
  Recipe recipe;
  read_fields(recipe, object, place);
  check(recipe, place);
  return recipe;
}

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const auto& [name, text] : kRecipes) names.emplace_back(name);
  return names;
}

Recipe load_recipe(const std::string& name_or_path, const std::vector<std::string>& settings,
                   const std::string& named) {
  if (!named.empty()) {
    std::vector<std::string> of_model;
    for (const auto& setting : settings) {
      if (setting.starts_with("model.preset=")) of_model.push_back(setting);
    }
    auto all = named_settings(named, name_or_path, load_recipe(name_or_path, of_model).model.preset);
    all.insert(all.end(), settings.begin(), settings.end());
    return load_recipe(name_or_path, all);
  }
  if (std::filesystem::is_regular_file(name_or_path))
    return parse_recipe(read_text(name_or_path, kRecipeBytes), name_or_path, settings);
  for (const auto& [name, text] : kRecipes) {
    if (name == name_or_path) return parse_recipe(text, std::string("recipe ") + name, settings);
  }
  const auto names = recipe_names();
  fail(ErrorKind::Usage, "no recipe file or name {}{} (there are {})", in_quotes(name_or_path),
       suggestion(name_or_path, names), fmt::join(names, ", "));
}

std::string recipe_yaml(const Recipe& recipe) {
  return yaml_lines(write_fields(recipe), 0);
}

std::vector<RecipeDifference> recipe_differences(const Recipe& before, const Recipe& after) {
  std::vector<RecipeDifference> differences;
  const Json old = write_fields(before), now = write_fields(after);
  for (const auto& [section, members] : now.items()) {
    for (const auto& [name, value] : members.items()) {
      const auto& was = old[section][name];
      if (was != value) differences.push_back({section + "." + name, to_text(was), to_text(value)});
    }
  }
  return differences;
}

bool may_change_in_a_run(const std::string& field) {
  static const std::set<std::string> kFree = {"data.path",          "run.checkpoint_every",  "run.keep",
                                              "run.loss_rows",      "run.nonfinite",         "run.steps",
                                              "run.validate_every", "run.validation_windows"};
  return kFree.contains(field) || field.starts_with("refine.");
}

ModelConfig recipe_config(const Recipe& recipe, Index tokens, Index eos) {
  const auto& r = recipe.model;
  auto c = preset(r.preset);
  const auto take = [](Index& member, Index value) {
    if (value > 0) member = value;
  };
  c.vocab_size = r.vocab_size > 0 ? r.vocab_size : (tokens + 63) / 64 * 64;
  take(c.hidden_size, r.hidden_size);
  take(c.intermediate_size, r.intermediate_size);
  take(c.num_hidden_layers, r.num_hidden_layers);
  take(c.sliding_window, r.sliding_window);
  const Index mixer_width = r.hidden_size > 0 ? r.hidden_size : c.spectral_channels * c.channel_width;
  take(c.spectral_channels, r.spectral_channels);
  take(c.spectral_modes, r.spectral_modes);
  if (!r.attention_layers.empty()) c.attention_layers = r.attention_layers;
  if (r.no_attention) c.attention_layers.clear();
  if (!c.layer_types.empty()) {
    if (!r.attention_layers.empty() || r.no_attention)
      fail(ErrorKind::BadFile, "model of the recipe: preset {} has attention in every layer", r.preset);
    c.layer_types.resize(static_cast<std::size_t>(c.num_hidden_layers), c.layer_types.back());
  }
  c.channel_width = r.channel_width > 0 ? r.channel_width
                    : r.hidden_size > 0 ? std::max<Index>(1, c.hidden_size / c.spectral_channels)
                                        : c.channel_width;
  if (r.fixed_mixer_width) {
    if (r.channel_width > 0 || mixer_width % c.spectral_channels != 0)
      fail(ErrorKind::BadFile,
           "model.fixed_mixer_width: {} values cannot be shared by {} channels; use a divisor, and leave channel_width "
           "out",
           mixer_width, c.spectral_channels);
    c.channel_width = mixer_width / c.spectral_channels;
  }
  for (auto* attention : {&c.sliding_attention, &c.full_attention}) {
    attention->head_dim = std::min(attention->head_dim, c.hidden_size);
    attention->num_attention_heads = c.hidden_size / attention->head_dim;
    attention->num_key_value_heads = r.num_key_value_heads;
  }
  if (!c.attention_layers.empty() && c.sliding_window == 0) c.sliding_window = recipe.data.context;
  c.residual_in_fp32 = r.residual_in_fp32;
  c.bos_token_id = c.eos_token_id = eos;
  if (c.elastic.channels.full > 0)
    c.elastic =
        two_rate(c.spectral_channels, c.intermediate_size, deployment_budgets(), r.channel_exponent, r.ffn_exponent);
  else if (c.elastic.ffn.full > 0)
    c.elastic.ffn.full = c.intermediate_size;
  c.elastic.slopes = r.slopes && c.elastic.is_family() && recipe.elastic.sampling != "dense";
  if (!r.tier.empty()) {
    c = slice(c, find_tier(c, r.tier).capacity);
    c.elastic = {};
  }
  check_config(c, "model of the recipe");
  if (tokens > c.vocab_size)
    fail(ErrorKind::Usage, "model.vocab_size {} is smaller than the tokenizer's {} entries", c.vocab_size, tokens);
  return c;
}

}  // namespace essh
