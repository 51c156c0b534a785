#include "essh/serve/load_client.h"

#include <algorithm>
#include <charconv>

#include "essh/base/error.h"

namespace essh::serve {

ServerAddress parse_address(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const auto refuse = [&] { fail(ErrorKind::Usage, "{} must be like http://localhost:8080", url); };
  if (!url.starts_with(kScheme)) refuse();
  ServerAddress address;
  const auto rest = url.substr(kScheme.size());
  const auto slash = std::min(rest.find('/'), rest.size());
  const auto authority = rest.substr(0, slash);
  address.prefix = rest.substr(slash);
  while (address.prefix.ends_with('/')) address.prefix.pop_back();
  if (address.prefix.ends_with("/v1")) address.prefix.resize(address.prefix.size() - 3);
  const auto bracket = authority.starts_with('[') ? authority.find(']') : 0;
  if (bracket == std::string::npos) refuse();
  const auto colon = authority.find(':', bracket);
  address.host = authority.substr(0, colon);
  if (address.host.starts_with('[')) address.host = address.host.substr(1, address.host.size() - 2);
  if (address.host.empty()) refuse();
  if (colon != std::string::npos) {
    const auto* end = authority.data() + authority.size();
    const auto [read, status] = std::from_chars(authority.data() + colon + 1, end, address.port);
    if (status != std::errc{} || read != end || address.port < 1 || address.port > 65535) refuse();
  }
  return address;
}

double quantile(std::vector<float>& samples, double share) {
  if (samples.empty()) return 0;
  std::ranges::sort(samples);
  const auto place = static_cast<std::size_t>(share * static_cast<double>(samples.size() - 1) + 0.5);
  return samples[std::min(place, samples.size() - 1)];
}

}  // namespace essh::serve

#if ESSH_HAVE_BOOST
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <memory>

#include "essh/base/json.h"
#include "essh/base/rng.h"
#include "essh/serve/http_server.h"

namespace essh::serve {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using Code = boost::system::error_code;
using Clock = std::chrono::steady_clock;

float seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<float>(to - from).count();
}

// Parses a reply incrementally: its status, then its body without chunk headers.
class ReplyReader {
 public:
  void reset() { *this = {}; }
  // False if the bytes are not HTTP.
  bool add(std::string_view bytes) {
    raw_ += bytes;
    return (headed_ || read_head()) && read_body();
  }
  bool headed() const { return headed_; }
  bool done() const { return done_; }
  bool keep_alive() const { return keep_alive_; }
  int status() const { return status_; }
  std::string& body() { return body_; }
  // A reply without a length ends with the connection.
  void end() { done_ = headed_ && !chunked_ && length_ < 0; }

 private:
  bool read_head() {
    const auto end = raw_.find("\r\n\r\n");
    if (end == std::string::npos) return raw_.size() < (64 << 10);
    auto head = raw_.substr(0, end + 2);
    raw_.erase(0, end + 4);
    if (!head.starts_with("HTTP/1.") || head.size() < 12) return false;
    std::from_chars(head.data() + 9, head.data() + 12, status_);
    for (auto& c : head) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    chunked_ = head.find("\r\ntransfer-encoding: chunked\r\n") != std::string::npos;
    keep_alive_ = head.find("\r\nconnection: close\r\n") == std::string::npos;
    constexpr std::string_view kLength = "\r\ncontent-length: ";
    if (const auto at = head.find(kLength); at != std::string::npos)
      std::from_chars(head.data() + at + kLength.size(), head.data() + head.size(), length_);
    headed_ = true;
    return true;
  }

  bool read_body() {
    if (!headed_ || done_) return true;
    if (!chunked_) {
      body_ += std::exchange(raw_, {});
      done_ = length_ >= 0 && std::ssize(body_) >= length_;
      return true;
    }
    for (;;) {
      const auto line = raw_.find("\r\n");
      if (line == std::string::npos) return raw_.size() < 100;
      std::size_t size = 0;
      const auto [end, status] = std::from_chars(raw_.data(), raw_.data() + line, size, 16);
      if (status != std::errc{} || size > (1u << 30)) return false;
      if (raw_.size() < line + 2 + size + 2) return true;
      body_.append(raw_, line + 2, size);
      raw_.erase(0, line + 2 + size + 2);
      if (size == 0) return done_ = true;
    }
  }

  std::string raw_, body_;
  std::int64_t length_ = -1;
  int status_ = 0;
  bool headed_ = false, done_ = false, chunked_ = false, keep_alive_ = true;
};

struct Load {
  const LoadOptions& options;
  const std::function<void(std::int64_t)>& progress;
  asio::io_context io = {};
  tcp::resolver::results_type endpoints = {};
  LoadResult result = {};
  Rng rng;
  std::int64_t begun = 0, ended = 0;

