#include "essh/evaluate/frontier.h"

#include <gtest/gtest.h>

#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/model/cost.h"
#include "tests/evaluate/small_engine.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {

FrontierPoint point(const std::string& tier, Index parameters, double perplexity, double ms) {
  FrontierPoint p{.model = "family", .tier = tier, .channels = 1, .ffn = 64, .parameters = parameters};
  p.perplexity = perplexity;
  p.nll = perplexity > 0 ? 1 : 0;
  p.latency.decode_ms = ms;
  p.parameter_fraction = static_cast<double>(parameters) / 400;
  p.family_hash = "f";
  return p;
}

Frontier example() {
  return {.data = "held, \"out\"",
          .context = 512,
          .tokens = 1000,
          .depth = 64,
          .threads = 2,
          .processor = "a processor",
          .points = {point("T1", 100, 50, 1), point("T2", 200, 51, 1.5), point("T3", 300, 30, 1.2),
                     point("T4", 400, 29, 1.1)}};
}

TEST(Frontier, MarksPointsThatAnotherBeatsInEverything) {
  auto frontier = example();
  mark_dominated(frontier);
  EXPECT_EQ(frontier.points[0].dominated_by, "");
  EXPECT_EQ(frontier.points[1].dominated_by, "T1");
  EXPECT_EQ(frontier.points[2].dominated_by, "") << "T4 is better and faster, but larger";
  EXPECT_EQ(frontier.points[3].dominated_by, "");

  frontier.points = {point("T1", 100, 50, 1), point("T1", 100, 50, 1)};
  mark_dominated(frontier);
  EXPECT_EQ(frontier.points[0].dominated_by + frontier.points[1].dominated_by, "") << "equal points";

  frontier.points = {point("T1", 100, 0, 1), point("T2", 200, 0, 2)};
  mark_dominated(frontier);
  EXPECT_EQ(frontier.points[1].dominated_by, "") << "quality unknown";
}

// Points of one family, also in different folders, are compared with its full capacity; points of another family are
// not.
TEST(Frontier, ComparesEachFamilyWithItsFullCapacity) {
  auto frontier = example();
  frontier.points[0].nll = 4.5;
  frontier.points[3].nll = 3.25;
  frontier.points[1].model = "an export";
  frontier.points[2].family_hash = "another";
  compare_with_full(frontier);
  EXPECT_DOUBLE_EQ(*frontier.points[0].nll_difference, 1.25);
  EXPECT_DOUBLE_EQ(*frontier.points[1].nll_difference, -2.25);
  EXPECT_FALSE(frontier.points[2].nll_difference);
  EXPECT_EQ(*frontier.points[3].nll_difference, 0);
  EXPECT_NE(to_table(frontier).find("+1.2500"), std::string::npos) << to_table(frontier);
  EXPECT_NE(to_csv(frontier).find(",4.5,1.25,"), std::string::npos) << to_csv(frontier);
  EXPECT_FALSE(to_json(frontier)["points"][2].contains("nll_difference"));
}

TEST(Frontier, ReadsBackItsJson) {
  auto frontier = example();
  frontier.provenance = {.model_hash = "h", .stage = "refined", .data_fingerprint = "d", .seed = 1, .build = "b"};
  compare_with_full(frontier);
  mark_dominated(frontier);
  frontier.points[3].perplexity = frontier.points[3].nll = 0;
  const auto json = to_json(frontier);
  EXPECT_FALSE(json["points"][3].contains("perplexity"));
  EXPECT_FALSE(json["points"][0].contains("dominated_by"));
  EXPECT_EQ(to_json(frontier_from_json(json, "frontier.json")), json);

  const auto message = [](const std::string& text) {
    return message_of([&] { frontier_from_json(parse_json(text, "test"), "frontier.json"); });
  };
  EXPECT_NE(message("{}").find("frontier.json: \"points\""), std::string::npos);
  EXPECT_NE(message(R"({"points": [4]})").find("points[0]: expected"), std::string::npos);
  EXPECT_NE(message(R"({"points": [{"model": "a"}]})").find("tier is missing"), std::string::npos);
  auto wrong = json;
  wrong["points"][1]["decode_ms"] = "fast";
  EXPECT_NE(message(to_text(wrong)).find("points[1]: decode_ms must be a number"), std::string::npos);
}

