#pragma once
#include <CLI/CLI.hpp>

// Each verb adds its sub-command and, as callback, what runs it. Results go to standard output, words to standard
// error.
namespace essh::verbs {

void add_init(CLI::App& app);
void add_info(CLI::App& app);
void add_spectral(CLI::App& app);
void add_tokenizer(CLI::App& app);
void add_prepare(CLI::App& app);
void add_train(CLI::App& app);
void add_refine(CLI::App& app);
void add_report(CLI::App& app);
void add_export(CLI::App& app);
void add_verify(CLI::App& app);
void add_logits(CLI::App& app);
void add_evaluate(CLI::App& app);
void add_frontier(CLI::App& app);
void add_generate(CLI::App& app);
void add_bench(CLI::App& app);
void add_doctor(CLI::App& app);
void add_help(CLI::App& app);
// Hidden: writes what `cmake --install` puts beside the binary.
void add_install_files(CLI::App& app);

// All of them, in the order of the help.
void add_all(CLI::App& app);

}  // namespace essh::verbs
