#include "essh/evaluate/report.h"

#include <memory>

#include "apps/essh/output_file.h"
#include "apps/essh/verbs.h"
#include "essh/base/file.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {

struct ReportOptions {
  std::filesystem::path run, out;
};

void run(const ReportOptions& o) {
  if (!std::filesystem::is_directory(o.run))
    fail(ErrorKind::BadFile, "{}: no such folder; name the one that `essh train` wrote", o.run.string());
  const auto out = o.out.empty() ? o.run / kRunReport : o.out;
  check_output_file(out);
  write_durably(out, to_html(read_run(o.run)));
  fmt::print("{}\n", out.string());
}

}  // namespace

void add_report(Verb& app) {
  auto* verb = app.add_subcommand("report", "one HTML page of a run: losses, capacities, throughput, frontier");
  auto o = std::make_shared<ReportOptions>();
  verb->add_option("RUN", o->run, "the folder of a training run")->required();
  verb->add_option("-o,--out", o->out, "the page (default: RUN/report.html)");
  verb->footer("Example: essh report runs/tiny -o report.html");
  verb->callback([o] { run(*o); });
}

}  // namespace essh::verbs
