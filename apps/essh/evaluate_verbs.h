#pragma once
#include "apps/essh/command_line.h"

namespace essh::verbs {

// Verbs of `essh evaluate` in separate files.
void add_evaluate_channels(Verb& verb);
void add_evaluate_cost(Verb& verb);
void add_evaluate_dna(Verb& verb);
void add_evaluate_length(Verb& verb);
void add_evaluate_niah(Verb& verb);
void add_evaluate_tasks(Verb& verb);

}  // namespace essh::verbs
