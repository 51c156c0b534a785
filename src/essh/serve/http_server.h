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

// Answers requests. Every member may be called from any thread.
class Handler {
 public:
  virtual ~Handler() = default;

  // Known from the head alone: the reply of a request whose body is not worth reading.
  virtual std::optional<HttpReply> refuse(const HttpRequest& head) = 0;
  // Takes no time: answered on an I/O thread, whatever else is going on.
  virtual bool quick(const HttpRequest& request) const = 0;
  // Answers through the exchange, now or later; never throws.
  virtual void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) noexcept = 0;
  // The reply to bytes that are no request.
  virtual HttpReply malformed(int status, const std::string& message) = 0;

  // Refuses new work; what runs goes on.
  virtual void drain() = 0;
  virtual bool idle() const = 0;
  // Ends what still runs with an error.
  virtual void stop() = 0;
  // Cannot go on: the server drains and ends.
  virtual bool broken() const = 0;

  std::atomic<std::int64_t> connections{0};
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0: a free one
  int threads = 2;
  std::uint64_t max_body = 16u << 20;
  std::uint64_t max_bodies = 256u << 20;  // of all requests that are being read
  std::uint64_t max_unread = 1u << 20;    // bytes of a reply that its client has not taken
  std::int64_t max_connections = 8192;
  double header_seconds = 10, body_seconds = 60, idle_seconds = 60, stall_seconds = 30, drain_seconds = 30;
  double keep_alive_seconds = 15;  // a comment in a stream that has nothing to say
};

// Serves until SIGINT, SIGTERM or `stop`: then new work is refused, running work has `drain_seconds` to end. A second
// signal ends at once. `listening` is told the port.
void serve_http(const HttpOptions& options, Handler& handler, const std::function<void(int)>& listening,
                const std::stop_token& stop = {});

// As many files as the system lets this process have: each connection is one.
void raise_file_limit();

// Boost.Beast was there when this was built.
bool can_serve();

}  // namespace essh::serve
