#include "essh/evaluate/report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "essh/base/json.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {

std::string step_line(int step, double loss) {
  return fmt::format(
      R"({{"kind":"step","step":{},"tokens":{},"loss":{},"full_loss":{},"reduced_loss":null,"distillation":0.25,)"
      R"("lr":0.001,"grad_norm":1.5,"tokens_per_second":1000,"mfu":0.5,"shares":{{"0.05":3,"1":5}},"seconds":{}}})"
      "\n",
      step, 1000 * step, loss, loss, 2 * step);
}

std::string validation_line(int step, double t1, double t10) {
  return fmt::format(R"({{"kind":"validation","step":{},"tokens":{},"tiers":{{"T1":{},"T10":{}}}}})"
                     "\n",
                     step, 1000 * step, t1, t10);
}

struct ReportTest : TempFolderTest {
  RunMetrics metrics_of(std::string_view text) {
    write_durably(folder / "metrics.jsonl", text);
    return read_metrics(folder / "metrics.jsonl");
  }
};

TEST_F(ReportTest, ReadsStepsAndValidations) {
  const auto metrics =
      metrics_of(step_line(1, 6) + validation_line(1, 5, 4) + "\n{\"kind\":\"note\"}\n" + step_line(2, 5));
  ASSERT_EQ(metrics.steps.size(), 2u);
  EXPECT_EQ(metrics.steps[1].tokens, 2000);
  EXPECT_EQ(metrics.steps[1].full_loss, 5);
  EXPECT_TRUE(std::isnan(metrics.steps[1].reduced_loss));
  EXPECT_EQ(metrics.steps[1].shares, (std::map<double, std::int64_t>{{0.05, 3}, {1, 5}}));
  ASSERT_EQ(metrics.validations.size(), 1u);
  EXPECT_EQ(metrics.validations[0].tiers, (std::vector<std::pair<std::string, double>>{{"T1", 5}, {"T10", 4}}));
  EXPECT_FALSE(metrics.torn);
}

TEST_F(ReportTest, StepsRepeatedAfterAResumeCountOnce) {
  const auto metrics = metrics_of(step_line(1, 6) + step_line(2, 5) + step_line(3, 4) + validation_line(3, 4, 3) +
                                  step_line(2, 5.5) + step_line(3, 4.5) + validation_line(3, 4.2, 3.1));
  ASSERT_EQ(metrics.steps.size(), 3u);
  EXPECT_EQ(metrics.steps[1].loss, 5.5);
  EXPECT_EQ(metrics.steps[2].loss, 4.5);
  ASSERT_EQ(metrics.validations.size(), 1u);
  EXPECT_EQ(metrics.validations[0].tiers[0].second, 4.2);
}

TEST_F(ReportTest, OnlyATornLastLineIsLeftOut) {
  const auto whole = step_line(1, 6) + step_line(2, 5);
  for (std::size_t cut = step_line(1, 6).size() + 1; cut + 2 < whole.size(); ++cut) {
    const auto metrics = metrics_of(whole.substr(0, cut));
    EXPECT_EQ(metrics.steps.size(), 1u) << cut;
    EXPECT_TRUE(metrics.torn) << cut;
  }
  EXPECT_EQ(metrics_of(whole.substr(0, whole.size() - 1)).steps.size(), 2u) << "complete but for its line break";
  const auto message = [&](const std::string& second) {
    return message_of([&] { metrics_of(step_line(1, 6) + second + step_line(3, 4)); });
  };
  for (const auto& second : {std::string("{\"kind\":\n"), std::string("[]\n"), std::string("{\"step\":2}\n"),
                             std::string("{\"kind\":\"step\",\"step\":2}\n"),
                             std::string("{\"kind\":\"step\",\"step\":2,\"tokens\":1,\"loss\":\"x\"}\n"),
                             std::string("{\"kind\":\"step\",\"step\":2,\"tokens\":1,\"shares\":{\"a\":1}}\n"),
                             std::string("{\"kind\":\"validation\",\"step\":2,\"tokens\":1}\n")}) {
    EXPECT_NE(message(second).find("metrics.jsonl: line 2"), std::string::npos) << second << message(second);
  }
}

