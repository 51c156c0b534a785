#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "essh/kernels/reference/draw_token.h"
#include "tests/kernels/random_matrix.h"

// Rows and options over which every device draws.
namespace essh {

inline constexpr float kDrawInfinity = std::numeric_limits<float>::infinity();

// Each filter alone, and several of them.
inline std::vector<DrawOptions> draw_cases() {
  return {{.temperature = 0},
          {.temperature = 1},
          {.temperature = 0.3},
          {.temperature = 5},
          {.temperature = 1, .top_k = 1},
          {.temperature = 1, .top_k = 40},
          {.temperature = 1, .top_k = 5000},
          {.temperature = 1, .top_p = 0},
          {.temperature = 1, .top_p = 0.5},
          {.temperature = 1, .top_p = 0.999},
          {.temperature = 1, .furthest = 0},
          {.temperature = 1, .furthest = -std::log(0.05)},
          {.temperature = 0, .repetition_penalty = 1.3},
          {.temperature = 1, .repetition_penalty = 1.3},
          {.temperature = 1, .repetition_penalty = 0.5},
          {.temperature = 0.8, .top_k = 700, .top_p = 0.9, .furthest = -std::log(0.01), .repetition_penalty = 1.2}};
}

enum class DrawRow { Flat, Usual, Peaked, Equal, Ties, OneFinite, WithNan, WithInfinity, Nothing };
inline constexpr DrawRow kDrawRows[] = {DrawRow::Flat,    DrawRow::Usual,        DrawRow::Peaked,
                                        DrawRow::Equal,   DrawRow::Ties,         DrawRow::OneFinite,
                                        DrawRow::WithNan, DrawRow::WithInfinity, DrawRow::Nothing};

inline void fill_draw_row(DrawRow kind, Rng& rng, std::span<float> row) {
  for (auto& x : row) {
    const double number = rng.normal();
    switch (kind) {
      case DrawRow::Flat:
        x = static_cast<float>(number);
        break;
      case DrawRow::Equal:
        x = -3.5f;
        break;
      case DrawRow::Ties:
        x = static_cast<float>(std::round(number));  // -0 and 0 among them
        break;
      case DrawRow::OneFinite:
      case DrawRow::Nothing:
        x = rng.below(2) == 0 ? -kDrawInfinity : NAN;
        break;
      case DrawRow::WithNan:
        x = rng.below(3) == 0 ? NAN : static_cast<float>(4 * number);
        break;
      case DrawRow::WithInfinity:
        x = rng.below(3) == 0 ? -kDrawInfinity : static_cast<float>(4 * number);
        break;
      default:
        x = static_cast<float>((kind == DrawRow::Peaked ? 20 : 4) * number);
    }
  }
  if (kind == DrawRow::OneFinite) row[row.size() / 3] = -7;
  if (kind == DrawRow::WithInfinity && row.size() > 9) row[row.size() - 2] = kDrawInfinity;
}

// Some tokens are repeated, some biased, some both.
inline std::vector<LogitChange> draw_changes(Rng& rng, Index vocabulary, Index most) {
  std::vector<LogitChange> changes;
  const double share = static_cast<double>(most) / static_cast<double>(vocabulary);
  for (std::int32_t token = 0; token < vocabulary; ++token) {
    if (rng.uniform() >= share) continue;
    changes.push_back({.token = token,
                       .bias = rng.below(2) ? static_cast<float>(rng.normal()) : 0,
                       .penalty = rng.below(2) ? static_cast<float>(rng.uniform()) : 0,
                       .repeated = rng.below(2) ? 1 : 0});
  }
  return changes;
}

// Draws over rows of every kind with every case, in one call; or only the first `most` of them.
struct DrawBatch {
  StridedMatrix<float> logits;
  std::vector<DrawOptions> options;
  std::vector<LogitChange> changes;

