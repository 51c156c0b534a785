#include "essh/base/json.h"
#include "essh/model/capacity.h"
#include "essh/model/config.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/mutate.h"

namespace essh {
namespace {

// config.json of a model folder: from text to a checked ModelConfig.
class ConfigFuzzer {
 public:
  explicit ConfigFuzzer(std::uint64_t seed)
      : seeds_{to_text(config_json(preset("tiny")), 2), to_text(config_json(large())),
               to_text(config_json(preset("dna")))},
        mutator_(seed, {"{",
                        "}",
                        "[",
                        "]",
                        ",",
                        ":",
                        "\"",
                        "null",
                        "true",
                        "-",
                        "1e308",
                        "-1",
                        "9223372036854775807",
                        "18446744073709551615",
                        "\"hidden_size\":",
                        "\"elastic\":{}",
                        "\\u0000",
                        "\\ud800",
                        "\xff",
                        std::string(1, '\0'),
                        std::string(80, '[')}) {}

  void operator()() {
    text_ = mutator_.pick(seeds_);
    do mutator_.mutate_json(text_, mutator_.pick(seeds_));
    while (mutator_.one_in(4));
    check(parse_config(parse_json(text_, "config.json"), "config.json"));
  }

 private:
  // In four layers: the names of 28 would take most of the mutations.
  static ModelConfig large() {
    auto config = preset("1.5b");
    config.num_hidden_layers = 4;
    config.attention_layers = {1, 3};
    return config;
  }

  // An accepted config has tiers within its sizes and survives a round trip.
  static void check(const ModelConfig& config) {
    const auto full = full_capacity(config);
    for (const auto& tier : tiers_of(config)) {
      const auto& c = tier.capacity;
      if (c.channels < 1 || c.channels > full.channels || c.ffn < 1 || c.ffn > full.ffn)
        throw std::logic_error("a tier outside the model");
    }
    const auto text = to_text(config_json(config));
    if (to_text(config_json(parse_config(parse_json(text, "again"), "again"))) != text) {
      throw std::logic_error("writing and reading again changed a value");
    }
  }

  std::vector<std::string> seeds_;
  fuzz::Mutator mutator_;
  std::string text_;
};

const fuzz::Registered<ConfigFuzzer> kConfigFuzzer("config");

}  // namespace
}  // namespace essh
