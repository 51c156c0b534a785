#include "essh/plot/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "essh/base/error.h"
#include "essh/plot/xml.h"

namespace essh::plot {
namespace {

// Okabe and Ito's colour-blind-safe palette without the yellow, which is too pale for lines on white.
constexpr std::array<std::string_view, 8> kPalette = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#4d4d4d", "#7b3294"};
constexpr std::string_view kInk = "#222222";
constexpr std::string_view kMuted = "#666666";
constexpr std::string_view kFrame = "#b8b8b8";
constexpr std::string_view kGrid = "#e8e8e8";
constexpr std::string_view kMinorGrid = "#f4f4f4";
constexpr double kLegendRow = 17;
constexpr double kLabelSize = 10.5;

using Out = std::back_insert_iterator<std::string>;

struct Point {
  double x;
  double y;
};

struct Box {
  double left;
  double top;
  double right;
  double bottom;

  bool overlaps(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// Estimate for a proportional sans-serif font; generous, so that labels never touch.
double text_width(std::string_view text, double size) {
  const auto characters =
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
  return 0.58 * size * static_cast<double>(characters);
}

// Maps the values of one axis to pixels.
class Projection {
 public:
  Projection(const Axis& axis, double low, double high) : scale_(axis.scale) {
    low_ = axis.min.value_or(low);
    high_ = axis.max.value_or(high);
    const bool log = scale_ == Scale::Log;
    const bool usable = std::isfinite(low_) && std::isfinite(high_) && low_ <= high_ && (!log || low_ > 0);
    if (!usable) {
      low_ = log ? 1 : 0;
      high_ = log ? 10 : 1;
    }
    const double from = transform(low_);
    const double to = transform(high_);
    // A margin around the data, except at a limit that was given. A single value gets an axis around it.
    double room = 0.04 * (to - from);
    if (to - from <= 1e-12 * std::max(std::abs(from), std::abs(to)))
      room = log ? 0.3 : std::max(0.5 * std::abs(from), 0.5);
    if (!usable || !axis.min || low_ == high_) low_ = inverse(from - room);
    if (!usable || !axis.max || axis.min == axis.max) high_ = inverse(to + room);
  }

  void set_pixels(double at_low, double at_high) {
    at_low_ = at_low;
    at_high_ = at_high;
  }
  double operator()(double value) const {
    const double share = (transform(value) - transform(low_)) / (transform(high_) - transform(low_));
    return at_low_ + share * (at_high_ - at_low_);
  }
  bool drawable(double value) const { return std::isfinite(value) && (scale_ == Scale::Linear || value > 0); }
  std::vector<double> ticks(int count) const {
    return scale_ == Scale::Log ? log_ticks(low_, high_, count) : linear_ticks(low_, high_, count);
  }
  // 2..9 times the powers of ten, if far enough apart to be seen.
  std::vector<double> minor_ticks() const {
    std::vector<double> ticks;
    if (scale_ == Scale::Linear || std::log10(high_ / low_) > 5) return ticks;
    for (double power = std::pow(10.0, std::floor(std::log10(low_))); power <= high_; power *= 10)
      for (int factor = 2; factor <= 9; ++factor)
        if (factor * power >= low_ && factor * power <= high_) ticks.push_back(factor * power);
    return ticks;
  }
  Scale scale() const { return scale_; }

 private:
  double transform(double value) const { return scale_ == Scale::Log ? std::log10(value) : value; }
  double inverse(double value) const { return scale_ == Scale::Log ? std::pow(10.0, value) : value; }

  Scale scale_;
  double low_ = 0;
  double high_ = 1;
  double at_low_ = 0;
  double at_high_ = 1;
};

Projection project(const Panel& panel, const Axis& axis, std::vector<double> Series::*values) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  const auto positive = [](const Axis& which, double value) { return which.scale == Scale::Linear || value > 0; };
  for (const Series& series : panel.series) {
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (!std::isfinite(series.x[i]) || !std::isfinite(series.y[i])) continue;
      if (!positive(panel.x, series.x[i]) || !positive(panel.y, series.y[i])) continue;
      low = std::min(low, (series.*values)[i]);
      high = std::max(high, (series.*values)[i]);
    }
  }
  return Projection(axis, low, high);
}

std::string_view color_of(const Series& series, std::size_t place) {
  const std::size_t index = series.color ? static_cast<std::size_t>(std::abs(*series.color)) : place;
  return kPalette[index % kPalette.size()];
}

// Where points are much denser than pixels, the first, lowest, highest and last of each pixel column draw the same
// picture.
std::vector<Point> thin(const std::vector<Point>& run) {
  const double width = run.empty() ? 0 : std::abs(run.back().x - run.front().x);
  const bool ordered = std::ranges::is_sorted(run, {}, &Point::x);
  if (!ordered || static_cast<double>(run.size()) < 2 * std::max(width, 50.0)) return run;
  std::vector<Point> kept;
  for (std::size_t begin = 0; begin < run.size();) {
    std::size_t end = begin;
    std::size_t lowest = begin;
    std::size_t highest = begin;
    for (; end < run.size() && std::floor(run[end].x) == std::floor(run[begin].x); ++end) {
      if (run[end].y < run[lowest].y) lowest = end;
      if (run[end].y > run[highest].y) highest = end;
    }
    std::array<std::size_t, 4> picks = {begin, lowest, highest, end - 1};
    std::ranges::sort(picks);
    for (std::size_t i = 0; i < picks.size(); ++i)
      if (i == 0 || picks[i] != picks[i - 1]) kept.push_back(run[picks[i]]);
    begin = end;
  }
  return kept;
}

class PanelWriter {
 public:
  PanelWriter(std::string& out, const Panel& panel, Box area)
      : out_(out), panel_(panel), x_(project(panel, panel.x, &Series::x)), y_(project(panel, panel.y, &Series::y)) {
    const double legend = place_legend(area);
    y_.set_pixels(1, 0);
    double widest = 0;
    for (const auto& label : tick_labels(y_.ticks(6), y_.scale())) widest = std::max(widest, text_width(label, 11));
    plot_ = {area.left + widest + (panel.y.title.empty() ? 18 : 38),
             area.top + (panel.title.empty() ? 10 : 34) + legend, area.right - 16,
             area.bottom - (panel.x.title.empty() ? 28 : 46)};
    plot_.right = std::max(plot_.right, plot_.left + 40);
    plot_.bottom = std::max(plot_.bottom, plot_.top + 40);
    x_.set_pixels(plot_.left, plot_.right);
    y_.set_pixels(plot_.bottom, plot_.top);
    title_ = {0.5 * (area.left + area.right), area.top + 20};
    y_title_ = area.left + 14;
    legend_top_ = area.top + (panel.title.empty() ? 4 : 28);
  }

