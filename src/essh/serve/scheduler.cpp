#include "essh/serve/scheduler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "essh/base/error.h"
#include "essh/base/log.h"
#include "essh/base/thread_name.h"

namespace essh::serve {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Steps between two measurements of the bytes of states.
constexpr std::uint64_t kStepsPerMeasurement = 64;
// On a GPU the pass of a prompt launches every kernel separately: a few milliseconds, about four steps of many texts, a
// quarter of the longest wait.
constexpr std::int64_t kPromptWait = 16;
constexpr std::size_t kWaitsPerPass = 4;

HttpError shutting_down() {
  return {503, "the server is shutting down; send the request again", "", "shutting_down"};
}

}  // namespace

Scored score(std::span<const float> logits, TokenId token, int alternatives) {
  std::vector<DrawnToken> top(static_cast<std::size_t>(std::max(alternatives, 0)));
  Scored scored{.token = token, .logprob = score_token(logits, token, top).logprob};
  for (const auto& [id, logprob] : top) {
    if (id >= 0) scored.top.emplace_back(id, logprob);
  }
  return scored;
}

// A job with texts that have not ended.
struct Scheduler::Active : Recipient {
  explicit Active(Job from) : job(std::move(from)) { listener = job.listener; }

  Job job;
  Clock::time_point arrived = Clock::now();
  std::size_t open = 0;  // texts that have not ended
  std::int64_t tokens = 0;
  bool drawn = false;
  bool over = false;
};

// A prompt with several choices: the first computes it, the others fork its state.
struct Scheduler::Shared {
  explicit Shared(Engine& of) : engine(of) {}
  ~Shared() {
    if (slot != Slot{}) engine.close(slot);
  }

  Engine& engine;
  Slot slot = {};  // state at the end of the prompt, once `ready`
  std::vector<float> logits;
  std::vector<std::unique_ptr<Text>> siblings;
  bool ready = false;
};

struct Scheduler::Text {
  std::shared_ptr<Active> active;
  std::size_t number, prompt;
  Sampler sampler;
  std::shared_ptr<Shared> shared = nullptr;
  Slot slot = {};
  std::int64_t bytes = 0;   // of its state, when last measured
  std::size_t fed = 0;      // prompt tokens fed
  std::uint64_t turn = 0;   // step of the last piece, or of the start
  std::int64_t made = 0;    // tokens drawn
  bool begun = false;       // a piece of the prompt has been computed
  bool reads_last = false;  // the next step reads the last token of the prompt
  TokenId last = -1;
  std::vector<TokenId> drawn = {};  // tokens drawn, for the cache
  std::map<TokenId, std::int64_t> counts = {};
  std::vector<LogitChange> changes = {};
  Clock::time_point since = Clock::now();
  bool over = false;
  bool deaf = false;  // its listener has failed

  // Biases and the penalties of the OpenAI API, by ascending token.
  std::span<const LogitChange> logit_changes() {
    const auto& job = active->job;
    std::map<TokenId, LogitChange> by_token;
    for (const auto& [id, bias] : job.logit_bias) by_token[id].bias += bias;
    for (const auto& [id, count] : counts) {
      by_token[id].penalty =
          static_cast<float>(job.presence_penalty + job.frequency_penalty * static_cast<double>(count));
    }
    changes.clear();
    for (auto& [id, change] : by_token) {
      change.token = id;
      changes.push_back(change);
    }
    return changes;
  }

  const std::vector<TokenId>& tokens() const { return active->job.prompts[prompt]; }
  // Tokens that are read as a prompt. If something is drawn and no logits of the prompt are wanted, the last token is
  // the first step's: no logits leave the device, and a known prompt needs none.
  std::size_t prompt_end() const {
    const auto& job = active->job;
    return tokens().size() - (job.max_tokens > 0 && !job.score_prompt ? 1 : 0);
  }
  bool prompted() const { return fed == prompt_end(); }
};

// A call to a listener that waits for the launch of the next step: the usual token of a text, or any other.
struct Scheduler::Said {
  Text* text = nullptr;
  TokenId token = -1;
  bool shown = true;
  Clock::time_point at = {};
  std::unique_ptr<Notice> other = nullptr;
};

