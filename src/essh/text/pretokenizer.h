#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "essh/text/regex_splitter.h"
#include "essh/text/splitter.h"

// Splits text into the words that byte pair encoding works on. Each step splits the pieces of the previous step, as in
// the "pre_tokenizer" of a tokenizer.json.
namespace essh {

enum class SplitBehavior { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

struct SplitStep {
  std::string pattern;
  bool literal = false;  // plain text rather than a regular expression
  bool invert = false;   // swaps matches and the text between them
  SplitBehavior behavior = SplitBehavior::Isolated;
};

struct DigitsStep {
  bool individual_digits = false;
};

// Last in every list.
struct ByteLevelStep {
  bool add_prefix_space = false;
  bool use_regex = true;  // split by GPT-2's pattern
};

using PreTokenizerStep = std::variant<SplitStep, DigitsStep, ByteLevelStep>;

class PreTokenizer {
 public:
  // Messages about refused patterns start with `place`.
  PreTokenizer(const std::vector<PreTokenizerStep>& steps, const std::string& place);

  // Calls word(std::string_view) for each word in order; words are never empty. The view is valid during the call.
  template <class Word>
  void for_each_word(std::string_view text, Word&& word) const {
    switch (plan_) {
      case Plan::Gpt2:
        return walk(text, gpt2_word_end, word);
      case Plan::Llama3:
        return walk(text, llama3_word_end, word);
      case Plan::Steps:
        return run(0, text, std::ref(word));
    }
  }

 private:
  enum class Plan { Gpt2, Llama3, Steps };
  using WordEnd = std::size_t (*)(std::string_view, std::size_t);
  using Sink = std::function<void(std::string_view)>;

  struct Step {
    PreTokenizerStep what;
    WordEnd word_end = nullptr;          // a hand-written splitter
    std::optional<RegexSplitter> regex;  // any other pattern
  };

  template <class Word>
  static void walk(std::string_view text, WordEnd word_end, Word&& word) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = word_end(text, begin);
      word(text.substr(begin, end - begin));
      begin = end;
    }
  }
  void run(std::size_t step, std::string_view text, const Sink& word) const;
  void split(const Step& step, std::string_view text, const Sink& piece) const;

  std::vector<Step> steps_;
  Plan plan_ = Plan::Steps;
};

}  // namespace essh