  void write() {
    write_axes();
    for (std::size_t i = 0; i < panel_.series.size(); ++i)
      write_series(panel_.series[i], color_of(panel_.series[i], i));
    write_labels();
    write_legend();
  }

 private:
  struct LegendEntry {
    std::size_t series;
    double x;
    double y;
  };

  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(Out(out_), format, std::forward<Args>(args)...);
  }

  // Legend entries in rows under the title, never over the data. Returns their height.
  double place_legend(const Box& area) {
    double x = 0;
    double y = 0;
    for (std::size_t i = 0; i < panel_.series.size(); ++i) {
      if (panel_.series[i].name.empty()) continue;
      const double width = 34 + text_width(panel_.series[i].name, 11);
      if (x > 0 && x + width > area.right - area.left - 70) {
        x = 0;
        y += kLegendRow;
      }
      legend_.push_back({i, x, y});
      x += width;
    }
    return legend_.empty() ? 0 : y + kLegendRow + 2;
  }

  void write_axes() {
    const auto xs = x_.ticks(std::max(2, static_cast<int>((plot_.right - plot_.left) / 65)));
    const auto ys = y_.ticks(6);
    const auto vertical = [&](double value, std::string_view color) {
      put("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\"/>\n", x_(value), plot_.top,
          plot_.bottom, color);
    };
    const auto horizontal = [&](double value, std::string_view color) {
      put("<line x1=\"{1:.1f}\" y1=\"{0:.1f}\" x2=\"{2:.1f}\" y2=\"{0:.1f}\" stroke=\"{3}\"/>\n", y_(value), plot_.left,
          plot_.right, color);
    };
    for (const double tick : x_.minor_ticks()) vertical(tick, kMinorGrid);
    for (const double tick : y_.minor_ticks()) horizontal(tick, kMinorGrid);
    for (const double tick : xs) vertical(tick, kGrid);
    for (const double tick : ys) horizontal(tick, kGrid);
    put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" stroke=\"{}\"/>\n",
        plot_.left, plot_.top, plot_.right - plot_.left, plot_.bottom - plot_.top, kFrame);