Scheduler::Scheduler(Engine& engine, SchedulerOptions options, Metrics& metrics)
    : engine_(engine),
      options_(options),
      metrics_(metrics),
      cache_(options.cache_bytes, engine.stream().device()),
      listeners_([this](std::int64_t texts, std::int64_t tokens) {
        queued_tokens_ -= tokens;
        load_ -= texts;
      }) {
  // A multiple of the scan's chunk, and the piece of `essh logits`, for the same bits.
  score_piece_ = std::clamp<Index>((Index{16} << 20) / engine.config().vocab_size / 64 * 64, 64, 512);
  const bool cpu = engine.stream().device() == Device::Cpu;
  if (options_.prompt_piece <= 0) options_.prompt_piece = cpu ? 512 : 8192;
  if (options_.prompt_wait < 0) options_.prompt_wait = cpu ? 0 : kPromptWait;
  thread_ = std::thread([this] { work(); });
}

Scheduler::~Scheduler() {
  stop();
}

void Scheduler::prepare(std::span<const Tier> tiers) {
  for (const auto& tier : tiers) {
    if (&tier != &tiers.front() && engine_.stream().free_memory_share() < 0.5) {
      log::info("serve: tiers from {} down are prepared when they are first used; half of the memory stays free",
                tier.name);
      return;
    }
    try {
      engine_.prepare(tier, options_.max_slots, options_.prompt_piece);
    } catch (const Error& error) {
      // Smaller steps may still fit.
      if (error.kind() != ErrorKind::OutOfMemory) throw;
      log::warn("serve: too little memory for {} texts at once at tier {}; give a smaller --max-slots: {}",
                options_.max_slots, tier.name, error.what());
      return;
    }
  }
}

void Scheduler::stop() {
  draining_ = true;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  std::call_once(joined_, [this] {
    thread_.join();
    listeners_.finish();
  });
}

Gauges Scheduler::gauges() const {
  const std::int64_t running = held_;
  return {.running = running,
          .queued = std::max<std::int64_t>(0, load_ - running),
          .connections = 0,
          .state_bytes = state_bytes_,
          .cache_bytes = cache_bytes_};
}

void Scheduler::submit(Job job) {
  if (draining_) throw shutting_down();
  auto active = std::make_shared<Active>(std::move(job));
  const auto& j = active->job;
  active->open = j.texts();
  for (const auto& prompt : j.prompts) active->tokens += static_cast<std::int64_t>(prompt.size());
  std::vector<std::unique_ptr<Text>> texts;
  for (std::size_t prompt = 0; prompt < j.prompts.size(); ++prompt) {
    const auto shared = j.n > 1 ? std::make_shared<Shared>(engine_) : nullptr;
    for (std::int64_t choice = 0; choice < j.n; ++choice) {
      auto sampling = j.sampling;
      sampling.seed += static_cast<std::uint64_t>(choice);
      auto text = std::make_unique<Text>(
          Text{.active = active,
               .number = prompt * static_cast<std::size_t>(j.n) + static_cast<std::size_t>(choice),
               .prompt = prompt,
               .sampler = Sampler(sampling),
               .shared = shared});
      (choice == 0 ? texts : shared->siblings).push_back(std::move(text));
    }
  }
  const std::lock_guard lock(mutex_);
  if (stopping_) throw shutting_down();
  if (load_ + static_cast<std::int64_t>(active->open) > options_.max_slots + options_.max_queue ||
      queued_tokens_ + active->tokens > options_.max_queued_tokens) {
    throw HttpError(429,
                    fmt::format("the server is busy: at most {} texts run and {} texts or {} prompt tokens wait",
                                options_.max_slots, options_.max_queue, options_.max_queued_tokens),
                    "", "overloaded");
  }
  j.listener->accepted();
  load_ += static_cast<std::int64_t>(active->open);
  queued_tokens_ += active->tokens;
  for (auto& text : texts) inbox_.push_back(std::move(text));
  wake_.notify_one();
}

