#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <stdexcept>
#include <thread>

#include "essh/serve/api.h"
#include "tests/model/small_model.h"

// A server with a small model in this process, and raw socket clients.
namespace essh::serve {

inline StoredModel served_family() {
  auto config = small_config();
  config.vocab_size = 257;
  config.eos_token_id = 256;
  config.bos_token_id = 256;
  config.elastic.tiers = {0.2, 1.0};
  LoadedModel model{config, Parameters<float>(config)};
  fill_randomly(model.parameters, 3);
  return StoredModel(std::move(model), "0123456789abcdef");
}

// The objects behind the endpoints.
struct ServedModel {
  Stream stream = cpu_stream(2);
  Engine engine{served_family(), stream};
  std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
  Metrics metrics = {};
  Scheduler scheduler;
  Api api;

  explicit ServedModel(ApiOptions options = {}, SchedulerOptions scheduling = {})
      : scheduler(engine, std::move(scheduling), metrics),
        api(named(std::move(options)), engine, *tokenizer, scheduler, metrics) {}

 private:
  static ApiOptions named(ApiOptions options) {
    options.name = "m";
    return options;
  }
};

class LiveServer {
 public:
  explicit LiveServer(HttpOptions http = {}, ApiOptions options = {}, SchedulerOptions scheduling = {})
      : http_(std::move(http)), model(std::move(options), std::move(scheduling)) {
    http_.port = 0;
    std::promise<int> listening;
    auto ready = listening.get_future();
    thread_ = std::jthread([this, &listening](const std::stop_token& stop) {
      serve_http(
          http_, model.api, [&](int number) { listening.set_value(number); }, stop);
    });
    port = ready.get();
  }

  void stop() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }
  void request_stop() { thread_.request_stop(); }
  std::string metrics() { return model.metrics.text(model.scheduler.gauges()); }

 private:
  HttpOptions http_;

 public:
  ServedModel model;
  int port = 0;

 private:
  std::jthread thread_;
};

// A raw socket.
class Client {
 public:
  explicit Client(int port, int receive_buffer = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    // Closing resets the connection, so thousands of clients leave no port in TIME_WAIT.
    const linger reset{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    const int one = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      leave();
      throw std::runtime_error(std::strerror(errno));
    }
  }
  Client(Client&& other) noexcept : socket_(std::exchange(other.socket_, -1)), got_(std::move(other.got_)) {}
  ~Client() { leave(); }

  // False once the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  void finish_sending() { ::shutdown(socket_, SHUT_WR); }
  void leave() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }

  // Returns the bytes received once they contain `wanted`, or all of them when the server closes.
  const std::string& read_until(std::string_view wanted) {
    while (got_.find(wanted) == std::string::npos && read_some()) {
    }
    return got_;
  }
  const std::string& read_all() {
    while (read_some()) {
    }
    return got_;
  }
  bool readable(int milliseconds) const {
    pollfd wait{.fd = socket_, .events = POLLIN, .revents = 0};
    return ::poll(&wait, 1, milliseconds) > 0;
  }
  // False at the end of the connection.
  bool read_some() {
    char bytes[16384];
    const auto count = ::recv(socket_, bytes, sizeof bytes, 0);
    if (count > 0) got_.append(bytes, static_cast<std::size_t>(count));
    return count > 0;
  }
  std::string take() { return std::exchange(got_, {}); }

 private:
  int socket_;
  std::string got_;
};

inline std::string get(std::string_view path, std::string_view headers = "") {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, headers);
}
inline std::string post(std::string_view path, std::string_view body, std::string_view headers = "") {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}", path,
      body.size(), headers, body);
}
inline constexpr std::string_view kClose = "Connection: close\r\n";

}  // namespace essh::serve
