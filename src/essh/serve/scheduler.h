#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "essh/decode/engine.h"
#include "essh/serve/http.h"
#include "essh/serve/latency_control.h"
#include "essh/serve/metrics.h"
#include "essh/serve/prefix_cache.h"
#include "essh/serve/state_store.h"
#include "essh/text/tokenizer.h"

namespace essh::serve {

// The log-probability of a token under the model alone, without temperature, penalties or bias, and of the most likely
// tokens, best first. Never below kLeastLogprob.
struct Scored {
  TokenId token = -1;
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top = {};
};
Scored score(std::span<const float> logits, TokenId token, int alternatives);

enum class Finish { Stop, Length };

// Hears what becomes of a job, on the engine's thread but for accepted(). Text number p * n + c is choice c of prompt
// p.
class Listener {
 public:
  virtual ~Listener() = default;
  // The client has left: the job is dropped before the next step.
  virtual bool gone() const = 0;
  // The first call, by the thread that submits.
  virtual void accepted() = 0;
  // Tokens of a prompt whose state was known.
  virtual void prompt_cached(std::size_t prompt, std::size_t tokens) = 0;
  // Tokens of a prompt that have been taken in, with more to come.
  virtual void prompt_progress(std::size_t prompt, std::size_t tokens) = 0;
  // Tokens of a prompt from its second on, piece by piece in their order.
  virtual void prompt_scored(std::size_t prompt, std::span<const Scored> scored) = 0;
  // A drawn token; `shown` is false for the end of text. Returns false when the text is complete.
  virtual bool token(std::size_t text, TokenId token, bool shown, const Scored* scored) = 0;
  // Before ended(), where the job keeps its state.
  virtual void kept(SavedState state) = 0;
  virtual void ended(std::size_t text, Finish finish) = 0;
  // The last call.
  virtual void failed(const HttpError& error) = 0;
};

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
  std::shared_ptr<Listener> listener = nullptr;

  std::size_t texts() const { return prompts.size() * static_cast<std::size_t>(n); }
};

struct SchedulerOptions {
  std::int64_t max_slots = 64;                             // texts in one step
  std::int64_t max_queue = 4096;                           // texts that wait
  std::int64_t max_queued_tokens = std::int64_t{1} << 24;  // of the prompts of all jobs
  std::int64_t prompt_piece = 0;                           // prompt tokens of one step; 0: the engine's own piece
  std::size_t cache_bytes = 0;                             // of the prefix cache; 0: none
  LatencyControl* latency = nullptr;                       // is told what every step took
  std::function<void()> before_step = nullptr;             // for tests: an exception is one of the step
};

// Continuous batching: one thread steps the engine. Every step advances all texts that draw by a token and takes in one
// piece of prompts, in turn. The same request gives the same bits alone and among others, as far as the engine does.
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
  void fail(Active& job, const HttpError& error);
  template <class Body>
  void guarded(Active& job, const Body& body);

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
  std::vector<std::unique_ptr<Text>> waiting_, running_;
  PrefixCache cache_;
  Outputs outputs_;
  std::uint64_t steps_ = 0;
  double longest_gap_ = 0;  // between two tokens of a text, in this step

  std::atomic<std::int64_t> load_{0}, queued_tokens_{0}, held_{0}, state_bytes_{0}, cache_bytes_{0};
  std::atomic<bool> draining_{false}, broken_{false};
  std::thread thread_;
};

}  // namespace essh::serve
