#include "essh/decode/speculation.h"

#include <algorithm>

#include "essh/model/mixer.h"

namespace essh {
namespace {

// The weight of one more token in the mean acceptance.
constexpr double kNewest = 1.0 / 16;
// Cost of one more row, in passes of one row: `essh bench decode -b 1,2,4,8` of a family of 7.7 M parameters on two ARM
// cores, and of 1.5b on an H200.
constexpr double kCpuRowCost = 0.3, kGpuRowCost = 0.11;

double share_of(std::span<const TokenShare> shares, std::int32_t token) {
  const auto found = std::ranges::lower_bound(shares, token, {}, &TokenShare::token);
  return found != shares.end() && found->token == token ? found->share : 0;
}

}  // namespace

std::int32_t draw_from(std::span<const TokenShare> shares, Rng& random) {
  if (shares.size() == 1) return shares[0].token;
  double sum = 0;
  for (const auto& one : shares) sum += one.share;
  double point = random.uniform() * sum;
  const TokenShare* last = nullptr;
  for (const auto& one : shares) {
    if (one.share <= 0) continue;
    last = &one;
    point -= one.share;
    if (point < 0) break;
  }
  ESSH_ASSERT(last);
  return last->token;
}

std::int32_t accept_or_draw(std::span<const TokenShare> target, std::span<const TokenShare> draft, std::int32_t drafted,
                            Rng& random) {
  const double wanted = share_of(target, drafted), given = share_of(draft, drafted);
  if (wanted >= given || (wanted > 0 && random.uniform() * given < wanted)) return drafted;
  std::vector<TokenShare> rest;
  for (const auto& one : target) {
    if (const double more = one.share - share_of(draft, one.token); more > 0) rest.push_back({one.token, more});
  }
  // Empty only by rounding, where both distributions are the same.
  return draw_from(rest.empty() ? target : rest, random);
}

Index best_draft_length(double acceptance, double draft_cost, double row_cost, const SpeculationOptions& options) {
  Index best = options.least;
  double best_rate = 0, tokens = 1, all = 1;
  for (Index length = 1; length <= options.most; ++length) {
    all *= acceptance;
    tokens += all;
    const double rate = tokens / (1 + static_cast<double>(length) * (draft_cost + row_cost));
    if (length >= options.least && rate > best_rate) {
      best = length;
      best_rate = rate;
    }
  }
  return best;
}

SpeculativeText::SpeculativeText(Session& target, const Tier& draft, SpeculationOptions options)
    : target_(target), engine_(target.engine()), options_(options) {
  static_assert(kMostDrafted == kSpareRows);
  ESSH_ASSERT(options.least >= 1 && options.most >= options.least && options.most <= kMostDrafted);
  if (draft.capacity.channels > target.tier().capacity.channels) {
    fail(ErrorKind::Usage, "tier {} has more channels than {} and cannot draft for it; draft with a smaller tier",
         draft.name, target.tier().name);
  }
  draft_cost_ =
      static_cast<double>(engine_.weight_bytes(draft)) / static_cast<double>(engine_.weight_bytes(target.tier()));
  row_cost_ = engine_.stream().device() == Device::Cpu ? kCpuRowCost : kGpuRowCost;
  draft_ = engine_.open(draft);
  engine_.follow(draft_, target.slot());
}

SpeculativeText::~SpeculativeText() {
  engine_.close(draft_);
}

void SpeculativeText::feed(std::span<const std::int32_t> tokens) {
  std::vector<std::int32_t> all(tokens.begin(), tokens.end());
  if (pending_) all.insert(all.begin(), *pending_);
  target_.feed(all);
  pending_.reset();
  found_.clear();
}

void SpeculativeText::draft(Sampler& sampler, Index count) {
  drafted_.clear();
  drafted_from_.clear();
  if (count == 0) return;
  engine_.follow(draft_, target_.slot());
  if (sampler.takes_likeliest()) {
    drafted_ = engine_.generate({&draft_, 1}, {&*pending_, 1}, count);
    for (const auto token : drafted_) drafted_from_.push_back({{token, 1}});
    return;
  }
  for (auto token = *pending_; std::ssize(drafted_) < count; token = drafted_.back()) {
    const Chunk step{.slot = draft_, .tokens = {&token, 1}};
    engine_.run({&step, 1}, outputs_);
    const auto logits = outputs_.entries[0].logits;
    drafted_from_.push_back(sampler.distribution({logits.data, static_cast<std::size_t>(logits.cols)}, drafted_));
    drafted_.push_back(draw_from(drafted_from_.back(), sampler.random()));
  }
}

std::span<const std::int32_t> SpeculativeText::next(Sampler& sampler, Index limit) {
  ESSH_ASSERT(limit > 0);
  found_.clear();
  if (!pending_) {
    found_ = {draw_from(sampler.distribution(target_.logits()), sampler.random())};
    pending_ = found_[0];
    return found_;
  }
  draft(sampler, std::min(best_draft_length(acceptance_, draft_cost_, row_cost_, options_), limit - 1));
  std::vector<std::int32_t> fed = {*pending_};
  fed.insert(fed.end(), drafted_.begin(), drafted_.end());
  target_.feed_each(fed);
  ++counts_.passes;
  counts_.drafted += std::ssize(drafted_);
  for (std::size_t i = 0; i <= drafted_.size(); ++i) {
    const auto from = sampler.distribution(target_.logits_after(static_cast<Index>(i)), found_);
    if (i == drafted_.size()) {
      found_.push_back(draw_from(from, sampler.random()));
      break;
    }
    found_.push_back(accept_or_draw(from, drafted_from_[i], drafted_[i], sampler.random()));
    const bool accepted = found_.back() == drafted_[i];
    acceptance_ += kNewest * ((accepted ? 1 : 0) - acceptance_);
    ++counts_.checked;
    counts_.accepted += accepted;
    if (!accepted) break;
  }
  target_.take_back(std::ssize(fed) - std::ssize(found_));
  pending_ = found_.back();
  return found_;
}

void SpeculativeText::keep(Index count) {
  const Index all = std::ssize(found_);
  ESSH_ASSERT(count >= 0 && count <= all);
  if (count == all) return;
  // The last token found has not been fed.
  pending_.reset();
  if (all - 1 > count) target_.take_back(all - 1 - count);
  found_.resize(static_cast<std::size_t>(count));
}

}  // namespace essh
