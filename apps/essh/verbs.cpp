#include "apps/essh/verbs.h"

namespace essh::verbs {

void add_all(Verb& app) {
  add_init(app);
  add_info(app);
  add_spectral(app);
  add_tokenizer(app);
  add_prepare(app);
  add_train(app);
  add_refine(app);
  add_report(app);
  add_export(app);
  add_verify(app);
  add_logits(app);
  add_evaluate(app);
  add_frontier(app);
  add_plan(app);
  add_generate(app);
  add_chat(app);
  add_serve(app);
  add_bench(app);
  add_doctor(app);
  add_help(app);
  add_install_files(app);
}

}  // namespace essh::verbs
