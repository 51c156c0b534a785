#include "essh/config/fields.h"
#include "tests/fuzz/fuzz_main.h"
#include "tests/fuzz/mutate.h"

namespace essh {
namespace {

struct Window {
  std::int64_t size = 256;
  double theta = 10000.0;
};

struct Config {
  std::string model_type = "essh";
  std::int64_t hidden_size = 64;
  std::int32_t layers = 2;
  std::vector<std::int64_t> attention_layers = {1};
  float epsilon = 1e-5f;
  float scale = 1.0f;
  std::uint32_t seed = 0;
  bool tied = true;
  Window window;
};

template <class Visitor>
void fields(Visitor& visit, Window& w) {
  visit("size", w.size, {.help = "tokens", .min = 1, .max = 1 << 20});
  visit("theta", w.theta, {.help = "base", .min = 1});
}

template <class Visitor>
void fields(Visitor& visit, Config& c) {
  visit("model_type", c.model_type, {.help = "kind", .required = true});
  visit("hidden_size", c.hidden_size, {.help = "width", .min = 1, .max = 65536, .required = true});
  visit("num_hidden_layers", c.layers, {.help = "blocks", .min = 1, .max = 4096});
  visit("attention_layers", c.attention_layers, {.help = "places", .min = 0, .max = 4095});
  visit("rms_norm_eps", c.epsilon, {.help = "epsilon", .min = 0, .max = 1});
  visit("scale", c.scale, {.help = "any number"});
  visit("seed", c.seed, {.help = "any seed"});
  visit("tie_word_embeddings", c.tied, {.help = "tied"});
  visit("sliding_window", c.window, {.help = "window"});
}

class JsonFuzzer {
 public:
  explicit JsonFuzzer(std::uint64_t seed)
      : seeds_{to_text(write_fields(Config{}), 2), to_text(write_fields(Config{})),
               R"({"model_type":"x","hidden_size":1})"},
        mutator_(seed,
                 {"{", "}", "[", "]", ",", ":", "\"", "null", "true", "-", "1e308", "-1", "\"hidden_size\":", "\\u0000",
                  "\\ud800", "\xff", std::string(1, '\0'), std::string(80, '['), "\"sliding_window\":{}"}) {}

  void operator()() {
    text_ = mutator_.pick(seeds_);
    do mutator_.mutate_json(text_, mutator_.pick(seeds_));
    while (mutator_.one_in(4));
    Config config;
    const Json json = parse_json(text_, "config.json");
    read_fields(config, json, "config.json");
    check(config, json);
  }

 private:
  // What was accepted is in range and survives being written and read again.
  static void check(const Config& config, const Json& json) {
    if (json["hidden_size"] != config.hidden_size || json.value("num_hidden_layers", Json(2)) != config.layers ||
        json.value("seed", Json(0)) != config.seed) {
      throw std::logic_error("a number was changed while it was read");
    }
    const bool in_range = config.hidden_size >= 1 && config.hidden_size <= 65536 && config.layers >= 1 &&
                          config.layers <= 4096 && config.epsilon >= 0 && config.epsilon <= 1 &&
                          config.window.size >= 1 && config.window.theta >= 1;
    if (!in_range) throw std::logic_error("a value out of range was accepted");
    Config again;
    const auto text = to_text(write_fields(config));
    read_fields(again, parse_json(text, "again"), "again");
    if (to_text(write_fields(again)) != text) throw std::logic_error("writing and reading again changed a value");
  }

  std::vector<std::string> seeds_;
  fuzz::Mutator mutator_;
  std::string text_;
};

}  // namespace
}  // namespace essh

int main(int argc, char** argv) {
  return essh::fuzz::run(argc, argv, "fuzz_json", [](std::uint64_t seed) { return essh::JsonFuzzer(seed); });
}