void Scheduler::work() {
  name_thread("essh-engine");
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !inbox_.empty() || !waiting_.empty() || !running_.empty(); });
      for (auto& text : inbox_) waiting_.push_back(std::move(text));
      inbox_.clear();
      if (stopping_) break;
    }
    try {
      now_ = Clock::now();
      sweep();
      admit();
      step();
      if (ended_) sweep();
    } catch (const std::exception& error) {
      log::warn("serve: {}", error.what());
      const HttpError shown(500, error.what());
      for (auto& text : running_) fail(text->active, shown);
    }
    if (running_.empty()) settle();
  }
  for (auto& text : waiting_) fail(text->active, shutting_down());
  for (auto& text : running_) fail(text->active, shutting_down());
  sweep();
  settle();
}

void Scheduler::settle() {
  for (auto& said : said_) {
    if (said.other) {
      listeners_.add(std::move(*said.other));
      continue;
    }
    observe_token(*said.text, said.at);
    listeners_.add({.to = said.text->active, .text = said.text->number, .token = said.token, .shown = said.shown});
  }
  said_.clear();
  left_.clear();
  for (auto& text : running_) text->deaf = text->active->deaf;
  if (options_.latency && longest_gap_ > 0) {
    const double now = std::chrono::duration<double>(now_.time_since_epoch()).count();
    options_.latency->observe(now, longest_gap_, std::ssize(waiting_));
  }
  longest_gap_ = 0;
  count();
  listeners_.hand_over();
}

// Adds the counts of the step to the metrics before a client can see its tokens.
void Scheduler::count() {
  if (found_.steps > 0 || found_.drawn > 0) metrics_.stepped(found_);
  found_.steps = found_.prompt_steps = found_.drawn = found_.read = 0;
  found_.gaps.clear();
}

bool Scheduler::tell(const std::shared_ptr<Active>& job, Notice notice) {
  notice.to = job;
  if (job->job.may_stop) return listeners_.tell(notice);
  said_.push_back({.other = std::make_unique<Notice>(std::move(notice))});
  return true;
}

// An exception ends this job only.
template <class Body>
void Scheduler::guarded(const std::shared_ptr<Active>& job, const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    fail(job, as_http_error(error));
  }
}

void Scheduler::fail(const std::shared_ptr<Active>& job, const HttpError& error) {
  if (std::exchange(job->over, true)) return;
  ended_ = true;
  tell(job, {.call = [error](Listener& listener) { listener.failed(error); },
             .texts = static_cast<std::int64_t>(job->open),
             .tokens = job->tokens});
}

bool Scheduler::is_over(Text& text) {
  auto& active = *text.active;
  if (!active.over && active.job.listener->gone()) {
    metrics_.cancelled("disconnected");
    fail(text.active, HttpError(499, "the client has left"));
  }
  if (!active.over && text.deaf) fail(text.active, HttpError(500, "the reply could not be made"));
  return active.over || text.over;
}

void Scheduler::release(Text& text) {
  if (text.slot != Slot{}) engine_.close(std::exchange(text.slot, Slot{}));
  state_bytes_ -= text.bytes;
  if (text.active->over && text.shared) text.shared->siblings.clear();  // siblings own the shared prompt
  text.shared.reset();
}

// Removes texts that have ended or failed, or whose client has left.
void Scheduler::sweep() {
  ended_ = false;
  std::erase_if(waiting_, [&](const std::unique_ptr<Text>& text) {
    const bool over = is_over(*text);
    if (over) release(*text);
    return over;
  });
  std::size_t kept = 0;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    if (is_over(*running_[i])) {
      release(*running_[i]);
      left_.push_back(std::move(running_[i]));
    } else {
      std::swap(running_[kept++], running_[i]);
    }
  }
  running_.resize(kept);
  held_ = std::ssize(running_);
  cache_bytes_ = static_cast<std::int64_t>(cache_.bytes());
  if (steps_ % kStepsPerMeasurement == 0) {
    for (auto& text : running_) measure(*text);
  }
}

// Updates the bytes of a text's state, which grow with full attention.
void Scheduler::measure(Text& text) {
  const auto bytes = static_cast<std::int64_t>(engine_.state_bytes(text.slot));
  state_bytes_ += bytes - std::exchange(text.bytes, bytes);
}

void Scheduler::admit() {
  while (!waiting_.empty() && std::ssize(running_) < options_.max_slots) {
    auto text = std::move(waiting_.front());
    waiting_.pop_front();
    const auto active = text->active;
    guarded(active, [&] { start(std::move(text)); });
  }
}