  std::string head(const char* method, const std::string& path) const {
    auto text = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\n", method, options.address.prefix, path,
                            options.address.host, options.address.port);
    if (!options.key.empty()) text += fmt::format("Authorization: Bearer {}\r\n", options.key);
    return text;
  }

  std::string request() {
    std::string ids;
    for (std::int64_t i = 0; i < options.prompt_tokens; ++i)
      ids += fmt::format("{}{}", i ? "," : "", rng.below(static_cast<std::uint64_t>(options.vocabulary)));
    const auto body =
        fmt::format(R"({{{}"prompt":[{}],"max_tokens":{},"temperature":{},"seed":{},"ignore_eos":true{}}})",
                    options.model.empty() ? "" : fmt::format("\"model\":{},", to_text(Json(options.model))), ids,
                    options.output_tokens, options.temperature, begun,
                    options.stream ? R"(,"stream":true,"stream_options":{"include_usage":true})" : "");
    return fmt::format("{}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                       head("POST", "/v1/completions"), body.size(), body);
  }

  bool over() const { return ended == options.requests; }
  void end_one() {
    ++ended;
    if (progress) progress(ended);
  }
};

// Sends one request after the other, on one connection while it lasts.
class Requester : public std::enable_shared_from_this<Requester> {
 public:
  explicit Requester(Load& load) : load_(load), socket_(load.io) {}

  void next() {
    if (load_.begun == load_.options.requests) return;
    ++load_.begun;
    reader_.reset();
    finished_ = false;
    const auto draw = static_cast<double>(load_.rng.next64() >> 11) * 0x1p-53;
    cancel_at_ = draw >= load_.options.cancel ? -1 : load_.options.stream ? static_cast<int>(load_.rng.below(2)) : 0;
    bytes_ = load_.request();
    if (socket_.is_open()) return send();
    asio::async_connect(socket_, load_.endpoints, [self = shared_from_this()](Code code, const tcp::endpoint&) {
      if (code) return self->failed(code.message());
      Code ignored;
      self->socket_.set_option(tcp::no_delay(true), ignored);
      self->send();
    });
  }

 private:
  void send() {
    started_ = Clock::now();
    asio::async_write(socket_, asio::buffer(bytes_), [self = shared_from_this()](Code code, std::size_t) {
      if (code) return self->failed(code.message());
      if (self->cancel_at_ == 0) return self->cancelled();
      self->read();
    });
  }

  void read() {
    socket_.async_read_some(asio::buffer(room_), [self = shared_from_this()](Code code, std::size_t count) {
      if (code == asio::error::eof) self->reader_.end();
      if (code && !self->reader_.done()) return self->failed(code.message());
      if (!code && !self->reader_.add({self->room_.data(), count})) return self->failed("not HTTP");
      self->take();
    });
  }

  void take() {
    if (reader_.headed() && reader_.status() == 200 && load_.options.stream && !take_events()) return;
    if (!reader_.done()) return read();
    if (!reader_.keep_alive()) close();
    if (reader_.status() != 200) return failed(fmt::format("HTTP {}", reader_.status()));
    if (!load_.options.stream) return complete(reader_.body());
    finished_ ? complete(last_) : failed("the stream ended early");
  }

  // False once this client has cancelled or the stream has failed.
  bool take_events() {
    auto& body = reader_.body();
    std::size_t begin = 0;
    int fresh = 0;
    for (std::size_t end; (end = body.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
      const auto event = std::string_view(body).substr(begin, end - begin);
      if (!event.starts_with("data: ")) continue;
      finished_ = event == "data: [DONE]";
      if (finished_) continue;
      last_ = event.substr(6);
      if (last_.starts_with("{\"error\"")) return failed(last_), false;
      if (last_.find("\"choices\":[]") == std::string::npos) ++fresh;  // an event with empty choices has the usage
    }
    body.erase(0, begin);
    if (fresh == 0) return true;
    const auto now = Clock::now();
    // Events that arrive together share the time since the previous ones.
    const float gap = seconds_between(spoken_, now) / static_cast<float>(fresh);
    if (std::exchange(spoken_, now) < started_)
      load_.result.first.push_back(seconds_between(started_, now));
    else
      load_.result.between.insert(load_.result.between.end(), static_cast<std::size_t>(fresh), gap);
    if (cancel_at_ > 0) return cancelled(), false;
    return true;
  }

  void complete(const std::string& text) {
    const auto now = Clock::now();
    auto& result = load_.result;
    try {
      const auto usage = parse_json(text, "reply").at("usage");
      result.prompt_tokens += usage.at("prompt_tokens").get<std::int64_t>();
      result.output_tokens += usage.at("completion_tokens").get<std::int64_t>();
      if (usage.contains("prompt_tokens_details") && usage["prompt_tokens_details"].contains("cached_tokens"))
        result.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"].get<std::int64_t>();
    } catch (const Error& error) {
      return failed(error.what());
    }
    if (!load_.options.stream) result.first.push_back(seconds_between(started_, now));
    result.whole.push_back(seconds_between(started_, now));
    ++result.completed;
    load_.end_one();
    next();
  }

  void cancelled() {
    close();
    ++load_.result.cancelled;
    load_.end_one();
    next();
  }

  void failed(const std::string& why) {
    close();
    ++load_.result.failed;
    ++load_.result.failures[why.substr(0, 200)];
    load_.end_one();
    next();
  }

  void close() {
    Code ignored;
    socket_.close(ignored);
  }

  Load& load_;
  tcp::socket socket_;
  ReplyReader reader_;
  std::array<char, 8192> room_{};
  std::string bytes_, last_;
  Clock::time_point started_{}, spoken_{};
  int cancel_at_ = -1;  // 0: cancels after sending the request, 1: at the first event
  bool finished_ = false;
};

// Repeats GET /health during the load.
class HealthProbe : public std::enable_shared_from_this<HealthProbe> {
 public:
  explicit HealthProbe(Load& load) : load_(load), socket_(load.io), pause_(load.io) {}

