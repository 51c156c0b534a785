#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace essh::verbs {

// What is wrong with a command line, the nearest known verb or option, and where the help is.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

}  // namespace essh::verbs