    const auto x_labels = tick_labels(xs, x_.scale());
    const auto y_labels = tick_labels(ys, y_.scale());
    put("<g font-size=\"11\" fill=\"{}\">\n", kMuted);
    for (std::size_t i = 0; i < xs.size(); ++i)
      put("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", x_(xs[i]), plot_.bottom + 16,
          x_labels[i]);
    for (std::size_t i = 0; i < ys.size(); ++i)
      put("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", plot_.left - 7, y_(ys[i]) + 4,
          y_labels[i]);
    put("</g>\n");
    if (!panel_.title.empty())
      put("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" font-size=\"14\" font-weight=\"600\">{}</text>\n",
          title_.x, title_.y, escape_xml(panel_.title));
    if (!panel_.x.title.empty())
      put("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" font-size=\"12\">{}</text>\n",
          0.5 * (plot_.left + plot_.right), plot_.bottom + 36, escape_xml(panel_.x.title));
    if (!panel_.y.title.empty())
      put("<text transform=\"translate({:.1f} {:.1f}) rotate(-90)\" text-anchor=\"middle\" "
          "font-size=\"12\">{}</text>\n",
          y_title_, 0.5 * (plot_.top + plot_.bottom), escape_xml(panel_.y.title));
  }

  // The drawable points, split at those left out.
  std::vector<std::vector<Point>> runs(const Series& series) const {
    std::vector<std::vector<Point>> result(1);
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (x_.drawable(series.x[i]) && y_.drawable(series.y[i])) {
        result.back().push_back({x_(series.x[i]), y_(series.y[i])});
      } else if (!result.back().empty()) {
        result.emplace_back();
      }
    }
    if (result.back().empty()) result.pop_back();
    return result;
  }

  void write_series(const Series& series, std::string_view color) {
    // A nested document clips without an id, which would clash between charts on one page.
    put("<svg x=\"{0:.1f}\" y=\"{1:.1f}\" width=\"{2:.1f}\" height=\"{3:.1f}\" viewBox=\"{0:.1f} {1:.1f} {2:.1f} "
        "{3:.1f}\">\n",
        plot_.left - 4, plot_.top - 4, plot_.right - plot_.left + 8, plot_.bottom - plot_.top + 8);
    for (const auto& run : runs(series)) {
      if (series.mark != Mark::Points && run.size() > 1) {
        put("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" stroke-linejoin=\"round\"{} points=\"", color,
            series.dashed ? " stroke-dasharray=\"6 4\"" : "");
        for (const Point& point : thin(run)) put("{:.1f},{:.1f} ", point.x, point.y);
        put("\"/>\n");
      }
      // A single point is invisible as a line: draw a mark.
      if (series.mark == Mark::Line && run.size() > 1) continue;
      for (const Point& point : run)
        put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\" fill=\"{}\" fill-opacity=\"0.85\" stroke=\"#ffffff\" "
            "stroke-width=\"0.7\"/>\n",
            point.x, point.y, color);
    }
    put("</svg>\n");
  }

  // Each label goes to the first position around its point that overlaps no other point or label and stays in the
  // panel.
  void write_labels() {
    std::vector<Box> taken = point_boxes();
    put("<g font-size=\"{}\" fill=\"{}\">\n", kLabelSize, kInk);
    for (const Series& series : panel_.series) {
      for (std::size_t i = 0; i < series.labels.size(); ++i) {
        if (series.labels[i].empty() || !x_.drawable(series.x[i]) || !y_.drawable(series.y[i])) continue;
        const Point at{x_(series.x[i]), y_(series.y[i])};
        if (at.x < plot_.left - 1 || at.x > plot_.right + 1 || at.y < plot_.top - 1 || at.y > plot_.bottom + 1)
          continue;
        const Box box = label_box(at, text_width(series.labels[i], kLabelSize), taken);
        taken.push_back(box);
        put("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", box.left, box.bottom - 3, escape_xml(series.labels[i]));
      }
    }
    put("</g>\n");
  }

  std::vector<Box> point_boxes() const {
    constexpr double kRadius = 3;
    std::vector<Box> boxes;
    for (const Series& series : panel_.series) {
      if (series.mark == Mark::Line) continue;
      for (const auto& run : runs(series))
        for (const Point& at : run) boxes.push_back({at.x - kRadius, at.y - kRadius, at.x + kRadius, at.y + kRadius});
    }
    return boxes;
  }

  Box label_box(const Point& at, double width, const std::vector<Box>& taken) const {
    constexpr double kGap = 5;
    constexpr double kHeight = 14;
    const auto corner = [&](bool left_side, bool below, int away) {
      const double left = left_side ? at.x - kGap - width : at.x + kGap;
      const double top = below ? at.y + 2 + away * kHeight : at.y - 2 - (away + 1) * kHeight;
      return Box{left, top, left + width, top + kHeight};
    };
    for (int away = 0; away < 3; ++away)
      for (const bool below : {false, true})
        for (const bool left_side : {false, true}) {
          const Box box = corner(left_side, below, away);
          const bool inside = box.left >= plot_.left && box.right <= plot_.right + 12 && box.top >= plot_.top - 6 &&
                              box.bottom <= plot_.bottom;
          if (inside && std::ranges::none_of(taken, [&](const Box& other) { return other.overlaps(box); })) return box;
        }
    return corner(false, false, 0);
  }

  void write_legend() {
    if (legend_.empty()) return;
    put("<g font-size=\"11\">\n");
    for (const LegendEntry& entry : legend_) {
      const Series& series = panel_.series[entry.series];
      const std::string_view color = color_of(series, entry.series);
      const double x = plot_.left + entry.x;
      const double y = legend_top_ + entry.y + 8;
      if (series.mark != Mark::Points)
        put("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", x,
            y, x + 18, y, color, series.dashed ? " stroke-dasharray=\"6 4\"" : "");
      if (series.mark != Mark::Line)
        put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\" fill=\"{}\"/>\n", x + 9, y, color);
      put("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x + 22, y + 4, escape_xml(series.name));
    }
    put("</g>\n");
  }

  std::string& out_;
  const Panel& panel_;
  Projection x_;
  Projection y_;
  Box plot_{};
  Point title_{};
  double y_title_ = 0;
  double legend_top_ = 0;
  std::vector<LegendEntry> legend_;
};

}  // namespace