  void start() {
    asio::async_connect(socket_, load_.endpoints, [self = shared_from_this()](Code code, const tcp::endpoint&) {
      if (!code) self->ask();
    });
  }

 private:
  void ask() {
    if (load_.over()) return;
    reader_.reset();
    bytes_ = load_.head("GET", "/health") + "\r\n";
    asked_ = Clock::now();
    asio::async_write(socket_, asio::buffer(bytes_), [self = shared_from_this()](Code code, std::size_t) {
      if (!code) self->read();
    });
  }

  void read() {
    socket_.async_read_some(asio::buffer(room_), [self = shared_from_this()](Code code, std::size_t count) {
      if (code || !self->reader_.add({self->room_.data(), count})) return;
      if (!self->reader_.done()) return self->read();
      self->load_.result.health.push_back(seconds_between(self->asked_, Clock::now()));
      self->pause_.expires_after(std::chrono::milliseconds(20));
      self->pause_.async_wait([self](Code cancelled) {
        if (!cancelled) self->ask();
      });
    });
  }

  Load& load_;
  tcp::socket socket_;
  asio::steady_timer pause_;
  ReplyReader reader_;
  std::array<char, 1024> room_{};
  std::string bytes_;
  Clock::time_point asked_{};
};

tcp::resolver::results_type resolve(asio::io_context& io, const ServerAddress& address) {
  Code code;
  auto found = tcp::resolver(io).resolve(address.host, std::to_string(address.port), code);
  if (code) fail(ErrorKind::Usage, "{}:{}: {}", address.host, address.port, code.message());
  return found;
}

}  // namespace

LoadResult run_load(const LoadOptions& options, const std::function<void(std::int64_t)>& progress) {
  raise_file_limit();
  Load load{.options = options, .progress = progress, .rng = Rng(options.seed)};
  load.endpoints = resolve(load.io, options.address);
  std::make_shared<HealthProbe>(load)->start();
  for (std::int64_t i = 0; i < std::min(options.concurrency, options.requests); ++i)
    std::make_shared<Requester>(load)->next();
  const auto start = Clock::now();
  load.io.run();
  load.result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return std::move(load.result);
}

std::string http_get(const ServerAddress& address, const std::string& path, const std::string& key) {
  const LoadOptions options{.address = address, .key = key};
  const std::function<void(std::int64_t)> nobody;
  Load load{.options = options, .progress = nobody, .rng = Rng(0)};
  load.endpoints = resolve(load.io, address);
  tcp::socket socket(load.io);
  Code code;
  asio::connect(socket, load.endpoints, code);
  if (code) fail(ErrorKind::Usage, "cannot connect to {}:{}: {}", address.host, address.port, code.message());
  asio::write(socket, asio::buffer(load.head("GET", path) + "Connection: close\r\n\r\n"), code);
  ReplyReader reader;
  std::array<char, 8192> room{};
  while (!code && !reader.done()) {
    const auto count = socket.read_some(asio::buffer(room), code);
    if (code == asio::error::eof) reader.end();
    if (count > 0 && !reader.add({room.data(), count})) break;
  }
  if (!reader.done() || reader.status() != 200)
    fail(ErrorKind::Usage, "{}:{}{}: HTTP {}", address.host, address.port, path, reader.status());
  return std::move(reader.body());
}

}  // namespace essh::serve
#else
namespace essh::serve {

LoadResult run_load(const LoadOptions&, const std::function<void(std::int64_t)>&) {
  fail(ErrorKind::Unsupported, "this build has no Boost 1.74 or later (libboost-dev); install it and build again");
}

std::string http_get(const ServerAddress&, const std::string&, const std::string&) {
  fail(ErrorKind::Unsupported, "this build has no Boost 1.74 or later (libboost-dev); install it and build again");
}

}  // namespace essh::serve
#endif
