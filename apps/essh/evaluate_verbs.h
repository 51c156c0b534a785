#pragma once
#include "apps/essh/command_line.h"

namespace essh::verbs {

// The measurements of `essh evaluate` that have files of their own.
void add_evaluate_channels(Verb& verb);
void add_evaluate_cost(Verb& verb);
void add_evaluate_dna(Verb& verb);
void add_evaluate_length(Verb& verb);
void add_evaluate_niah(Verb& verb);
void add_evaluate_tasks(Verb& verb);

}  // namespace essh::verbs
