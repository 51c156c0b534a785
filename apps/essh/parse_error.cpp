#include "apps/essh/parse_error.h"

#include <fmt/format.h>

#include <vector>

#include "essh/base/spelling.h"
#include "essh/base/utf8.h"

namespace essh::verbs {
namespace {

std::vector<std::string> verb_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* verb : app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); }))
    names.push_back(verb->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* verb = &app; verb != nullptr; verb = verb->get_parent()) {
    for (const auto* option : verb->get_options()) {
      for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return names;
}

}  // namespace

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  // The innermost verb that was recognised.
  const auto* verb = &app;
  std::string words = "essh";
  while (!verb->get_subcommands().empty()) {
    verb = verb->get_subcommands().front();
    words += " " + verb->get_name();
  }
  std::string what = error.what();
  // CLI11 reports a missing verb before the word that stands in its place.
  const auto extra = app.remaining(true);
  const bool wants_verb = !verb_names(*verb).empty() && verb->get_subcommands().empty();
  if (!extra.empty()) {
    const auto word = extra.front().substr(0, extra.front().find('='));
    if (word.starts_with("-")) {
      what = fmt::format("unknown option {}{}", in_quotes(word), suggestion(word, option_names(*verb)));
    } else if (wants_verb) {
      what = fmt::format("unknown verb {}{}", in_quotes(word), suggestion(word, verb_names(*verb)));
    } else {
      what = fmt::format("{} was not expected", in_quotes(word));
    }
  } else if (wants_verb && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    what = fmt::format("say what to do: {}", fmt::join(verb_names(*verb), ", "));
  }
  const auto place = verb == &app ? std::string() : words.substr(words.find(' ') + 1) + ": ";
  return fmt::format("{}{}\n`{} --help` lists what there is", place, what, words);
}

}  // namespace essh::verbs