void Scheduler::start(std::unique_ptr<Text> text) {
  const auto& job = text->active->job;
  metrics_.observe(Metrics::Queue, seconds_since(text->active->arrived));
  const bool ready = text->shared && text->shared->ready;
  if (job.max_tokens == 0 && !job.keep_state && (ready || !job.score_prompt)) {
    if (text->shared && !ready) {
      for (auto& sibling : std::exchange(text->shared->siblings, {})) end(*sibling, Finish::Length);
    }
    end(*text, Finish::Length);
    return;
  }
  const auto& tokens = text->tokens();
  const auto window = static_cast<std::size_t>(job.sampling.repetition_window);
  std::size_t seen = 0;
  if (job.from) {
    auto before = job.from->sampler;
    if (!job.resume_sampler) before.seed = job.sampling.seed, before.position = 0;
    text->sampler.resume(before);
    seen = job.from->pending.size();
  }
  for (std::size_t i = std::max(seen, tokens.size() - std::min(window, tokens.size())); i < tokens.size(); ++i)
    text->sampler.see(tokens[i]);
  PrefixCache::Found found;
  if (!ready && !job.score_prompt && !job.from)
    found = cache_.find(job.tier.capacity, job.salt, std::span(tokens).first(text->prompt_end()));
  if (found.tokens > 0) {
    try {
      text->slot = engine_.unpack(job.tier, found.state);
    } catch (const Error& error) {
      // The cache has freed its states for this slot, but `found` still holds their memory.
      if (error.kind() != ErrorKind::OutOfMemory) throw;
      found = {};
    }
  }
  if (text->slot == Slot{}) {
    text->slot = ready      ? engine_.fork(text->shared->slot)
                 : job.from ? engine_.restore(job.tier, job.from->state)
                            : engine_.open(job.tier);
  }
  text->since = now_;
  text->turn = steps_;
  running_.push_back(std::move(text));
  auto& started = *running_.back();
  measure(started);
  started.last = tokens.back();
  started.fed = ready ? started.prompt_end() : found.tokens;
  started.reads_last = !ready && started.prompt_end() < tokens.size();
  if (started.fed > 0) metrics_.cached_tokens(static_cast<std::int64_t>(started.fed));
  if (ready) {
    const auto shared = std::exchange(started.shared, nullptr);  // the last choice closes the shared slot
    if (!shared->logits.empty()) draw(started, shared->logits);
    return;
  }
  if (found.tokens > 0) {
    tell(started.active, {.call = [prompt = started.prompt, count = found.tokens](Listener& listener) {
           listener.prompt_cached(prompt, count);
         }});
  }
  if (started.prompted()) finish_prompt(started, {}, true);
}

// Prompts run at once if no text draws, if they fill a pass, or if one of them has begun. Otherwise they wait for more.
bool Scheduler::prompts_are_due(std::span<Text* const> prompts, std::size_t drawing) const {
  if (drawing == 0) return true;
  const auto most = static_cast<std::size_t>(options_.prompt_wait);
  std::size_t tokens = 0, waited = 0;
  for (const auto* text : prompts) {
    const auto steps = static_cast<std::size_t>(steps_ - text->turn);
    if (text->begun || steps >= most) return true;
    tokens += text->prompt_end() - text->fed;
    waited += steps;
  }
  return tokens >= static_cast<std::size_t>(options_.prompt_piece) || waited * kWaitsPerPass >= drawing * most;
}

