#include "essh/base/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "essh/base/log.h"

namespace essh {
namespace {

using namespace std::chrono_literals;

Progress::Clock::time_point the_time{};
Progress::Clock::time_point told_time() {
  return the_time;
}

// Standard error of `body`, redirected to a file, so that Progress sees no terminal.
template <class Body>
std::string errors_of(const Body& body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

std::ptrdiff_t lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST(Progress, OffATerminalALineComesEveryThirtySeconds) {
  the_time = {};
  const auto text = errors_of([] {
    Progress progress("train", 1000, "step", 1, &told_time);
    // Ten updates a second for 95 seconds: lines at 30, 60 and 90.
    for (int i = 0; i < 950; ++i) {
      the_time += 100ms;
      progress.update(i + 1, "loss 2.5");
    }
  });
  EXPECT_EQ(lines(text), 3) << text;
  EXPECT_TRUE(text.starts_with("train  30%  9.967 step/s  ETA 1m 10s  loss 2.5\n")) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos) << text;
}

TEST(Progress, OffATerminalTheIntervalCountsFromTheLastLine) {
  the_time = {};
  const auto text = errors_of([] {
    Progress progress("prepare", 0, "MB", 1e6, &told_time);
    for (const auto wait : {29999ms, 1ms, 29999ms, 1ms, 1ms}) {
      the_time += wait;
      progress.update(1e6);
    }
  });
  EXPECT_EQ(lines(text), 2) << text;
}

TEST(Progress, OffATerminalTheEndIsALineWhateverTheTime) {
  the_time = {};
  const auto text = errors_of([] {
    Progress progress("prepare", 2e6, "MB", 1e6, &told_time);
    progress.update(0);
    the_time += 4s;
    progress.update(2e6, "2 files");
    progress.finish();
  });
  EXPECT_EQ(text, "prepare 100%  0.5 MB/s  in 4s  2 files\n");
}

TEST(Progress, QuietPrintsNothing) {
  the_time = {};
  const auto before = log::level();
  log::set_level(log::Level::Quiet);
  const auto text = errors_of([] {
    Progress progress("train", 10, "step", 1, &told_time);
    the_time += 31s;
    progress.update(1);
    progress.finish();
  });
  log::set_level(before);
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace essh