std::string to_svg(const Figure& figure) {
  for (const Panel& panel : figure.panels)
    for (const Series& series : panel.series) {
      ESSH_ASSERT(series.x.size() == series.y.size());
      ESSH_ASSERT(series.labels.empty() || series.labels.size() == series.x.size());
    }
  const int panels = static_cast<int>(figure.panels.size());
  const int columns = std::clamp(figure.columns, 1, std::max(1, panels));
  const int rows = (panels + columns - 1) / columns;
  const int header = figure.title.empty() ? 0 : 36;
  const int width = columns * figure.panel_width;
  const int height = header + rows * figure.panel_height + 8;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\" fill=\"{2}\">\n",
      width, height, kInk);
  if (!figure.title.empty()) out += fmt::format("<title>{}</title>\n", escape_xml(figure.title));
  out += "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  if (!figure.title.empty())
    out +=
        fmt::format("<text x=\"{}\" y=\"25\" text-anchor=\"middle\" font-size=\"17\" font-weight=\"600\">{}</text>\n",
                    width / 2, escape_xml(figure.title));
  for (int i = 0; i < panels; ++i) {
    const double left = i % columns * figure.panel_width;
    const double top = header + i / columns * figure.panel_height;
    const Box area{left + 4, top, left + figure.panel_width - 4, top + figure.panel_height};
    PanelWriter(out, figure.panels[static_cast<std::size_t>(i)], area).write();
  }
  out += "</svg>\n";
  return out;
}

}  // namespace essh::plot
