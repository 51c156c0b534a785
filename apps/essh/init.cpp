#include <fmt/format.h>

#include <memory>

#include "apps/essh/number_option.h"
#include "apps/essh/output_file.h"
#include "apps/essh/verbs.h"
#include "essh/base/json.h"
#include "essh/model/cost.h"
#include "essh/model/initialise.h"
#include "essh/store/model_folder.h"

namespace essh::verbs {
namespace {

struct InitOptions {
  std::string preset;
  std::string out;
  std::uint64_t seed = 1;
  std::string modes = "hankel";
  std::string dtype = "f32";
  std::string tokenizer;
  std::int64_t vocabulary = 0;
  bool force = false;
};

void init(const InitOptions& o) {
  check_new_folder(o.out, o.force);
  auto config = preset(o.preset);
  if (o.vocabulary > 0) {
    config.vocab_size = o.vocabulary;
    config.bos_token_id = std::min(config.bos_token_id, o.vocabulary - 1);
    config.eos_token_id = std::min(config.eos_token_id, o.vocabulary - 1);
  }
  const auto modes = parse_modal_init(o.modes);
  Parameters<float> parameters(config);
  initialise(parameters, config, o.seed, modes);
  SaveOptions save{.format = {parse_dtype(o.dtype)},
                   .existing = o.force ? ExistingFolder::Replace : ExistingFolder::Refuse};
  save.provenance =
      to_text({{"format", 1}, {"kind", "initial"}, {"preset", o.preset}, {"seed", o.seed}, {"modes", o.modes}}, 2);
  if (!o.tokenizer.empty()) save.copied = {o.tokenizer};
  save_model(o.out, config, parameters, full_capacity(config), save);
  fmt::print("{}: {} parameters, seed {}, {} modes\n", o.out, cost_of(config, full_capacity(config)).parameters, o.seed,
             o.modes);
}

}  // namespace

void add_init(Verb& app) {
  auto* verb = app.add_subcommand("init", "make a model folder with fitted initial weights");
  auto o = std::make_shared<InitOptions>();
  verb->add_option("PRESET", o->preset, fmt::format("one of {}", fmt::join(preset_names(), ", ")))->required();
  verb->add_option("-o,--out", o->out, "the new model folder")->required();
  add_seed(*verb, o->seed, "of the random weights");
  verb->add_option("--modes", o->modes, fmt::format("initial modes: {}", fmt::join(modal_init_names(), ", ")))
      ->capture_default_str();
  verb->add_option("--dtype", o->dtype, "stored matrices: f32, bf16, f16")->capture_default_str();
  add_number(*verb, "--vocab-size", o->vocabulary, "instead of the preset's", 1, 1 << 24);
  verb->add_option("--tokenizer", o->tokenizer, "a tokenizer.json to put into the folder")->existing_file();
  verb->add_flag("--force", o->force, "replace a model folder of that name");
  verb->footer("Example: essh init tiny -o models/tiny --seed 1");
  verb->callback([o] { init(*o); });
}

}  // namespace essh::verbs
