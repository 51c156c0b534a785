#include "essh/evaluate/likelihood.h"

#include <algorithm>
#include <cmath>

#include "essh/evaluate/task_template.h"

namespace essh {
namespace {

bool shares_context(const EncodedItem& item) {
  return item.size() > 1 && item.front().context.size() > 1 &&
         std::ranges::all_of(item, [&](const auto& request) { return request.context == item.front().context; });
}

// Closes its slots on destruction.
class OpenSlots {
 public:
  explicit OpenSlots(Engine& engine) : engine_(engine) {}
  ~OpenSlots() {
    for (const auto slot : slots_) engine_.close(slot);
  }
  OpenSlots(const OpenSlots&) = delete;
  OpenSlots& operator=(const OpenSlots&) = delete;
  Slot add(Slot slot) {
    slots_.push_back(slot);
    return slot;
  }

 private:
  Engine& engine_;
  std::vector<Slot> slots_;
};

// The inputs of one request, the rows that are scored and their targets.
struct Feed {
  std::vector<TokenId> tokens, targets;
  std::vector<Index> rows;
  std::size_t first = 0;  // row that predicts the first token of the continuation
};

Feed make_feed(const EncodedRequest& request, std::size_t context_read) {
  Feed feed;
  feed.tokens.assign(request.context.begin() + static_cast<std::ptrdiff_t>(context_read), request.context.end());
  feed.first = feed.tokens.size() - 1;
  feed.tokens.insert(feed.tokens.end(), request.continuation.begin(), request.continuation.end() - 1);
  feed.targets.assign(feed.first, kUnscored);
  feed.targets.insert(feed.targets.end(), request.continuation.begin(), request.continuation.end());
  for (std::size_t row = feed.first; row < feed.tokens.size(); ++row) feed.rows.push_back(static_cast<Index>(row));
  return feed;
}

// log p of a token, and whether its logit is the largest.
Likelihood of_logits(std::span<const float> logits, TokenId token) {
  const auto largest = std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - static_cast<double>(*largest));
  const auto wanted = static_cast<double>(logits[static_cast<std::size_t>(token)]);
  return {wanted - static_cast<double>(*largest) - std::log(sum), largest - logits.begin() == token,
          largest - logits.begin() == token};
}

Likelihood of_output(const Outputs::Entry& output, const Feed& feed, const EncodedRequest& request, bool greedy) {
  Likelihood result{.greedy = greedy};
  if (!greedy) {
    for (std::size_t row = feed.first; row < feed.targets.size(); ++row)
      result.log_likelihood -= static_cast<double>(output.losses[row]);
    return result;
  }
  for (std::size_t i = 0; i < request.continuation.size(); ++i) {
    const auto* row = output.logits.row(static_cast<Index>(i));
    const auto one = of_logits({row, static_cast<std::size_t>(output.logits.cols)}, request.continuation[i]);
    result.log_likelihood += one.log_likelihood;
    result.greedy = result.greedy && one.greedy;
    if (i == 0) result.first_greedy = one.greedy;
  }
  return result;
}

}  // namespace

EncodedRequest encode_request(const TaskRequest& request, const Tokenizer& tokenizer, TokenId eos,
                              std::size_t most_tokens, const std::string& place) {
  constexpr EncodeOptions kPlain{.parse_special_tokens = false};
  EncodedRequest encoded;
  if (request.context.empty()) {
    encoded.context = {eos};
    encoded.continuation = tokenizer.encode(request.continuation, kPlain);
  } else {
    const auto end = trailing_space(request.context);
    encoded.context = tokenizer.encode(std::string_view(request.context).substr(0, end), kPlain);
    const auto whole = tokenizer.encode(request.context + request.continuation, kPlain);
    if (encoded.context.size() < whole.size())
      encoded.continuation.assign(whole.begin() + static_cast<std::ptrdiff_t>(encoded.context.size()), whole.end());
    if (encoded.context.empty()) encoded.context = {eos};
  }
  if (encoded.continuation.empty())
    fail(ErrorKind::BadFile, "{}: the continuation has no token of its own; give it text", place);
  if (most_tokens > 0 && encoded.tokens() > most_tokens) {
    const auto cut = encoded.tokens() - most_tokens;
    if (cut >= encoded.context.size()) {
      fail(ErrorKind::Usage, "{}: a continuation of {} tokens does not fit into {}", place, encoded.continuation.size(),
           most_tokens);
    }
    encoded.context.erase(encoded.context.begin(), encoded.context.begin() + static_cast<std::ptrdiff_t>(cut));
  }
  return encoded;
}

std::size_t pass_tokens(const EncodedItem& item) {
  std::size_t sum = shares_context(item) ? item.front().context.size() - 1 : 0;
  const auto read = sum;
  for (const auto& request : item) sum += request.tokens() - read;
  return sum;
}

std::vector<std::vector<Likelihood>> measure_likelihoods(Engine& engine, const Tier& tier,
                                                         std::span<const EncodedItem> items, bool greedy) {
  OpenSlots slots(engine);
  std::vector<Slot> readers(items.size());
  std::vector<Chunk> contexts;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!shares_context(items[i])) continue;
    const auto& context = items[i].front().context;
    readers[i] = slots.add(engine.open(tier));
    contexts.push_back(
        {.slot = readers[i], .tokens = std::span(context).first(context.size() - 1), .wanted = Wanted::Nothing});
  }
  Outputs outputs;
  if (!contexts.empty()) engine.run(contexts, outputs);

  std::vector<Feed> feeds;
  std::vector<Slot> own;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const bool shared = shares_context(items[i]);
    for (std::size_t r = 0; r < items[i].size(); ++r) {
      feeds.push_back(make_feed(items[i][r], shared ? items[i][r].context.size() - 1 : 0));
      const bool last = r + 1 == items[i].size();
      own.push_back(!shared ? slots.add(engine.open(tier)) : (last ? readers[i] : slots.add(engine.fork(readers[i]))));
    }
  }
  std::vector<Chunk> chunks;
  for (std::size_t f = 0; f < feeds.size(); ++f) {
    chunks.push_back({.slot = own[f], .tokens = feeds[f].tokens, .wanted = greedy ? Wanted::Rows : Wanted::Scores});
    if (greedy)
      chunks.back().rows = feeds[f].rows;
    else
      chunks.back().targets = feeds[f].targets;
  }
  engine.run(chunks, outputs);

  std::vector<std::vector<Likelihood>> results;
  std::size_t f = 0;
  for (const auto& item : items) {
    auto& result = results.emplace_back();
    for (const auto& request : item) {
      result.push_back(of_output(outputs.entries[f], feeds[f], request, greedy));
      ++f;
    }
  }
  return results;
}

}  // namespace essh
