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
  std::filesystem::path folder = {};  // of the model
  std::string name = {};              // of the model, in requests and replies
  std::string tier = "full";          // for requests that name none
  ChatTemplate chat = ChatTemplate::ChatMl;
  std::vector<std::string> keys = {};   // none: everybody may ask
  std::vector<std::string> hosts = {};  // accepted in the Host header, in lower case; none: all
  RequestLimits limits = {};
  std::uint64_t max_body = 16u << 20;
  std::filesystem::path frontier = {};  // what `essh frontier --json` wrote, for the console; empty: none
  std::size_t max_capacities = 8;       // beside the named tiers: each is packed and stays in memory
  LatencyControl* latency = nullptr;    // reduces the tier of requests that name none
  bool reduce_named = false;            // of those that name one, too
  StateStore* states = nullptr;         // none: clients may not save states
};

// A tier and the named ones below it, from the largest to the smallest: the levels of LatencyControl.
std::vector<Tier> reduced_tiers(const ModelConfig& config, const Tier& tier);

// The endpoints. One model answers at any of its capacities.
class Api : public Handler {
 public:
  // All outlive it. Fails if the default tier does not exist.
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
  // The state that a request goes on from, and the tier with it.
  std::shared_ptr<const SavedState> find_state(const GenerationRequest& request, const std::string& owner, Tier& tier);
  std::string owner_of(const HttpRequest& request) const;
  HttpReply answer(const HttpRequest& request);
  void generate(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  std::vector<EncodedPrompt> encode(const GenerationRequest& request) const;
  EncodedPrompt encode(const Prompt& prompt, bool add_special_tokens) const;
  // Throws 404. Fails for a capacity too many if the model is to `run` at it.
  Tier tier_of(const std::string& model, bool run = true);
  // Refuses more capacities than may be packed.
  void admit(Capacity capacity);
  // The tier under the present load, with the reason if it is another.
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
