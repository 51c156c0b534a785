#pragma once
#include <string>
#include <vector>

namespace essh::plot {

enum class Scale { Linear, Log };

// Round positions within [low, high]: steps of 1, 2 or 5 times a power of ten, about `count` of them.
std::vector<double> linear_ticks(double low, double high, int count);
// Powers of ten within [low, high], every n-th if there are more than `count`. Below two decades also 2 and 5 times the
// powers, or linear ticks if there are still fewer than two.
std::vector<double> log_ticks(double low, double high, int count);
// One label per tick, with enough digits to tell them apart; powers of ten far from one are written 10⁻⁶.
std::vector<std::string> tick_labels(const std::vector<double>& ticks, Scale scale);

}  // namespace essh::plot