TEST_F(ReportTest, APageStandsAloneAndEscapesWhatItShows) {
  std::string lines;
  for (int step = 1; step <= 1000; ++step) {
    lines += step_line(step, 6 - 0.003 * step);
    if (step % 250 == 0) lines += validation_line(step, 5 - 0.001 * step, 4 - 0.001 * step);
  }
  write_durably(folder / "metrics.jsonl", lines);
  EXPECT_EQ(to_html(read_run(folder)).find("Refinement"), std::string::npos);
  write_durably(folder / "refine-metrics.jsonl", step_line(1, 4) + validation_line(1, 3.5, 2.5));
  write_durably(folder / "recipe.yaml", "name: <script>alert(1)</script> & more\n");
  Frontier frontier{.data = "text", .context = 512, .tokens = 1000, .depth = 64, .threads = 2};
  frontier.points = {{.model = "m", .tier = "T<1>", .channels = 8, .ffn = 64, .parameters = 1000, .perplexity = 9},
                     {.model = "m", .tier = "T10", .channels = 32, .ffn = 1024, .parameters = 4000, .perplexity = 5}};
  write_durably(folder / "frontier.json", to_text(to_json(frontier)));
  const auto page = to_html(read_run(folder));

  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;alert(1)&lt;/script&gt; &amp; more"), std::string::npos);
  EXPECT_NE(page.find("T&lt;1&gt;"), std::string::npos);
  for (const char* outside : {"http:", "https:", "src=", "href=", "url(", "@import"}) {
    for (auto at = page.find(outside); at != std::string::npos; at = page.find(outside, at + 1))
      EXPECT_EQ(page.compare(at - 7, 33, "xmlns=\"http://www.w3.org/2000/svg"), 0) << page.substr(at - 20, 60);
  }
  for (const char* title :
       {"Training loss", "Validation loss", "Pretraining", "Refinement", "Share of micro-batches", "Learning rate",
        "Throughput", "Gradient norm", "Quality against size", "Recipe", "mean of 4 steps"}) {
    EXPECT_NE(page.find(title), std::string::npos) << title;
  }
  EXPECT_NE(page.find(fmt::format("{:.3f}", std::exp(3.0))), std::string::npos) << "T10's perplexity at the end";
  EXPECT_NE(page.find(fmt::format("<dt>perplexity T10, refined</dt><dd>{:.2f}</dd>", std::exp(2.5))),
            std::string::npos);
  EXPECT_LT(page.size(), 400'000u);
}

TEST_F(ReportTest, TimeIsTheSumOfSessions) {
  // Two seconds per step: a session of 100 steps, then one of 50 whose clock starts at zero.
  std::string lines;
  for (int step = 1; step <= 100; ++step) lines += step_line(step, 5);
  for (int step = 1; step <= 50; ++step) {
    auto line = step_line(step, 5);
    line.replace(line.find("\"step\":"), 7 + std::to_string(step).size(), fmt::format("\"step\":{}", 100 + step));
    lines += line;
  }
  write_durably(folder / "metrics.jsonl", lines);
  const auto page = to_html(read_run(folder));
  EXPECT_NE(page.find("<dt>steps</dt><dd>150</dd>"), std::string::npos);
  EXPECT_NE(page.find("<dt>time</dt><dd>5m 00s</dd>"), std::string::npos) << page.substr(page.find("<dt>time"), 60);
}

TEST_F(ReportTest, ARunAtItsBeginningHasAPage) {
  write_durably(folder / "metrics.jsonl", "");
  EXPECT_NE(to_html(read_run(folder)).find("No step is recorded yet"), std::string::npos);
  const auto message = message_of([&] { read_run(folder / "absent"); });
  EXPECT_NE(message.find("no metrics.jsonl"), std::string::npos) << message;
}

}  // namespace
}  // namespace essh
