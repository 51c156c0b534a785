#include "essh/plot/svg.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include "essh/plot/xml.h"

namespace essh::plot {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What is wrong with the document, as the subset of XML that we write: elements, quoted attributes, escaped text.
std::string xml_fault(const std::string& text) {
  std::vector<std::string> open;
  std::size_t roots = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] != '<') {
      if (text[at] == '&' && !std::regex_search(text.substr(at, 8), std::regex("^&(amp|lt|gt|quot|#39);")))
        return fmt::format("bare & at {}", at);
      if (text[at] == '>') return fmt::format("bare > at {}", at);
      ++at;
      continue;
    }
    const std::size_t end = text.find('>', at);
    if (end == std::string::npos) return "unclosed tag";
    const std::string tag = text.substr(at, end - at + 1);
    static const std::regex kTag(R"(<(/?)([A-Za-z]+)((?: [A-Za-z0-9-]+="[^"<&]*")*)\s*(/?)>)");
    std::smatch match;
    if (!std::regex_match(tag, match, kTag)) return fmt::format("bad tag {}", tag);
    if (match[1] == "/") {
      if (open.empty() || open.back() != match[2]) return fmt::format("unexpected {}", tag);
      open.pop_back();
    } else if (match[4] != "/") {
      if (open.empty() && ++roots > 1) return "second root";
      open.push_back(match[2]);
    }
    at = end + 1;
  }
  return open.empty() ? "" : fmt::format("open {}", open.back());
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Numbers of the attribute `name` on every `element`.
std::vector<double> attributes(const std::string& svg, const std::string& element, const std::string& name) {
  std::vector<double> values;
  const std::regex pattern(fmt::format("<{} [^>]*\\b{}=\"([-0-9.]+)\"", element, name));
  for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it)
    values.push_back(std::stod((*it)[1]));
  return values;
}

Figure one_panel(Series series, Scale x = Scale::Linear, Scale y = Scale::Linear) {
  return {
      .panels = {
          {.title = "panel", .x = {.title = "x", .scale = x}, .y = {.title = "y", .scale = y}, .series = {series}}}};
}

TEST(Svg, IsWellFormedAndSelfContained) {
  Figure figure{.title = "A & B", .columns = 2};
  for (int i = 0; i < 3; ++i)
    figure.panels.push_back(
        {.title = fmt::format("p{}", i),
         .x = {.title = "steps"},
         .y = {.title = "loss", .scale = Scale::Log},
         .series = {{.name = "line", .x = {1, 2, 3}, .y = {1, 10, 100}, .dashed = true},
                    {.name = "dots", .x = {1, 2}, .y = {5, 6}, .mark = Mark::Points, .labels = {"T1", ""}}}});
  const std::string svg = to_svg(figure);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(count(svg, "<polyline"), 3);
  EXPECT_EQ(count(svg, ">T1</text>"), 3);
  EXPECT_EQ(count(svg, ">line</text>"), 3);
  EXPECT_EQ(count(svg, "script"), 0);
  EXPECT_EQ(count(svg, "href"), 0);
  EXPECT_EQ(count(svg, " id="), 0) << "ids of two charts on one page would clash";
  EXPECT_EQ(svg, to_svg(figure));
}

TEST(Svg, EscapesEveryText) {
  const std::string evil = "<script>\"&'\x01\xff";
  const std::string svg = to_svg({.title = evil,
                                  .panels = {{.title = evil,
                                              .x = {.title = evil},
                                              .y = {.title = evil},
                                              .series = {{.name = evil, .x = {1}, .y = {1}, .labels = {evil}}}}}});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(count(svg, "<script"), 0);
  EXPECT_EQ(count(svg, "&lt;script&gt;&quot;&amp;&#39;\xef\xbf\xbd\xef\xbf\xbd"), 7);
}

TEST(Svg, EscapeKeepsUnicodeAndReplacesTheRest) {
  EXPECT_EQ(escape_xml("σ₁ → 日本 🙂\t"), "σ₁ → 日本 🙂\t");
  EXPECT_EQ(escape_xml("\xed\xa0\x80"), "\xef\xbf\xbd") << "a surrogate";
  EXPECT_EQ(escape_xml("\xc0\x80"), "\xef\xbf\xbd\xef\xbf\xbd") << "an overlong zero";
  EXPECT_EQ(escape_xml("a\xe2\x82"), "a\xef\xbf\xbd\xef\xbf\xbd") << "cut short";
  EXPECT_EQ(escape_xml("\xf7\xbf\xbf\xbf"), "\xef\xbf\xbd") << "beyond Unicode";
  EXPECT_EQ(escape_xml("\xef\xbf\xbf"), "\xef\xbf\xbd") << "not a character";
}

