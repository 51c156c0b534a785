#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/evaluate/report.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/scratch_folder.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

// A run folder with damage in metrics.jsonl, frontier.json or recipe.yaml: refused, or steps increase and a page can be
// rendered.
class MetricsFuzzer {
 public:
  explicit MetricsFuzzer(std::uint64_t seed)
      : folder_(fuzz::scratch_folder() / fmt::format("essh-fuzz-metrics-{}-{}", ::getpid(), seed)),
        mutator_(seed, {"{",
                        "}",
                        "[",
                        "]",
                        ",",
                        ":",
                        "\"",
                        "\n",
                        "null",
                        "true",
                        "-1",
                        "1e308",
                        "-1e308",
                        "1e999",
                        "0",
                        "1e-320",
                        "\"kind\": \"step\"",
                        "\"kind\": \"validation\"",
                        "\"kind\": \"other\"",
                        "\"step\": 1",
                        "\"shares\": {}",
                        "\"shares\": {\"0.5\": 3}",
                        "\"tiers\": {}",
                        "\"nan\": 1",
                        "\"inf\": 1",
                        "9223372036854775807",
                        "</script>",
                        "\\u0000",
                        "\\ud800",
                        "\xff",
                        std::string(1, '\0'),
                        std::string(80, '[')}) {
    fs::remove_all(folder_);
    make_folder(folder_);
    std::string metrics;
    for (int step = 1; step <= 6; ++step) {
      metrics +=
          fmt::format(R"({{"kind": "step", "step": {0}, "tokens": {1}, "loss": {2}, "full_loss": {2}, )"
                      R"("reduced_loss": null, "distillation": 0.1, "lr": 0.001, "grad_norm": 1.5, )"
                      R"("tokens_per_second": 1000, "mfu": 0.2, "shares": {{"0.0625": 1, "1": 3}}, "seconds": {0}}})"
                      "\n",
                      step, 512 * step, 5 - 0.5 * step);
      if (step % 3 == 0) {
        metrics +=
            fmt::format(R"({{"kind": "validation", "step": {}, "tokens": {}, "tiers": {{"T1": 4.5, "T10": 3.25}}}})"
                        "\n",
                        step, 512 * step);
      }
    }
    Frontier frontier{.data = "text", .context = 8, .tokens = 16, .depth = 4, .threads = 2, .processor = "p"};
    for (const Index tier : {1, 10}) {
      FrontierPoint point{.model = "m",
                          .tier = fmt::format("T{}", tier),
                          .channels = tier,
                          .ffn = 64 * tier,
                          .parameters = 1000 * tier};
      point.parameter_fraction = 0.1 * static_cast<double>(tier);
      point.nll = point.perplexity = 10.5 / static_cast<double>(tier);
      point.latency.decode_ms = 0.1;
      point.nll_difference = 0.5;
      frontier.points.push_back(point);
    }
    files_ = {{"metrics.jsonl", metrics},
              {"refine-metrics.jsonl", metrics.substr(0, metrics.size() / 2)},
              {"frontier.json", to_text(to_json(frontier), 2)},
              {"recipe.yaml", "model: {preset: tiny}\nrun: {steps: 6}\n"}};
    for (const auto& [name, text] : files_) write(name, text);
  }
  MetricsFuzzer(MetricsFuzzer&&) = default;
  ~MetricsFuzzer() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }

  void operator()() {
    const auto& [name, good] = mutator_.one_in(2) ? files_[0] : mutator_.pick(files_);
    auto image = good;
    do mutator_.mutate_json(image, mutator_.pick(files_).second);
    while (mutator_.one_in(3));
    write(name, image);
    const struct Restore {
      MetricsFuzzer& owner;
      const std::string &file, &text;
      ~Restore() { owner.write(file, text); }
    } restore{*this, name, good};
    const auto report = read_run(folder_);
    for (const auto* metrics : {&report.metrics, report.refinement ? &*report.refinement : &report.metrics}) {
      rises(metrics->steps);
      rises(metrics->validations);
    }
    if (!mutator_.one_in(4)) return;  // a page takes longer than everything else
    const auto page = to_html(report);
    if (page.find("</script>") != std::string::npos) throw std::logic_error("the page is not escaped");
  }

 private:
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
  }
  template <class Record>
  static void rises(const std::vector<Record>& records) {
    for (std::size_t i = 1; i < records.size(); ++i) {
      if (records[i].step <= records[i - 1].step) throw std::logic_error("steps do not rise");
    }
  }

  fs::path folder_;
  std::vector<std::pair<std::string, std::string>> files_;
  fuzz::Mutator mutator_;
};

const fuzz::Registered<MetricsFuzzer> kMetricsFuzzer("metrics");

}  // namespace
}  // namespace essh
