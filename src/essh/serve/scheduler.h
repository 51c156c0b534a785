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
  std::int64_t n = 1;                              // choices of each prompt
  std::int64_t max_tokens = 16;
  SamplingOptions sampling = {};  // choice c draws with seed + c
  double presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  int logprobs = -1;          // alternatives of each drawn token; -1: no log-probabilities
  bool score_prompt = false;  // with `logprobs` alternatives
  bool ignore_eos = false;
  std::string salt = {};  // of the prefix cache
  // Goes on from here; its pending tokens are the first of the prompt. With `resume_sampler` its random numbers go on,
  // too.
  std::shared_ptr<const SavedState> from = nullptr;
  bool resume_sampler = false;
  bool keep_state = false;  // of the one text
  // token() may return false. Such a job is told on the engine's thread, so that its texts end with that token.
  bool may_stop = true;
  std::shared_ptr<Listener> listener = nullptr;

  std::size_t texts() const { return prompts.size() * static_cast<std::size_t>(n); }
};

struct SchedulerOptions {
  std::int64_t max_slots = 64;                             // texts in one step
  std::int64_t max_queue = 4096;                           // texts that wait
  std::int64_t max_queued_tokens = std::int64_t{1} << 24;  // of the prompts of all jobs
  std::int64_t prompt_piece = 0;                           // prompt tokens of one step; 0: the engine's own piece
  std::int64_t prompt_wait = -1;                           // steps a prompt waits to share a pass; -1: by device
  std::size_t cache_bytes = 0;                             // of the prefix cache; 0: none
  LatencyControl* latency = nullptr;                       // is told what every step took
  std::function<void()> before_step = nullptr;             // for tests: an exception is one of the step
};

// Continuous batching: one thread steps the engine, another tells listeners. Every step advances all texts that draw by
// a token and takes in one piece of prompts, in turn. While texts draw, prompts wait for up to `prompt_wait` steps or
// until they fill a piece: a pass over one short prompt costs a GPU about as much as over many. The same request gives
// the same bits alone and among others, as far as the engine does.
class Scheduler {
 public:
  // The engine and the metrics outlive it; nobody else runs the engine meanwhile.
  Scheduler(Engine& engine, SchedulerOptions options, Metrics& metrics);
  // Fails what is left.
  ~Scheduler();

  // Takes a job in or throws: 429 when the queue is full, 503 when draining.
  void submit(Job job);
  // Refuses new jobs from now on.
  void drain() { draining_ = true; }
  bool draining() const { return draining_; }
  // Fails every job that is left, with 503, and returns when no listener is called any more.
  void stop();
  // No job is left.
  bool idle() const { return load_ == 0; }
  // The device has failed for good.
  bool broken() const { return broken_; }
  Gauges gauges() const;

 private:
  struct Active;
  struct Shared;
  struct Text;

  void work();
  void sweep();
  void admit();
  void start(std::unique_ptr<Text> text);
  void step();
  void take(Text& text, std::size_t fed, const Outputs::Entry& entry);
  void finish_prompt(Text& text, std::span<const float> logits, bool known);
  void draw(Text& text, std::span<const float> logits);
  void go_on(Text& text, const Scored& drawn);
  void end(Text& text, Finish finish);
  // Calls the listener: at once if a text may end by it, else on the listeners' thread.
  bool tell(const std::shared_ptr<Active>& job, Notice notice);
  void fail(const std::shared_ptr<Active>& job, const HttpError& error);
  template <class Body>
  void guarded(const std::shared_ptr<Active>& job, const Body& body);
  bool prompts_are_due(std::span<Text* const> prompts, bool drawing) const;
  void keep(Text& text, std::span<const TokenId> tokens, std::span<const float> logits);
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

  // The engine's thread alone.
  std::deque<std::unique_ptr<Text>> waiting_;
  std::vector<std::unique_ptr<Text>> running_;
  PrefixCache cache_;
  Outputs outputs_;
  std::uint64_t steps_ = 0;
  // Of this step: when its tokens were there, what was drawn and read, and the longest time between two tokens of a
  // text.
  std::chrono::steady_clock::time_point now_{};
  Metrics::Step found_;
  double longest_gap_ = 0;

  std::atomic<std::int64_t> load_{0}, queued_tokens_{0}, held_{0}, state_bytes_{0}, cache_bytes_{0};
  std::atomic<bool> draining_{false}, broken_{false};
  ListenerThread listeners_;
  std::thread thread_;
};

}  // namespace essh::serve