  DrawBatch(Index vocabulary, std::uint64_t seed, Index most = 1 << 20)
      : logits(std::min<Index>(std::ssize(kDrawRows), 1 + (most - 1) / std::ssize(draw_cases())), vocabulary) {
    Rng rng(seed);
    for (Index r = 0; r < logits.view.rows; ++r)
      fill_draw_row(kDrawRows[r], rng, {logits.view.row(r), static_cast<std::size_t>(vocabulary)});
    for (Index r = 0; r < logits.view.rows; ++r) {
      for (auto one : draw_cases()) {
        if (std::ssize(options) == most) return;
        one.row = r;
        one.seed = rng.next64();
        one.position = rng.below(1000);
        one.first_change = std::ssize(changes);
        if (rng.below(3) > 0) {
          const auto some = draw_changes(rng, vocabulary, 60);
          changes.insert(changes.end(), some.begin(), some.end());
        }
        one.changes = std::ssize(changes) - one.first_change;
        one.alternatives = static_cast<std::int32_t>(rng.below(22)) - 1;
        options.push_back(one);
      }
    }
  }

  static constexpr Index kMostAlternatives = 20;
  std::span<const float> row(std::size_t i) const {
    return {logits.view.row(options[i].row), static_cast<std::size_t>(logits.view.cols)};
  }
  std::span<const LogitChange> changes_of(std::size_t i) const {
    return std::span(changes).subspan(static_cast<std::size_t>(options[i].first_change),
                                      static_cast<std::size_t>(options[i].changes));
  }
  std::int32_t expected(std::size_t i) const { return reference::draw_token(row(i), options[i], changes_of(i)); }
  std::string name(std::size_t i) const {
    const auto& o = options[i];
    return "row " + std::to_string(o.row) + " of " + std::to_string(logits.view.cols) + ", temperature " +
           std::to_string(o.temperature) + ", top_k " + std::to_string(o.top_k) + ", top_p " + std::to_string(o.top_p) +
           ", furthest " + std::to_string(o.furthest) + ", penalty " + std::to_string(o.repetition_penalty) + ", " +
           std::to_string(o.changes) + " changes";
  }

  // Whether the running sum that is drawn lies within a millionth of the sum of all from the weight of `token`.
  bool almost_drawn(std::size_t i, std::int32_t token) const {
    const auto kept = reference::draw_candidates(row(i), options[i], changes_of(i));
    std::uint64_t mass = 0, sum = 0;
    for (const auto& candidate : kept) mass += candidate.weight;
    const auto target =
        static_cast<double>(draw_target(random_bits(options[i].seed, kDrawStream, options[i].position), mass));
    const double slack = 1e-6 * static_cast<double>(mass);
    for (const auto& candidate : kept) {
      const auto before = static_cast<double>(sum);
      sum += candidate.weight;
      if (token_of_key(candidate.key) == token)
        return before - slack <= target && target <= static_cast<double>(sum) + slack;
    }
    return false;
  }

  // Log-probabilities of a draw and its alternatives, to the rounding of float32.
  void expect_scored(std::size_t i, DrawnToken drawn, std::span<const DrawnToken> top) const {
    const auto logits_of = row(i);
    if (options[i].alternatives < 0 || drawn.token < 0) {
      EXPECT_EQ(drawn.logprob, 0) << name(i);
      return;
    }
    const double all = reference::log_sum_exp(logits_of);
    const auto near = [&](DrawnToken one) {
      const auto logit = static_cast<double>(logits_of[static_cast<std::size_t>(one.token)]);
      const float exact = clipped_logprob(logit - all);
      EXPECT_NEAR(one.logprob, exact, 2e-6 * std::max(1.0f, std::abs(exact))) << name(i) << ", token " << one.token;
    };
    near(drawn);
    std::vector<LogitKey> sorted;
    for (std::size_t t = 0; t < logits_of.size(); ++t) {
      if (const auto key = score_key(logits_of[t], static_cast<std::int32_t>(t))) sorted.push_back(key);
    }
    const auto listed = std::min<std::ptrdiff_t>(options[i].alternatives, std::ssize(sorted));
    std::partial_sort(sorted.begin(), sorted.begin() + listed, sorted.end(), std::greater{});
    for (std::size_t n = 0; n < static_cast<std::size_t>(options[i].alternatives); ++n) {
      ASSERT_EQ(top[n].token, n < sorted.size() ? token_of_key(sorted[n]) : -1) << name(i) << ", place " << n;
      if (top[n].token >= 0) near(top[n]);
    }
  }
};

}  // namespace essh
