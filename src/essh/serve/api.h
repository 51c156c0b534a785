#pragma once
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "essh/serve/chat_template.h"
#include "essh/serve/completion.h"
#include "essh/serve/http_server.h"

namespace essh::serve {

struct ApiOptions {
  std::filesystem::path folder = {};  // model folder
  std::string name = {};              // model name in requests and replies
  std::string tier = "full";          // for requests without a tier
  ChatTemplate chat = ChatTemplate::ChatMl;
  std::vector<std::string> keys = {};   // empty: no key is needed
  std::vector<std::string> hosts = {};  // accepted Host headers, in lower case; empty: any
  RequestLimits limits = {};
  std::uint64_t max_body = 16u << 20;
  std::filesystem::path frontier = {};  // output of `essh frontier --json` for the console; empty: none
  std::size_t max_capacities = 8;       // other than the named tiers; each is packed and stays in memory
  LatencyControl* latency = nullptr;    // reduces the tier of requests without one
  bool reduce_named = false;            // also of requests that name a tier
  StateStore* states = nullptr;         // null: clients cannot save states
};

// A tier and the smaller named tiers, in descending order: the levels of LatencyControl.
std::vector<Tier> reduced_tiers(const ModelConfig& config, const Tier& tier);

// The endpoints. One model serves all its capacities.
class Api : public Handler {
 public:
  // All arguments outlive the Api. Fails if the default tier does not exist.
  Api(ApiOptions options, const Engine& engine, const Tokenizer& tokenizer, Scheduler& scheduler, Metrics& metrics);

  std::optional<HttpReply> refuse(const HttpRequest& head) override;
  bool quick(const HttpRequest& request) const override;
  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) noexcept override;
  HttpReply malformed(int status, const std::string& message) override;
  void drain() override { scheduler_.drain(); }
  bool idle() const override { return scheduler_.idle(); }
  void stop() override {
    scheduler_.stop();
    if (options_.states) options_.states->stop();
  }
  bool broken() const override { return scheduler_.broken(); }

 private:
  HttpReply health() const;
  HttpReply metrics() const;
  HttpReply models() const;
  HttpReply model(const std::string& id);
  HttpReply frontier() const { return {.body = frontier_}; }
  HttpReply tokenizer_info() const;
  HttpReply tokenize(const HttpRequest& request) const;
  HttpReply detokenize(const HttpRequest& request) const;
  HttpReply delete_state(const HttpRequest& request);
  // The state a request resumes; sets `tier` to the state's tier.
  std::shared_ptr<const SavedState> find_state(const GenerationRequest& request, const std::string& owner, Tier& tier);
  std::string owner_of(const HttpRequest& request) const;
  HttpReply answer(const HttpRequest& request);
  void generate(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  std::vector<EncodedPrompt> encode(const GenerationRequest& request) const;
  EncodedPrompt encode(const Prompt& prompt, bool add_special_tokens) const;
  // Throws 404 for an unknown model or tier. With `run`, counts the capacity against max_capacities.
  Tier tier_of(const std::string& model, bool run = true);
  // Throws if max_capacities other capacities are in use.
  void admit(Capacity capacity);
  // The tier under the current load, and the reason if it is smaller than `asked`.
  std::pair<Tier, std::string> reduced(const std::string& model, const Tier& asked) const;
  Json describe(const std::string& id, const Tier& tier) const;
  Json body_of(const HttpRequest& request) const;

  ApiOptions options_;
  const Engine& engine_;
  const Tokenizer& tokenizer_;
  Scheduler& scheduler_;
  Metrics& metrics_;
  Tier default_tier_;
  std::vector<Tier> tiers_, levels_;
  std::vector<std::string> key_hashes_;
  std::string hash_, frontier_;
  std::int64_t started_;
  std::mutex mutex_;
  std::vector<Capacity> capacities_;
};

}  // namespace essh::serve