void Scheduler::step() {
  std::vector<Chunk> chunks;
  std::vector<Text*> owners, prompts;
  chunks.reserve(running_.size());
  owners.reserve(running_.size());
  for (const auto& text : running_) {
    if (text->over || text->active->over) continue;
    if (!text->prompted()) {
      prompts.push_back(text.get());
      continue;
    }
    chunks.push_back({.slot = text->slot,
                      .tokens = {&text->last, 1},
                      .wanted = Wanted::Token,
                      .sampler = &text->sampler,
                      .changes = text->logit_changes(),
                      .alternatives = text->active->job.logprobs});
    owners.push_back(text.get());
  }
  ++steps_;
  if (!prompts_are_due(prompts, chunks.size())) prompts.clear();
  // Longest wait first.
  std::ranges::stable_sort(prompts, {}, [](const Text* text) { return text->turn; });
  std::size_t taken = 0, scored = 0;
  for (auto* text : prompts) {
    const auto& job = text->active->job;
    const auto piece = static_cast<std::size_t>(job.score_prompt ? score_piece_ : options_.prompt_piece);
    const auto count = std::min(piece, text->prompt_end() - text->fed);
    if (taken > 0 && taken + count > static_cast<std::size_t>(options_.prompt_piece)) continue;
    if (job.score_prompt && scored > 0 && scored + count > static_cast<std::size_t>(score_piece_)) continue;
    taken += count;
    if (job.score_prompt) scored += count;
    chunks.push_back({.slot = text->slot,
                      .tokens = std::span(text->tokens()).subspan(text->fed, count),
                      .wanted = job.score_prompt ? Wanted::All : Wanted::Nothing});
    owners.push_back(text);
    text->turn = steps_;
    text->begun = true;
  }
  if (chunks.empty()) return settle();
  try {
    if (options_.before_step) options_.before_step();
    engine_.run(chunks, outputs_, [this] { settle(); });
  } catch (const std::exception& error) {
    log::warn("serve: a step of {} texts failed: {}", chunks.size(), error.what());
    const auto* known = dynamic_cast<const Error*>(&error);
    if (known && known->kind() == ErrorKind::Device) broken_ = true;
    const auto reported = as_http_error(error);
    const HttpError shown(reported.status() == 503 ? 503 : 500, reported.what());
    for (auto* text : owners) fail(text->active, shown);
    return;
  }
  now_ = Clock::now();
  found_.steps = 1;
  found_.prompt_steps = taken > 0;
  found_.read = static_cast<std::int64_t>(taken);
  for (std::size_t i = 0; i < owners.size(); ++i) {
    auto& text = *owners[i];
    if (text.active->over) continue;
    guarded(text.active, [&] { take(text, chunks[i].tokens.size(), outputs_.entries[i]); });
  }
}

void Scheduler::take(Text& text, std::size_t fed, const Outputs::Entry& entry) {
  const auto& job = text.active->job;
  const auto row = [&](Index i) {
    return std::span(entry.logits.data + i * entry.logits.stride, static_cast<std::size_t>(entry.logits.cols));
  };
  if (text.prompted()) {
    if (entry.token < 0) throw HttpError(500, "the model gives no finite logit; run `essh verify` on it");
    Scored drawn{.token = entry.token, .logprob = entry.logprob};
    for (const auto& [id, logprob] : entry.top) drawn.top.emplace_back(id, logprob);
    if (std::exchange(text.reads_last, false)) {
      ++found_.read;
      metrics_.observe(Metrics::Prompt, seconds_since(text.since));
    }
    return go_on(text, drawn);
  }
  const auto& tokens = text.tokens();
  if (job.score_prompt) {
    std::vector<Scored> scored;
    for (std::size_t i = 0; i < fed && text.fed + i + 1 < tokens.size(); ++i)
      scored.push_back(score(row(static_cast<Index>(i)), tokens[text.fed + i + 1], job.logprobs));
    tell(text.active, {.call = [prompt = text.prompt, scored = std::move(scored)](Listener& listener) {
           listener.prompt_scored(prompt, scored);
         }});
  }
  text.fed += fed;
  if (!text.prompted()) {
    tell(text.active, {.call = [prompt = text.prompt, count = text.fed](Listener& listener) {
           listener.prompt_progress(prompt, count);
         }});
    return;
  }
  if (!text.reads_last) metrics_.observe(Metrics::Prompt, seconds_since(text.since));
  std::span<const float> logits;
  if (job.score_prompt) logits = row(entry.logits.rows - 1);
  finish_prompt(text, logits, false);
}

// `logits` are those of the last token where it was read with the prompt. `known`: the state comes from the cache.
void Scheduler::finish_prompt(Text& text, std::span<const float> logits, bool known) {
  const auto& job = text.active->job;
  if (!known && job.max_tokens > 0) keep(text, std::span(text.tokens()).first(text.fed));
  if (const auto shared = std::exchange(text.shared, nullptr)) {
    shared->ready = true;
    waiting_.insert(waiting_.begin(), std::make_move_iterator(shared->siblings.begin()),
                    std::make_move_iterator(shared->siblings.end()));
    shared->siblings.clear();
    if (job.max_tokens > 0) {
      shared->logits.assign(logits.begin(), logits.end());
      shared->slot = engine_.fork(text.slot);
    }
  }
  if (job.max_tokens == 0) return end(text, Finish::Length);
  if (!logits.empty()) draw(text, logits);
}

