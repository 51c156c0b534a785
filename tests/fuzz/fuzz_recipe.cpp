#include <fmt/format.h>

#include "essh/train/recipe.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/mutate.h"

namespace essh {
namespace {

// A YAML recipe followed by command-line settings: refused, or unchanged by a round trip, with a model of feasible
// sizes.
class RecipeFuzzer {
 public:
  explicit RecipeFuzzer(std::uint64_t seed)
      : mutator_(seed, {"{",
                        "}",
                        "[",
                        "]",
                        ",",
                        ": ",
                        "\n",
                        "- ",
                        "  ",
                        "\t",
                        "\"",
                        "'",
                        "#",
                        "&a ",
                        "*a",
                        "<<: *a",
                        "&a [*a, *a]",
                        "!!binary ",
                        "!",
                        "? ",
                        "|\n",
                        ">\n",
                        "---\n",
                        "...\n",
                        "%YAML ",
                        "~",
                        "null",
                        "true",
                        ".inf",
                        "-.inf",
                        ".nan",
                        "0x7f",
                        "0o17",
                        "1e999",
                        "1e-400",
                        "-1",
                        "1_000",
                        "\\u0000",
                        "\\ud800",
                        "\xff",
                        "\xEF\xBB\xBF",
                        std::string(1, '\0'),
                        std::string(40, '['),
                        "model: ",
                        "tier: T3",
                        "preset: transformer-370m",
                        "num_hidden_layers: 4096",
                        "budgets: [0.1, 1]"}) {
    for (const auto& name : recipe_names()) seeds_.push_back(recipe_yaml(load_recipe(name, {})));
    seeds_.push_back("model: {preset: tiny, tier: T4}\nelastic: &e {budgets: [0.25, 1.0]}\nrefine: {budgets: [1]}\n");
    seeds_.push_back("a: &a [1, 1]\nb: &b [*a, *a]\nc: &c [*b, *b]\n");
    settings_ = {"run.steps=100", "elastic.budgets=[0.5, 1]", "model.preset=dna", "data.task=mqar", "run.batch=8"};
  }

  void operator()() {
    text_ = mutator_.pick(seeds_);
    do {
      if (mutator_.one_in(3))
        mutate_lines();
      else
        mutator_.mutate_json(text_, mutator_.pick(seeds_));
    } while (mutator_.one_in(4));
    std::vector<std::string> settings;
    while (mutator_.one_in(3)) {
      settings.push_back(mutator_.pick(settings_));
      if (mutator_.one_in(2)) mutator_.mutate(settings.back(), mutator_.pick(settings_));
    }
    const auto recipe = parse_recipe(text_, "recipe.yaml", settings);
    const auto again = parse_recipe(recipe_yaml(recipe), "again", {});
    for (const auto& difference : recipe_differences(recipe, again))
      throw std::logic_error(fmt::format("{} is {} and, written and read again, {}", difference.field,
                                         difference.before, difference.after));
    check_config(recipe_config(recipe, 257, 256), "config");
  }

 private:
  // Moves, repeats or indents a line.
  void mutate_lines() {
    const auto line = [&] {
      const auto at = text_.rfind('\n', mutator_.rng().below(text_.size() + 1));
      const auto begin = at == std::string::npos ? 0 : at + 1;
      const auto end = text_.find('\n', begin);
      return std::pair(begin, (end == std::string::npos ? text_.size() : end + 1) - begin);
    };
    const auto [begin, size] = line();
    const auto copy = text_.substr(begin, size);
    if (mutator_.one_in(2)) text_.erase(begin, size);
    text_.insert(line().first, (mutator_.one_in(3) ? "  " : "") + copy);
  }

  std::vector<std::string> seeds_, settings_;
  fuzz::Mutator mutator_;
  std::string text_;
};

const fuzz::Registered<RecipeFuzzer> kRecipeFuzzer("recipe");

}  // namespace
}  // namespace essh
