#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/essh/verbs.h"
#include "essh/base/file.h"

// Completion for three shells and manual pages, generated from the program's own options.
namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

// A verb and its path: "bench", "decode".
struct Place {
  const Verb* verb;
  std::vector<std::string> words;
};

std::vector<Place> places_of(const Verb& app) {
  std::vector<Place> places;
  const std::function<void(const Verb&, std::vector<std::string>)> visit = [&](const Verb& at,
                                                                               std::vector<std::string> words) {
    places.push_back({&at, words});
    for (const auto* sub : at.shown_verbs()) {
      auto longer = words;
      longer.push_back(sub->name());
      visit(*sub, longer);
    }
  };
  visit(app, {});
  return places;
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  return fmt::format("{}", fmt::join(words, between));
}

std::vector<std::string> option_names(const Verb& verb) {
  std::vector<std::string> names;
  for (const auto& option : verb.options()) {
    for (const auto& name : option.long_names) names.push_back("--" + name);
    for (const auto& name : option.short_names) names.push_back("-" + name);
  }
  return names;
}

std::vector<std::string> sub_names(const Verb& verb) {
  std::vector<std::string> names;
  for (const auto* sub : verb.shown_verbs()) names.push_back(sub->name());
  return names;
}

std::string bash_completion(const Verb& app) {
  std::string cases;
  for (const auto& place : places_of(app)) {
    auto words = sub_names(*place.verb);
    for (const auto& name : option_names(*place.verb)) words.push_back(name);
    cases += fmt::format("    \"{}\") words=\"{}\" ;;\n", joined(place.words, " "), joined(words, " "));
  }
  return fmt::format(R"(# bash completion of essh; made by the program itself.
_essh() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} verb='' word words i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${{COMP_WORDS[i]}}
    case " $(_essh_verbs "$verb") " in
      *" $word "*) verb+="${{verb:+ }}$word" ;;
    esac
  done
  words=$(_essh_words "$verb")
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ $current != -* ]]; then COMPREPLY+=($(compgen -f -- "$current")); fi
}}
_essh_words() {{
  local words=''
  case $1 in
{}  esac
  printf '%s' "$words"
}}
_essh_verbs() {{
  local word
  for word in $(_essh_words "$1"); do
    if [[ $word != -* ]]; then printf '%s ' "$word"; fi
  done
}}
complete -o filenames -F _essh essh
)",
                     cases);
}

// Quotes for '...' in a shell, in the form that fish and zsh share.
std::string quoted(std::string text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') continue;
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string zsh_completion(const Verb& app) {
  std::string cases;
  for (const auto& place : places_of(app)) {
    std::string lines;
    const auto add = [&](const std::string& word, const std::string& help) {
      std::string escaped;
      for (const char c : quoted(help)) escaped += c == ':' ? "\\:" : std::string(1, c);
      lines += fmt::format("      '{}:{}'\n", word, escaped);
    };
    for (const auto* sub : place.verb->shown_verbs()) add(sub->name(), sub->description());
    for (const auto& option : place.verb->options()) {
      for (const auto& name : option.long_names) add("--" + name, option.help);
    }
    cases += fmt::format("    '{}') reply=(\n{}    ) ;;\n", joined(place.words, " "), lines);
  }
  return fmt::format(R"(#compdef essh
# zsh completion of essh; made by the program itself.
_essh_words() {{
  case $1 in
{}  esac
}}
_essh() {{
  local verb='' word
  local -a reply
  for word in ${{words[2,CURRENT-1]}}; do
    reply=()
    _essh_words "$verb"
    if [[ $word != -* ]] && (( ${{reply[(I)${{word}}:*]}} )); then verb+="${{verb:+ }}$word"; fi
  done
  reply=()
  _essh_words "$verb"
  _describe -o 'essh' reply
  _files
}}
_essh "$@"
)",
                     cases);
}

