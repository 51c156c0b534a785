#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "essh/decode/engine.h"
#include "essh/serve/latency_control.h"
#include "essh/serve/listener_thread.h"
#include "essh/serve/metrics.h"
#include "essh/serve/prefix_cache.h"

namespace essh::serve {

Scored score(std::span<const float> logits, TokenId token, int alternatives);

struct Job {
  Tier tier = {};
  std::vector<std::vector<TokenId>> prompts = {};  // none empty
  std::int64_t n = 1;                              // choices per prompt
  std::int64_t max_tokens = 16;
  SamplingOptions sampling = {};  // choice c draws with seed + c
  double presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  int logprobs = -1;          // alternatives per drawn token; -1: no log-probabilities
  bool score_prompt = false;  // also scores the prompt, with `logprobs` alternatives
  bool ignore_eos = false;
  std::string salt = {};  // key of the prefix cache
  // The state to resume; its pending tokens are the first of the prompt. With `resume_sampler`, its random numbers
  // continue too.
  std::shared_ptr<const SavedState> from = nullptr;
  bool resume_sampler = false;
  bool keep_state = false;  // saves the state after the text; for one text only
  // token() may return false. The listener of such a job runs on the engine's thread, so that a text ends with that
  // token.
  bool may_stop = true;
  std::shared_ptr<Listener> listener = nullptr;

  std::size_t texts() const { return prompts.size() * static_cast<std::size_t>(n); }
};

struct SchedulerOptions {
  std::int64_t max_slots = 64;                             // texts per step
  std::int64_t max_queue = 4096;                           // waiting texts
  std::int64_t max_queued_tokens = std::int64_t{1} << 24;  // prompt tokens of all jobs
  std::int64_t prompt_piece = 0;                           // prompt tokens per step; 0: 512 on a CPU, 8,192 on a GPU
  std::int64_t prompt_wait = -1;      // most steps a prompt waits to share a pass; -1: 0 on a CPU, 16 on a GPU
  std::size_t cache_bytes = 0;        // budget of the prefix cache; 0: no cache
  LatencyControl* latency = nullptr;  // observes every step
  std::function<void()> before_step = nullptr;  // for tests: an exception fails the step
};

// Continuous batching. One thread runs the engine, another calls listeners. Every step advances each drawing text by
// one token and computes one piece of prompts, in turn. While texts draw, prompts wait for each other, because on a GPU
// a pass over one short prompt costs about as much as over many: until they fill a piece, have waited as many steps
// together as their pass costs the drawing texts, or one of them has waited `prompt_wait` steps. A request gets the
// same bits alone and among others if the engine is deterministic.
//
// Between two steps the engine's thread only decides what the next one computes. Calls to listeners and metrics of a
// step wait in `said_` until the next one is launched, or until nothing runs.
class Scheduler {
 public:
  // The engine and the metrics outlive the Scheduler, which alone uses the engine.
  Scheduler(Engine& engine, SchedulerOptions options, Metrics& metrics);
  // Fails the remaining jobs.
  ~Scheduler();

  // Prepares the engine for every size of step and prompts at these tiers, before the first request: at the first one,
  // and at others while half of the GPU's memory is free.
  void prepare(std::span<const Tier> tiers);
  // Throws 429 if the queue is full, 503 when draining.
  void submit(Job job);
  // Refuses new jobs.
  void drain() { draining_ = true; }
  bool draining() const { return draining_; }
  // Fails the remaining jobs with 503 and returns after the last call to a listener.
  void stop();
  bool idle() const { return load_ == 0; }
  // True after an unrecoverable failure of the device.
  bool broken() const { return broken_; }
  Gauges gauges() const;

 private:
  struct Active;
  struct Said;
  struct Shared;
  struct Text;

  void work();
  void sweep();
  bool is_over(Text& text);
  void release(Text& text);
  void admit();
  void start(std::unique_ptr<Text> text);
  void step();
  void take(Text& text, std::size_t fed, const Outputs::Entry& entry);
  void finish_prompt(Text& text, std::span<const float> logits, bool known);
  void draw(Text& text, std::span<const float> logits);
  void go_on(Text& text, const Scored& drawn);
  void end(Text& text, Finish finish);
  void observe_token(Text& text, std::chrono::steady_clock::time_point at);
  // Hands over to the listener thread what was said since the last call, after its counts.
  void settle();
  // Calls the listener: at once if the job may stop, else later on the listener thread.
  bool tell(const std::shared_ptr<Active>& job, Notice notice);
  void fail(const std::shared_ptr<Active>& job, const HttpError& error);
  template <class Body>
  void guarded(const std::shared_ptr<Active>& job, const Body& body);
  bool prompts_are_due(std::span<Text* const> prompts, std::size_t drawing) const;
  void keep(Text& text, std::span<const TokenId> tokens);
  void measure(Text& text);
  void count();

  Engine& engine_;
  SchedulerOptions options_;
  Metrics& metrics_;
  Index score_piece_ = 64;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Text>> inbox_;
  bool stopping_ = false;
  std::once_flag joined_;

  // Used by the engine's thread only.
  std::deque<std::unique_ptr<Text>> waiting_;
  std::vector<std::unique_ptr<Text>> running_;
  std::vector<Said> said_;
  std::vector<std::unique_ptr<Text>> left_;  // no longer running, but perhaps in said_
  bool ended_ = false;                       // a text or a job, since the last sweep
  PrefixCache cache_;
  Outputs outputs_;
  std::uint64_t steps_ = 0;
  // Time of the tokens of the last step, or of the start of this one; counts and the longest time between two tokens of
  // a text since the last settle().
  std::chrono::steady_clock::time_point now_{};
  Metrics::Step found_;
  double longest_gap_ = 0;

  std::atomic<std::int64_t> load_{0}, queued_tokens_{0}, held_{0}, state_bytes_{0}, cache_bytes_{0};
  std::atomic<bool> draining_{false}, broken_{false};
  ListenerThread listeners_;
  std::thread thread_;
};

}  // namespace essh::serve
