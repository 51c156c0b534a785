#pragma once
#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// HTTP messages without sockets; http_server.cpp has the sockets.
namespace essh::serve {

struct HttpRequest {
  std::string method = {};  // HEAD is passed as GET
  std::string path = {};    // without the query
  std::string host = {}, authorization = {}, content_type = {}, if_none_match = {};
  std::string body = {};
};

struct HttpReply {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};  // replace the standard headers of the same name
};

// An error reply to a request.
class HttpError : public std::runtime_error {
 public:
  HttpError(int status, const std::string& message, std::string param = "", std::string code = "")
      : std::runtime_error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

  int status() const { return status_; }
  // {"error": {"message", "type", "param", "code"}}
  std::string body() const;
  // With Retry-After for 429 and 503.
  HttpReply reply() const;

 private:
  int status_;
  std::string param_, code_;
};

// The reply for any exception. Usage errors and the like are 4xx, OutOfMemory is 503.
HttpError as_http_error(const std::exception& error);

std::string_view reason_phrase(int status);
// Status line, headers and, unless `head_only`, the body.
std::string format_reply(const HttpReply& reply, bool keep_alive, bool head_only = false);
// The head of a stream of server-sent events.
std::string format_event_head(bool chunked);
// One chunk of a chunked transfer.
std::string format_chunk(std::string_view bytes);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";
// "data: TEXT\n\n" and ": TEXT\n\n". The text has no line breaks.
std::string format_event(std::string_view text);
std::string format_comment(std::string_view text);

// The answer to one request: one reply, or a stream of events. Callable from any thread. Nothing is sent after the
// client has left.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual void send(HttpReply reply) = 0;
  virtual void start_events() = 0;
  virtual void event(std::string text) = 0;
  // A comment line, which clients ignore.
  virtual void comment(std::string text) = 0;
  virtual void end_events() = 0;

  bool gone() const { return gone_.value.load(std::memory_order_relaxed); }

 protected:
  // In a cache line of its own: the engine's thread reads it for every text between two steps, while other threads
  // write the rest.
  struct alignas(64) Flag {
    std::atomic<bool> value{false};
  };
  Flag gone_;
};

}  // namespace essh::serve