std::string fish_completion(const Verb& app) {
  std::string lines = "# fish completion of essh; made by the program itself.\n";
  for (const auto& place : places_of(app)) {
    std::vector<std::string> conditions;
    for (const auto& word : place.words) conditions.push_back("__fish_seen_subcommand_from " + word);
    const auto subs = sub_names(*place.verb);
    if (!subs.empty()) conditions.push_back("not __fish_seen_subcommand_from " + joined(subs, " "));
    const auto when = conditions.empty() ? "" : fmt::format(" -n '{}'", joined(conditions, "; and "));
    for (const auto* sub : place.verb->shown_verbs())
      lines += fmt::format("complete -c essh{} -a {} -d '{}'\n", when, sub->name(), quoted(sub->description()));
    for (const auto& option : place.verb->options()) {
      std::string names;
      for (const auto& name : option.long_names) names += " -l " + name;
      for (const auto& name : option.short_names) names += " -s " + name;
      if (names.empty()) continue;
      lines += fmt::format("complete -c essh{}{}{} -d '{}'\n", when, names, option.takes_value ? " -r" : "",
                           quoted(option.help));
    }
  }
  return lines;
}

// Escapes for roff: no line may begin with a dot or a quote, and a typed hyphen is not a dash.
std::string roff(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = i == 0 || text[i - 1] == '\n';
    if (begins && (text[i] == '.' || text[i] == '\'')) out += "\\&";
    if (text[i] == '\\')
      out += "\\e";
    else if (text[i] == '-')
      out += "\\-";
    else
      out += text[i];
  }
  return out;
}

std::string man_page(const Place& place, const std::string& version) {
  const auto& verb = *place.verb;
  auto words = place.words;
  words.insert(words.begin(), "essh");
  std::string page = fmt::format(".TH {} 1 \"\" \"essh {}\" \"essh\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B {}\n",
                                 roff(joined(words, "-")), version, roff(joined(words, "-")), roff(verb.description()),
                                 roff(joined(words, " ")));
  if (!sub_names(verb).empty()) page += ".I VERB\n";
  page += "[options]\n";
  for (const auto& option : verb.options()) {
    if (!option.positional) continue;
    const auto name = roff(option.name);
    page += option.required ? fmt::format(".I {}\n", name) : fmt::format("[\\fI{}\\fR]\n", name);
  }
  const auto entry = [&](const std::string& name, const std::string& help) {
    page += fmt::format(".TP\n.B {}\n{}\n", roff(name), roff(help));
  };
  if (!sub_names(verb).empty()) {
    page += ".SH VERBS\n";
    for (const auto* sub : verb.shown_verbs()) entry(sub->name(), sub->description());
  }
  page += ".SH OPTIONS\n";
  for (const auto& option : verb.options()) {
    const auto type = option.takes_value ? " " + option.type : "";
    const auto value = option.default_text;
    entry(option.names + type, option.help + (value.empty() ? "" : fmt::format(" (default {})", value)));
  }
  if (const auto footer = verb.footer_text(); !footer.empty())
    page += fmt::format(".SH EXAMPLES AND NOTES\n.nf\n{}\n.fi\n", roff(footer));
  if (!place.words.empty()) page += ".SH SEE ALSO\n.BR essh (1)\n";
  return page;
}

void run(const Verb& app, const fs::path& folder) {
  const auto put = [&](const fs::path& name, const std::string& text) {
    make_folder((folder / name).parent_path());
    write_durably(folder / name, text);
  };
  put("bash-completion/completions/essh", bash_completion(app));
  put("zsh/site-functions/_essh", zsh_completion(app));
  put("fish/vendor_completions.d/essh.fish", fish_completion(app));
  for (const auto& place : places_of(app)) {
    auto words = place.words;
    words.insert(words.begin(), "essh");
    put(fs::path("man/man1") / (joined(words, "-") + ".1"), man_page(place, ESSH_VERSION));
  }
}

}  // namespace

void add_install_files(Verb& app) {
  auto* verb = app.add_subcommand("install-files", "completion for shells and manual pages, into a folder");
  verb->hide();
  const auto folder = std::make_shared<std::string>();
  verb->add_option("FOLDER", *folder, "what becomes PREFIX/share")->required();
  verb->footer("Example: essh install-files build/share");
  verb->callback([&app, folder] { run(app, *folder); });
}

}  // namespace essh::verbs
