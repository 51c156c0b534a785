#include <fmt/format.h>

#include "tests/fuzz/driver.h"
#include "tests/fuzz/mutate.h"
#include "tests/serve/live_server.h"

namespace essh::serve {
namespace {

// Sends raw bytes to a server in this process: the reply is a sequence of HTTP replies, none of them a 500, and the
// server answers the next client. Does nothing in a build without `essh serve`.
class HttpFuzzer {
 public:
  explicit HttpFuzzer(std::uint64_t seed)
      : mutator_(seed, {"\r\n",
                        "\r\n\r\n",
                        "\n",
                        " ",
                        ":",
                        "HTTP/1.1",
                        "HTTP/1.0",
                        "HTTP/9.9",
                        "GET ",
                        "HEAD ",
                        "POST ",
                        "OPTIONS * ",
                        "/v1/models/m@",
                        "/../",
                        "%00",
                        "%ff",
                        "Host: localhost\r\n",
                        "Host: evil\r\n",
                        "Content-Length: 0\r\n",
                        "Content-Length: -1\r\n",
                        "Content-Length: 18446744073709551616\r\n",
                        "Transfer-Encoding: chunked\r\n",
                        "Transfer-Encoding: identity, chunked\r\n",
                        "Expect: 100-continue\r\n",
                        "Connection: upgrade\r\n",
                        "Upgrade: h2c\r\n",
                        "0\r\n\r\n",
                        "ffffffffffffffff\r\n",
                        "1;ext=\"",
                        "\t",
                        std::string(1, '\0'),
                        "\xff\xfe",
                        std::string(20000, 'a'),
                        std::string(70, '['),
                        "null",
                        "1e999",
                        "\\ud800",
                        "\"n\": 128",
                        "\"stream\": true",
                        "\"echo\": true",
                        "\"logprobs\": 20",
                        "\"stop\": [\"\"]",
                        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}) {
    const std::string completion = R"({"prompt": [1, 2, 300], "max_tokens": 3, "temperature": 0.5, "seed": 7, "n": 2,
                                      "stop": ["a", "b"], "logit_bias": {"65": 1.5}, "model": "m@T1"})";
    seeds_ = {get("/health"),
              get("/v1/models"),
              get("/v1/models/m%40T1", "Accept: */*\r\nUser-Agent: fuzz\r\n"),
              get("/metrics"),
              get("/tokenizer_info"),
              post("/v1/completions", completion),
              post("/v1/completions", R"({"prompt": "x", "stream": true, "stream_options": {"include_usage": true}})"),
              post("/v1/completions", R"({"prompt": ["x", "y"], "echo": true, "logprobs": 2, "max_tokens": 0})"),
              post("/v1/chat/completions",
                   R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "max_tokens": 2})"),
              post("/tokenize", R"({"prompt": "a\u00e9", "add_special_tokens": false})"),
              post("/detokenize", R"({"tokens": [97, 255]})"),
              "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: "
              "chunked\r\n\r\n8\r\n{\"prompt\r\n7;a=b\r\n\": \"x\"}\r\n0\r\n\r\n",
              "POST /tokenize HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
              "15\r\n\r\n{\"prompt\": \"x\"}"};
    if (can_serve()) start();
  }

  void operator()() {
    if (!server_) return;
    auto bytes = mutator_.pick(seeds_);
    while (mutator_.one_in(3)) bytes += mutator_.pick(seeds_);
    do {
      if (mutator_.one_in(2))
        mutator_.mutate_json(bytes, mutator_.pick(seeds_));
      else
        mutator_.mutate(bytes, mutator_.pick(seeds_));
    } while (mutator_.one_in(3));
    Client client(server_->port);
    // In one piece or several; some clients leave early.
    for (std::string_view rest = bytes; !rest.empty();) {
      const auto size = mutator_.one_in(2) ? rest.size() : 1 + mutator_.rng().below(rest.size());
      if (!client.send(rest.substr(0, size))) break;
      rest.remove_prefix(size);
    }
    if (mutator_.one_in(4)) return;
    check(client.read_all());
    if (mutator_.one_in(64)) {
      Client next(server_->port);
      next.send(get("/health", kClose));
      if (!next.read_all().starts_with("HTTP/1.1 200 OK")) throw std::logic_error("the server is not well");
    }
  }

 private:
  void start() {
    // Short timeouts for incomplete requests.
    ApiOptions options;
    options.hosts = {"localhost"};
    options.limits.max_tokens = 4;
    options.limits.prompt_tokens = 4096;
    options.limits.sequences = 16;
    options.max_body = 1 << 16;
    server_ = std::make_shared<LiveServer>(
        HttpOptions{.max_body = 1 << 16, .header_seconds = 0.02, .body_seconds = 0.02, .idle_seconds = 0.02}, options,
        SchedulerOptions{.cache_bytes = 1 << 20});
  }

  // Each reply begins where the previous one, or its stream, ends.
  static void check(std::string_view replies) {
    while (!replies.empty()) {
      if (!replies.starts_with("HTTP/1.1 "))
        throw std::logic_error(fmt::format("no reply: {}", replies.substr(0, 200)));
      const auto status = replies.substr(9, 3);
      if (status == "500") throw std::logic_error(fmt::format("{}", replies.substr(0, 2000)));
      const auto end = replies.find("\r\n\r\n");
      if (end == std::string_view::npos) return;  // cut by the end of the connection
      const auto head = replies.substr(0, end);
      replies.remove_prefix(end + 4);
      if (status == "100") continue;
      const auto length = head.find("Content-Length: ");
      if (length == std::string_view::npos) return;  // a stream
      const auto bytes = std::stoull(std::string(head.substr(length + 16, 20)));
      // A reply to HEAD has a length and no body.
      if (replies.starts_with("HTTP/1.1 ")) continue;
      replies.remove_prefix(std::min<std::size_t>(bytes, replies.size()));
    }
  }

  std::vector<std::string> seeds_;
  fuzz::Mutator mutator_;
  std::shared_ptr<LiveServer> server_;
};

const fuzz::Registered<HttpFuzzer> kHttpFuzzer("http");

}  // namespace
}  // namespace essh::serve
