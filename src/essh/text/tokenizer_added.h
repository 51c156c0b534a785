#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "essh/text/tokenizer.h"

namespace essh {

// A token matched in the raw text, before the text is split into words.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  // matches only without adjacent letters or digits
  bool lstrip = false;       // includes the spaces before it
  bool rstrip = false;
  bool normalized = false;  // matched after those that are not normalized
  bool special = false;     // a control token such as end of text, not text
};

// Finds a set of added tokens: leftmost match, then longest.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  // Calls text(std::string_view) and token(id) in the order of the text; pieces of text are never empty.
  template <class Text, class Token>
  void split(std::string_view text, bool parse_special, Text&& on_text, Token&& on_token) const {
    std::size_t done = 0;
    std::size_t from = 0;
    while (const auto match = find(text, from)) {
      from = match->end;
      std::size_t begin = match->begin;
      std::size_t end = match->end;
      if (!accept(text, *match->token, parse_special, done, begin, end)) continue;
      if (done < begin) on_text(text.substr(done, begin - done));
      on_token(match->token->id);
      done = end;
    }
    if (done < text.size()) on_text(text.substr(done));
  }

 private:
  struct Match {
    const AddedToken* token;
    std::size_t begin;
    std::size_t end;
  };
  std::optional<Match> find(std::string_view text, std::size_t from) const;
  const AddedToken* longest_at(std::string_view text, std::size_t begin) const;
  // Whether the match is valid; extends [begin, end) by stripped spaces, not before `done`.
  bool accept(std::string_view text, const AddedToken& token, bool parse_special, std::size_t done, std::size_t& begin,
              std::size_t& end) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<bool, 256> starts_{};  // first bytes of the tokens
  std::string start_list_;
};

}  // namespace essh
