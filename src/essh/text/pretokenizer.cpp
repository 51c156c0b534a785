#include "essh/text/pretokenizer.h"

#include "essh/base/error.h"
#include "essh/text/unicode_classes.h"
#include "essh/text/utf8.h"

namespace essh {
namespace {

struct Piece {
  std::size_t begin;
  std::size_t end;
  bool match;
};

// Joins matches to their neighbours according to the behavior; the match flag is meaningless afterwards.
std::vector<Piece> join(const std::vector<Piece>& pieces, SplitBehavior behavior) {
  std::vector<Piece> joined;
  bool previous = false;
  if (behavior == SplitBehavior::MergedWithNext) {
    for (std::size_t i = pieces.size(); i-- > 0;) {
      if (pieces[i].match && !previous && !joined.empty()) {
        joined.back().begin = pieces[i].begin;
      } else {
        joined.push_back(pieces[i]);
      }
      previous = pieces[i].match;
    }
    return {joined.rbegin(), joined.rend()};
  }
  for (const Piece& piece : pieces) {
    const bool attach = behavior == SplitBehavior::Contiguous ? piece.match == previous : piece.match && !previous;
    if (attach && !joined.empty()) {
      joined.back().end = piece.end;
    } else {
      joined.push_back(piece);
    }
    previous = piece.match;
  }
  return joined;
}

}  // namespace

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps, const std::string& place) {
  ESSH_ASSERT(!steps.empty() && std::holds_alternative<ByteLevelStep>(steps.back()));
  for (const PreTokenizerStep& what : steps) {
    Step step{what, nullptr, std::nullopt};
    if (const auto* split = std::get_if<SplitStep>(&what)) {
      if (!split->literal && split->pattern == kGpt2Pattern) {
        step.word_end = gpt2_word_end;
      } else if (!split->literal && split->pattern == kLlama3Pattern) {
        step.word_end = llama3_word_end;
      } else {
        step.regex.emplace(split->pattern, split->literal, place);
      }
    }
    steps_.push_back(std::move(step));
  }
  const auto& last = std::get<ByteLevelStep>(steps.back());
  if (last.add_prefix_space) return;
  if (steps.size() == 1 && last.use_regex) plan_ = Plan::Gpt2;
  if (steps.size() == 2 && !last.use_regex) {
    // These patterns match everything, so removing the gaps equals isolating the matches.
    const auto* split = std::get_if<SplitStep>(&steps.front());
    const bool whole = split != nullptr && (split->behavior == SplitBehavior::Isolated ||
                                            (split->behavior == SplitBehavior::Removed && split->invert));
    if (whole && steps_.front().word_end == gpt2_word_end) plan_ = Plan::Gpt2;
    if (whole && steps_.front().word_end == llama3_word_end) plan_ = Plan::Llama3;
  }
}

void PreTokenizer::run(std::size_t step, std::string_view text, const Sink& word) const {
  if (text.empty()) return;
  const Step& here = steps_[step];
  if (const auto* last = std::get_if<ByteLevelStep>(&here.what)) {
    std::string prefixed;
    if (last->add_prefix_space && text.front() != ' ') {
      prefixed.reserve(text.size() + 1);
      prefixed.append(" ").append(text);
      text = prefixed;
    }
    if (last->use_regex) {
      walk(text, gpt2_word_end, word);
    } else {
      word(text);
    }
    return;
  }
  const Sink next = [&](std::string_view piece) { run(step + 1, piece, word); };
  if (const auto* digits = std::get_if<DigitsStep>(&here.what)) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = number_run_end(text, begin);
      const Utf8Char first = utf8_char(text, begin);
      const bool number = first.valid && char_class(first.code) == CharClass::Number;
      if (number && digits->individual_digits) {
        for (; begin < end; begin += utf8_char(text, begin).length)
          next(text.substr(begin, utf8_char(text, begin).length));
      } else {
        next(text.substr(begin, end - begin));
      }
      begin = end;
    }
    return;
  }
  split(here, text, next);
}

void PreTokenizer::split(const Step& step, std::string_view text, const Sink& piece) const {
  const auto& rule = std::get<SplitStep>(step.what);
  std::vector<TextRange> matches;
  if (step.word_end != nullptr) {
    walk(text, step.word_end, [&](std::string_view word) {
      const auto begin = static_cast<std::size_t>(word.data() - text.data());
      matches.push_back({begin, begin + word.size()});
    });
  } else {
    step.regex->matches(text, matches);
  }
  std::vector<Piece> pieces;
  std::size_t done = 0;
  for (const TextRange& match : matches) {
    if (match.begin > done) pieces.push_back({done, match.begin, rule.invert});
    pieces.push_back({match.begin, match.end, !rule.invert});
    done = match.end;
  }
  if (done < text.size()) pieces.push_back({done, text.size(), rule.invert});
  if (rule.behavior != SplitBehavior::Isolated && rule.behavior != SplitBehavior::Removed)
    pieces = join(pieces, rule.behavior);
  for (const Piece& found : pieces) {
    if (found.begin == found.end || (rule.behavior == SplitBehavior::Removed && found.match)) continue;
    piece(text.substr(found.begin, found.end - found.begin));
  }
}

}  // namespace essh
