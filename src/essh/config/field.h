#pragma once
#include <limits>

// One list per struct names every field once; JSON in and out, validation and help derive from it (fields.h):
//
//   struct Options { std::int64_t width = 64; };
//   template <class Visitor> void fields(Visitor& visit, Options& o) {
//     visit("width", o.width, Field{.help = "columns", .min = 1, .max = 4096});
//   }

namespace essh {

struct Field {
  const char* help = "";
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool required = false;
};

}  // namespace essh
