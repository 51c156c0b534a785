#pragma once
#include "apps/essh/command_line.h"

// Each function adds one verb with its options and callback. Results go to standard output, messages to standard error.
namespace essh::verbs {

void add_init(Verb& app);
void add_info(Verb& app);
void add_spectral(Verb& app);
void add_tokenizer(Verb& app);
void add_prepare(Verb& app);
void add_train(Verb& app);
void add_refine(Verb& app);
void add_report(Verb& app);
void add_export(Verb& app);
void add_verify(Verb& app);
void add_logits(Verb& app);
void add_evaluate(Verb& app);
void add_frontier(Verb& app);
void add_plan(Verb& app);
void add_generate(Verb& app);
void add_chat(Verb& app);
void add_serve(Verb& app);
void add_bench(Verb& app);
void add_doctor(Verb& app);
void add_help(Verb& app);
// Hidden: writes the completion files and manual pages for `cmake --install`.
void add_install_files(Verb& app);

// Adds all verbs, in the order of the help.
void add_all(Verb& app);

}  // namespace essh::verbs