// Caches the state after `tokens`.
void Scheduler::keep(Text& text, std::span<const TokenId> tokens) {
  const auto& job = text.active->job;
  if (!cache_.enabled() || job.from) return;
  cache_.put(job.tier.capacity, job.salt, tokens, engine_.packed_bytes(text.slot),
             [&](std::byte* to) { engine_.pack(text.slot, to); });
}

void Scheduler::draw(Text& text, std::span<const float> logits) {
  const auto& job = text.active->job;
  TokenId token = -1;
  try {
    token = text.sampler.draw(logits, text.logit_changes());
  } catch (const Error& error) {
    throw HttpError(500, error.what());  // the model's fault, not the client's
  }
  text.sampler.see(token);
  go_on(text, job.logprobs >= 0 ? score(logits, token, job.logprobs) : Scored{.token = token});
}

void Scheduler::observe_token(Text& text, Clock::time_point at) {
  const auto seconds = [&](Clock::time_point since) { return std::chrono::duration<double>(at - since).count(); };
  auto& active = *text.active;
  if (text.made > 1) {
    found_.gaps.push_back(seconds(text.since));
    longest_gap_ = std::max(longest_gap_, found_.gaps.back());
  } else if (!std::exchange(active.drawn, true)) {
    metrics_.observe(Metrics::FirstToken, seconds(active.arrived));
  }
  text.since = at;
}

void Scheduler::go_on(Text& text, const Scored& drawn) {
  const auto& job = text.active->job;
  const auto token = drawn.token;
  ++text.made;
  ++found_.drawn;
  if (job.presence_penalty != 0 || job.frequency_penalty != 0) ++text.counts[token];
  const bool eos = token == engine_.config().eos_token_id && !job.ignore_eos;
  bool more = true;
  if (!job.may_stop && job.logprobs < 0) {
    said_.push_back({.text = &text, .token = token, .shown = !eos, .at = now_});
  } else {
    observe_token(text, now_);
    Notice notice{.text = text.number, .token = token, .shown = !eos};
    if (job.logprobs >= 0) {
      // `more` is written only if the listener is called at once.
      notice.call = [number = text.number, token, eos, scored = drawn,
                     stopped = job.may_stop ? &more : nullptr](Listener& listener) {
        const bool on = listener.token(number, token, !eos, &scored);
        if (stopped) *stopped = on;
      };
      tell(text.active, std::move(notice));
    } else {
      more = tell(text.active, std::move(notice));
    }
  }
  text.last = token;
  if (eos || !more) return end(text, Finish::Stop);
  if (text.made == job.max_tokens) return end(text, Finish::Length);
  if (cache_.enabled() && !job.from) text.drawn.push_back(token);
}

void Scheduler::end(Text& text, Finish finish) {
  auto& active = *text.active;
  text.over = ended_ = true;
  // The state lacks the last token; a next turn starts with the others.
  if (text.made > 0 && text.slot != Slot{} && cache_.enabled()) {
    auto tokens = text.tokens();
    tokens.insert(tokens.end(), text.drawn.begin(), text.drawn.end());
    keep(text, tokens);
  }
  if (active.job.keep_state && text.slot != Slot{}) {
    auto saved = std::make_shared<SavedState>(
        SavedState{.tier = active.job.tier, .state = engine_.snapshot(text.slot), .sampler = text.sampler.state()});
    if (text.made > 0) saved->pending = {text.last};
    tell(text.active, {.call = [saved](Listener& listener) { listener.kept(std::move(*saved)); }});
  }
  if (active.job.may_stop) count();
  const bool last = --active.open == 0;
  if (last) {
    active.over = true;
    metrics_.observe(Metrics::Request, seconds_since(active.arrived));
  }
  tell(text.active, {.call = [number = text.number, finish](Listener& listener) { listener.ended(number, finish); },
                     .texts = 1,
                     .tokens = last ? active.tokens : 0});
}

}  // namespace essh::serve
