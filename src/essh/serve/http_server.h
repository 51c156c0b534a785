#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "essh/serve/http.h"

namespace essh::serve {

// Answers requests. All members are callable from any thread.
class Handler {
 public:
  virtual ~Handler() = default;

  // The reply to a request that is refused by its head, before its body is read.
  virtual std::optional<HttpReply> refuse(const HttpRequest& head) = 0;
  // True if the request can be answered at once on an I/O thread.
  virtual bool quick(const HttpRequest& request) const = 0;
  // Answers through the exchange, during the call or later; never throws.
  virtual void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) noexcept = 0;
  // The reply to bytes that are not a valid request.
  virtual HttpReply malformed(int status, const std::string& message) = 0;

  // Refuses new work; running work continues.
  virtual void drain() = 0;
  virtual bool idle() const = 0;
  // Ends running work with an error.
  virtual void stop() = 0;
  // True after an unrecoverable failure: the server drains and exits.
  virtual bool broken() const = 0;

  std::atomic<std::int64_t> connections{0};
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0: any free port
  int threads = 2;
  std::uint64_t max_body = 16u << 20;
  std::uint64_t max_bodies = 256u << 20;  // total of all requests being read
  std::uint64_t max_unread = 1u << 20;    // bytes of a reply that its client has not read
  std::int64_t max_connections = 8192;
  double header_seconds = 10, body_seconds = 60, idle_seconds = 60, stall_seconds = 30, drain_seconds = 30;
  double keep_alive_seconds = 15;  // interval of comments in a quiet stream
};

// Serves until SIGINT, SIGTERM or `stop`; then refuses new work and gives running work `drain_seconds` to end. A second
// signal exits at once. Calls `listening` with the port.
void serve_http(const HttpOptions& options, Handler& handler, const std::function<void(int)>& listening,
                const std::stop_token& stop = {});

// Raises the limit of open files to its hard maximum: each connection takes one.
void raise_file_limit();

// Whether this build has Boost.Beast.
bool can_serve();

}  // namespace essh::serve
