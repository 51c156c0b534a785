#include "essh/config/fields.h"

#include <gtest/gtest.h>

namespace essh {
namespace {

struct Inner {
  double rate = 0.5;
  std::int32_t steps = 1;
  std::uint64_t seed = 0;
  float scale = 1;
};
struct Sample {
  std::int64_t width = 8;
  std::string name = "x";
  std::vector<std::int64_t> layers;
  Inner inner;
};
template <class Visitor>
void fields(Visitor& visit, Inner& inner) {
  visit("rate", inner.rate, Field{.help = "a rate", .min = 0, .max = 1});
  visit("steps", inner.steps, Field{});
  visit("seed", inner.seed, Field{});
  visit("scale", inner.scale, Field{});
}
template <class Visitor>
void fields(Visitor& visit, Sample& sample) {
  visit("width", sample.width, Field{.help = "columns", .min = 1, .max = 100, .required = true});
  visit("name", sample.name, Field{});
  visit("layers", sample.layers, Field{.min = 0, .max = 9});
  visit("inner", sample.inner, Field{});
}

std::string problem(const char* text) {
  Sample sample;
  try {
    read_fields(sample, parse_json(text, "s.json"), "s.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Fields, RoundTrip) {
  Sample sample{.width = 3,
                .name = "y",
                .layers = {1, 2},
                .inner = {.rate = 0.25, .steps = -7, .seed = UINT64_MAX, .scale = 0.1f}};
  Sample back;
  read_fields(back, write_fields(sample), "s");
  EXPECT_EQ(write_fields(back), write_fields(sample));
}

struct Measured {
  std::optional<double> gap;
};
template <class Visitor>
void fields(Visitor& visit, Measured& m) {
  visit("gap", m.gap, Field{.min = -1, .max = 1});
}

TEST(Fields, WhatIsUnknownIsNull) {
  Measured back{.gap = 0.75};
  EXPECT_EQ(to_text(write_fields(Measured{})), R"({"gap":null})");
  read_fields(back, write_fields(Measured{}), "m");
  EXPECT_FALSE(back.gap);
  read_fields(back, write_fields(Measured{.gap = -0.5}), "m");
  EXPECT_EQ(back.gap, -0.5);
  EXPECT_THROW(read_fields(back, parse_json(R"({"gap": 2})", "m"), "m"), Error);
}

TEST(Fields, NamesThePlaceAndTheRemedy) {
  EXPECT_EQ(problem("{}"), "s.json: width is missing");
  EXPECT_EQ(problem(R"({"width":0})"), "s.json: width must be between 1 and 100, got 0");
  EXPECT_EQ(problem(R"({"width":-1})"), "s.json: width must be between 1 and 100, got -1");
  EXPECT_EQ(problem(R"({"width":3.5})"), "s.json: width must be a whole number");
  EXPECT_EQ(problem(R"({"width":18446744073709551615})"), "s.json: width is too large");
  EXPECT_EQ(problem(R"({"width":1,"nmae":"x"})"), "s.json: unknown key \"nmae\", did you mean \"name\"?");
  EXPECT_EQ(problem(R"({"width":1,"layers":[1,10]})"), "s.json: layers[1] must be between 0 and 9, got 10");
  EXPECT_EQ(problem(R"({"width":1,"inner":{"rate":2}})"), "s.json: inner: rate must be between 0 and 1, got 2");
  EXPECT_EQ(problem(R"({"width":1,"inner":{"rat":1}})"), "s.json: inner: unknown key \"rat\", did you mean \"rate\"?");
}

TEST(Fields, NumbersThatDoNotFitAreRefusedAndNotWrapped) {
  const auto inner = [](const std::string& member) {
    return problem(("{\"width\":1,\"inner\":{" + member + "}}").c_str());
  };
  EXPECT_EQ(inner(R"("steps":-4294967295)"), "s.json: inner: steps is too small");
  EXPECT_EQ(inner(R"("steps":4294967297)"), "s.json: inner: steps is too large");
  EXPECT_EQ(inner(R"("seed":-1)"), "s.json: inner: seed is too small");
  EXPECT_EQ(inner(R"("seed":18446744073709551615)"), "accepted");
  EXPECT_EQ(inner(R"("scale":1e300)"), "s.json: inner: scale is too large");
}

TEST(Fields, KeysCannotSteerTheTerminal) {
  EXPECT_EQ(problem(R"({"width":1,"\u001b[2J\"":1})"), "s.json: unknown key \"?[2J'\"");
}

}  // namespace
}  // namespace essh
