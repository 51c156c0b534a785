#pragma once
#include <optional>
#include <string>
#include <vector>

#include "essh/plot/ticks.h"

namespace essh::plot {

enum class Mark { Line, Points, LineAndPoints };

struct Axis {
  std::string title = {};
  Scale scale = Scale::Linear;
  // Limits of the axis; taken from the data if absent.
  std::optional<double> min = {};
  std::optional<double> max = {};
};

struct Series {
  std::string name = {};  // in the legend; empty: not listed
  std::vector<double> x = {};
  std::vector<double> y = {};  // same size as x
  Mark mark = Mark::Line;
  std::vector<std::string> labels = {};  // empty, or one per point; an empty one is not drawn
  std::optional<int> color = {};         // index into the palette; by default the index of the series in its panel
  bool dashed = false;
};

struct Panel {
  std::string title = {};
  Axis x = {};
  Axis y = {};
  std::vector<Series> series = {};
};

struct Figure {
  std::string title = {};
  std::vector<Panel> panels = {};  // row by row
  int columns = 2;
  int panel_width = 480;
  int panel_height = 340;
};

// A self-contained SVG document: no scripts, no external references, text escaped. Points that are not finite, or not
// positive on a logarithmic axis, are left out and break the line. A line with far more points than pixels is thinned
// to the extremes of each pixel column.
std::string to_svg(const Figure& figure);

}  // namespace essh::plot