TEST(Frontier, CsvHasOneRowPerPointAndQuotesText) {
  auto frontier = example();
  frontier.points[0].model = "a \"b\", c";
  const auto csv = to_csv(frontier);
  EXPECT_EQ(std::ranges::count(csv, '\n'), 5);
  EXPECT_EQ(csv.substr(0, csv.find('\n')),
            "model,tier,channels,ffn,parameters,parameter_fraction,file_bytes,state_bytes,kv_bytes,nll,nll_difference,"
            "perplexity,bits_per_byte,decode_ms,decode_ms_low,decode_ms_high,prefill_tokens_per_second,weight_bytes,"
            "session_bytes,resident_bytes,dominated_by,model_hash,family_hash");
  EXPECT_NE(csv.find("\n\"a \"\"b\"\", c\",\"T1\",1,64,100,0.25,0,0,0,1,,50,,1,"), std::string::npos) << csv;
}

TEST(Frontier, TableAndChartNameEveryTier) {
  auto frontier = example();
  mark_dominated(frontier);
  const auto table = to_table(frontier);
  EXPECT_NE(table.find("dominated by T1"), std::string::npos) << table;
  EXPECT_NE(table.find("perplexity"), std::string::npos);
  const auto svg = plot::to_svg(draw(frontier));
  for (const char* tier : {">T1<", ">T2 (dominated)<", ">T3<", ">T4<"}) EXPECT_NE(svg.find(tier), std::string::npos);
  frontier.data.clear();
  EXPECT_EQ(to_table(frontier).find("perplexity"), std::string::npos);
  EXPECT_NE(plot::to_svg(draw(frontier)).find("memory"), std::string::npos);
}

TEST(Frontier, LabelsSeveralModelsByTheirFolders) {
  auto frontier = example();
  frontier.points[0].model = "exports/small/";
  frontier.points[0].tier = "full";
  frontier.points[1].model = "exports/large";
  EXPECT_EQ(frontier.label(frontier.points[0]), "small");
  EXPECT_EQ(frontier.label(frontier.points[1]), "large T2");
}

TEST(Frontier, MeasuresEveryTierOfAFamily) {
  log::set_level(log::Level::Quiet);
  auto stream = cpu_stream(1);
  Engine engine(small_family(), stream);
  const auto tiers = tiers_of(engine.config());
  const auto family = family_of(engine.model(), {});
  auto points = measure_costs(engine.model(), "small", family, tiers, stream, {},
                              {.depth = 9, .warmup = 1, .steps = 3, .rounds = 2});
  ASSERT_EQ(points.size(), tiers.size());
  const auto text = EvaluationText::from_tokens(random_tokens(40, engine.config().vocab_size, 1), "random");
  add_quality(points, measure_perplexity(engine, text, {.tiers = tiers, .context = 13}));
  for (std::size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(points[i].tier, tiers[i].name);
    EXPECT_EQ(points[i].parameters, cost_of(engine.config(), tiers[i].capacity).parameters);
    EXPECT_EQ(points[i].file_bytes, 4 * points[i].parameters) << "float32";
    EXPECT_GT(points[i].perplexity, 1);
    EXPECT_GT(points[i].latency.decode_ms, 0);
    EXPECT_DOUBLE_EQ(points[i].parameter_fraction,
                     static_cast<double>(points[i].parameters) / static_cast<double>(family.full_parameters));
    EXPECT_EQ(points[i].model_hash, "hash");
  }
}

}  // namespace
}  // namespace essh
