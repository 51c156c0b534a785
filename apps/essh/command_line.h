#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// The command line of essh: a wrapper that keeps CLI11, 4.5 s of compile time, in command_line.cpp.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace essh::verbs {

class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option* required();
  // Allows a list in one word, e.g. T1,T4.
  Option* delimiter(char separator);
  Option* capture_default_str();
  Option* excludes(const Option* other);
  // false: every value of a list needs the option's name again.
  Option* allow_extra_args(bool allow);
  Option* type_name(const std::string& name);
  Option* one_of(const std::vector<std::string>& values);
  Option* existing_file();
  // Checks a value, may rewrite it, and returns what is wrong with it (empty if valid). The help shows `range` after
  // the type.
  Option* transform(std::function<std::string(std::string&)> check, const std::string& range);

  // How many times the command line has the option.
  std::size_t count() const;

 private:
  CLI::Option* option_;
};

// Connects an option's values to a variable.
struct Binding {
  std::string type;   // TEXT, INT ...
  bool list = false;  // takes one or more values
  std::function<void(const std::vector<std::string>&)> set;
  std::function<std::string()> text;  // the variable's value, for the help
};

// An option as the help shows it.
struct OptionFacts {
  std::vector<std::string> long_names, short_names;
  std::string name;   // the positional name, or the first one
  std::string names;  // all of them
  std::string help, type, default_text;
  bool required = false, positional = false, takes_value = false;
};

// A command, with its options and the commands below it. The root is the program.
class Verb {
 public:
  Verb(const std::string& name, const std::string& help);
  ~Verb();
  Verb(const Verb&) = delete;
  Verb& operator=(const Verb&) = delete;

  Verb* add_subcommand(const std::string& name, const std::string& help);
  Option* add_option(const std::string& names, std::string& value, const std::string& help);
  Option* add_option(const std::string& names, std::filesystem::path& value, const std::string& help);
  Option* add_option(const std::string& names, std::vector<std::string>& values, const std::string& help);
  Option* add_option(const std::string& names, std::vector<std::filesystem::path>& values, const std::string& help);
  Option* add_bound(const std::string& names, const Binding& binding, const std::string& help);
  Option* add_flag(const std::string& names, bool& value, const std::string& help);
  Option* add_flag_callback(const std::string& names, std::function<void()> action, const std::string& help);
  void callback(std::function<void()> action);
  void footer(const std::string& text);
  void version(const std::string& text);
  void require_subcommand(int count);
  // Hides the verb from the help.
  void hide();
  // Allows options of this verb after the verbs below it.
  void fallthrough();

  // Parses the command line and runs the verb, or prints the help or version. A mistake is an Error of kind Usage that
  // names the nearest known verb or option.
  void run(int argc, char** argv);

  std::string name() const;
  std::string description() const;
  std::string footer_text() const;
  bool hidden() const;
  std::vector<const Verb*> verbs() const;
  std::vector<const Verb*> shown_verbs() const;
  std::vector<OptionFacts> options() const;
  // `before`: the names of the verbs above.
  std::string help(const std::string& before) const;

 private:
  explicit Verb(CLI::App* app);
  Option* keep(CLI::Option* option);

  std::unique_ptr<CLI::App> root_;
  CLI::App* app_;
  std::vector<std::unique_ptr<Verb>> verbs_;
  std::vector<std::unique_ptr<Option>> options_;
};

}  // namespace essh::verbs