TEST(Svg, LinearAndLogarithmicPositions) {
  const auto even =
      attributes(to_svg(one_panel({.x = {0, 1, 2}, .y = {1, 2, 3}, .mark = Mark::Points})), "circle", "cy");
  ASSERT_EQ(even.size(), 3u);
  EXPECT_NEAR(even[0] - even[1], even[1] - even[2], 0.11);
  EXPECT_GT(even[0], even[2]) << "up is more";

  const auto decades = attributes(
      to_svg(one_panel({.x = {0, 1, 2}, .y = {1, 10, 100}, .mark = Mark::Points}, Scale::Linear, Scale::Log)), "circle",
      "cy");
  ASSERT_EQ(decades.size(), 3u);
  EXPECT_NEAR(decades[0] - decades[1], decades[1] - decades[2], 0.11);
}

TEST(Svg, UndrawablePointsBreakTheLine) {
  Series series{.x = {0, 1, 2, 3, 4, 5}, .y = {1, 2, kNan, 4, 5, kInfinity}};
  EXPECT_EQ(count(to_svg(one_panel(series)), "<polyline"), 2);
  series.y = {1, 2, -3, 4, 5, 0};
  EXPECT_EQ(count(to_svg(one_panel(series)), "<polyline"), 1);
  const std::string log = to_svg(one_panel(series, Scale::Linear, Scale::Log));
  EXPECT_EQ(count(log, "<polyline"), 2);
  EXPECT_EQ(count(log, "nan"), 0);
  EXPECT_EQ(count(log, "inf"), 0);
}

TEST(Svg, NothingToDrawIsStillAChart) {
  for (const Scale scale : {Scale::Linear, Scale::Log}) {
    for (const Series& series : {Series{}, Series{.x = {kNan}, .y = {1}}, Series{.x = {1}, .y = {kInfinity}}}) {
      const std::string svg = to_svg(one_panel(series, scale, scale));
      EXPECT_EQ(xml_fault(svg), "");
      EXPECT_EQ(count(svg, "nan") + count(svg, "inf"), 0);
      EXPECT_GE(count(svg, "text-anchor=\"end\""), 1) << "ticks on an empty axis";
    }
  }
  EXPECT_EQ(xml_fault(to_svg({})), "");
}

TEST(Svg, OneValueGetsAnAxisAroundIt) {
  for (const double value : {0.0, 5.0, -3e-9, 1e300, 1e-300}) {
    const std::string svg = to_svg(one_panel({.x = {value, value}, .y = {value, value}, .mark = Mark::Points}));
    EXPECT_EQ(count(svg, "nan") + count(svg, "inf"), 0) << value;
    EXPECT_EQ(count(svg, "<circle"), 2) << value;
  }
}

TEST(Svg, FixedEndsOfAnAxis) {
  Figure figure = one_panel({.x = {1, 2}, .y = {0.5, 50}, .mark = Mark::Points});
  figure.panels[0].y.min = 0;
  figure.panels[0].y.max = 100;
  const std::string svg = to_svg(figure);
  EXPECT_EQ(count(svg, ">0</text>"), 1);
  EXPECT_EQ(count(svg, ">100</text>"), 1);
  figure.panels[0].y = {.scale = Scale::Log, .min = -1, .max = 0};
  EXPECT_EQ(count(to_svg(figure), "nan"), 0) << "ends that a logarithmic axis cannot have";
}

TEST(Svg, LongLinesAreThinnedToTheirExtremes) {
  Series series;
  for (int i = 0; i < 200000; ++i) {
    series.x.push_back(i);
    series.y.push_back(i == 123456 ? 50.0 : std::sin(i));
  }
  const std::string svg = to_svg(one_panel(series));
  EXPECT_LT(svg.size(), 60000u);
  Series peak = series;
  peak.mark = Mark::Points;
  peak.x = {0, 123456, 199999};
  peak.y = {-1, 50, 1};
  const double top = attributes(to_svg(one_panel(peak)), "circle", "cy")[1];
  EXPECT_NE(svg.find(fmt::format(",{:.1f} ", top)), std::string::npos) << "the spike must survive";
}

TEST(Svg, CrowdedLabelsDoNotOverlap) {
  Series series{.x = {1, 1.001, 5}, .y = {1, 1.001, 5}, .mark = Mark::Points, .labels = {"first", "second", ""}};
  const std::string svg = to_svg(one_panel(series));
  const std::regex place("<text x=\"([-0-9.]+)\" y=\"([-0-9.]+)\">(first|second)<");
  std::vector<std::pair<double, double>> at;
  for (std::sregex_iterator it(svg.begin(), svg.end(), place), end; it != end; ++it)
    at.emplace_back(std::stod((*it)[1]), std::stod((*it)[2]));
  ASSERT_EQ(at.size(), 2u);
  EXPECT_TRUE(std::abs(at[0].first - at[1].first) > 25 || std::abs(at[0].second - at[1].second) > 10);
}

}  // namespace
}  // namespace essh::plot
