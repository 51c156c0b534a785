#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace essh {

// A progress line on standard error: share done, rate, remaining time. On a terminal it redraws in place ten times a
// second; in a pipe it prints a plain line every thirty seconds and one at the end. Quiet when `log::Level::Quiet` is
// set.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // `unit` follows the rate ("MB", "tok"); one unit is `scale` counts of update(). Only tests pass a clock.
  Progress(std::string title, double total, std::string unit, double scale = 1.0,
           Clock::time_point (*now)() = &Clock::now);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(double done, std::string_view note = {});
  // An empty note keeps the previous note.
  void finish(std::string_view note = {});
  double elapsed() const;

 private:
  void draw(double done, std::string_view note, bool last);

  Clock::time_point (*now_)();
  std::string title_;
  std::string unit_;
  double total_;
  double scale_;
  double first_ = -1;
  double done_ = 0;
  std::string note_;
  bool terminal_;
  bool finished_ = false;
  Clock::time_point start_;
  Clock::time_point drawn_;
};

}  // namespace essh
