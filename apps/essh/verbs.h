#pragma once
#include <CLI/CLI.hpp>

// Each verb adds its sub-command and, as callback, what runs it. Results go to standard output, words to standard error.
namespace essh::verbs {

void add_prepare(CLI::App& app);

// All of them, in the order of the help.
void add_all(CLI::App& app);

}  // namespace essh::verbs
