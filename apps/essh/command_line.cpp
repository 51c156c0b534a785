#include "apps/essh/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "essh/base/error.h"
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

// The mistake, the nearest known verb or option, and the place of the help.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  // The innermost verb that was recognised.
  const auto* verb = &app;
  std::string words = app.get_name();
  while (!verb->get_subcommands().empty()) {
    verb = verb->get_subcommands().front();
    words += " " + verb->get_name();
  }
  std::string what = error.what();
  // CLI11 reports a missing verb before the unknown word in its place.
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

// Formats one value, or all of a list.
template <class Text>
Binding bind_text(Text& value) {
  return {.type = "TEXT",
          .list = false,
          .set = [&value](const std::vector<std::string>& words) { value = words.front(); },
          .text = [&value] { return fmt::format("{}", std::filesystem::path(value).string()); }};
}
template <class Text>
Binding bind_texts(std::vector<Text>& values) {
  return {.type = "TEXT",
          .list = true,
          .set = [&values](const std::vector<std::string>& words) { values.assign(words.begin(), words.end()); },
          .text =
              [&values] {
                std::vector<std::string> words;
                for (const auto& value : values) words.push_back(std::filesystem::path(value).string());
                return fmt::format("[{}]", fmt::join(words, ","));
              }};
}

}  // namespace

Option* Option::required() {
  option_->required();
  return this;
}
Option* Option::delimiter(char separator) {
  option_->delimiter(separator);
  return this;
}
Option* Option::capture_default_str() {
  option_->capture_default_str();
  return this;
}
Option* Option::excludes(const Option* other) {
  option_->excludes(other->option_);
  return this;
}
Option* Option::allow_extra_args(bool allow) {
  option_->allow_extra_args(allow);
  return this;
}
Option* Option::type_name(const std::string& name) {
  option_->type_name(name);
  return this;
}
Option* Option::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return this;
}
Option* Option::existing_file() {
  option_->check(CLI::ExistingFile);
  return this;
}
Option* Option::transform(std::function<std::string(std::string&)> check, const std::string& range) {
  option_->transform(CLI::Validator(std::move(check), range));
  return this;
}
std::size_t Option::count() const {
  return option_->count();
}

Verb::Verb(const std::string& name, const std::string& help)
    : root_(std::make_unique<CLI::App>(help, name)), app_(root_.get()) {}
Verb::Verb(CLI::App* app) : app_(app) {}
Verb::~Verb() = default;

Verb* Verb::add_subcommand(const std::string& name, const std::string& help) {
  return verbs_.emplace_back(new Verb(app_->add_subcommand(name, help))).get();
}

Option* Verb::keep(CLI::Option* option) {
  return options_.emplace_back(std::make_unique<Option>(option)).get();
}

Option* Verb::add_option(const std::string& names, std::string& value, const std::string& help) {
  return add_bound(names, bind_text(value), help);
}
Option* Verb::add_option(const std::string& names, std::filesystem::path& value, const std::string& help) {
  return add_bound(names, bind_text(value), help);
}
Option* Verb::add_option(const std::string& names, std::vector<std::string>& values, const std::string& help) {
  return add_bound(names, bind_texts(values), help);
}
Option* Verb::add_option(const std::string& names, std::vector<std::filesystem::path>& values,
                         const std::string& help) {
  return add_bound(names, bind_texts(values), help);
}

Option* Verb::add_bound(const std::string& names, const Binding& binding, const std::string& help) {
  const CLI::callback_t set = [set = binding.set](const CLI::results_t& words) {
    set(words);
    return true;
  };
  auto* option = app_->add_option(names, set, help, false, binding.text);
  option->type_name(binding.type);
  if (binding.list) option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args();
  return keep(option);
}

Option* Verb::add_flag(const std::string& names, bool& value, const std::string& help) {
  return keep(app_->add_flag(names, value, help));
}
Option* Verb::add_flag_callback(const std::string& names, std::function<void()> action, const std::string& help) {
  return keep(app_->add_flag_callback(names, std::move(action), help));
}

void Verb::callback(std::function<void()> action) {
  app_->callback(std::move(action));
}
void Verb::footer(const std::string& text) {
  app_->footer(text);
}
void Verb::version(const std::string& text) {
  app_->set_version_flag("--version", text);
}
void Verb::require_subcommand(int count) {
  app_->require_subcommand(count);
}
void Verb::hide() {
  app_->group("");
}
void Verb::fallthrough() {
  app_->fallthrough();
}

void Verb::run(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) fail(ErrorKind::Usage, "{}", explain(*app_, error));
    app_->exit(error);  // help or version
  }
}

std::string Verb::name() const {
  return app_->get_name();
}
std::string Verb::description() const {
  return app_->get_description();
}
std::string Verb::footer_text() const {
  return app_->get_footer();
}
bool Verb::hidden() const {
  return app_->get_group().empty();
}

std::vector<const Verb*> Verb::verbs() const {
  std::vector<const Verb*> all;
  for (const auto& verb : verbs_) all.push_back(verb.get());
  return all;
}

std::vector<const Verb*> Verb::shown_verbs() const {
  std::vector<const Verb*> shown;
  for (const auto& verb : verbs_) {
    if (!verb->hidden()) shown.push_back(verb.get());
  }
  return shown;
}

std::vector<OptionFacts> Verb::options() const {
  std::vector<OptionFacts> facts;
  for (const CLI::Option* option : std::as_const(*app_).get_options()) {
    facts.push_back({.long_names = option->get_lnames(),
                     .short_names = option->get_snames(),
                     .name = option->get_name(),
                     .names = option->get_name(false, true),
                     .help = option->get_description(),
                     .type = option->get_type_name(),
                     .default_text = option->get_default_str(),
                     .required = option->get_required(),
                     .positional = !option->nonpositional(),
                     .takes_value = option->get_items_expected() > 0});
  }
  return facts;
}

std::string Verb::help(const std::string& before) const {
  return app_->help(before);
}

}  // namespace essh::verbs
