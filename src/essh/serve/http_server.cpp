#include "essh/serve/http_server.h"

#include "essh/base/error.h"

#if ESSH_HAVE_BOOST
#include <sys/resource.h>

#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <csignal>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "essh/base/log.h"
#include "essh/base/thread_name.h"

namespace essh::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using Code = boost::system::error_code;

constexpr std::uint32_t kHeaderBytes = 16 << 10;
constexpr std::size_t kReadAhead = 4 << 10;

std::chrono::steady_clock::duration seconds(double count) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(count));
}

class Connection;
class ConnectionExchange;

// A step produces an event for every stream at once. The events are passed to their connections a few at a time, so
// that other work, such as GET /health, does not wait for all of them.
class Outgoing {
 public:
  explicit Outgoing(asio::io_context& io) : io_(io) {}
  void add(std::shared_ptr<ConnectionExchange> exchange);

 private:
  static constexpr int kAtOnce = 32;
  void hand_out();

  asio::io_context& io_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<ConnectionExchange>> waiting_;
  bool running_ = false;
};

// Connections and their threads. A connection starts in the quick lane, which reads heads and bodies and answers quick
// requests. Its first other request moves it to the bulk lane. The quick lane therefore answers GET /health at once
// under any load of streams.
struct Lane {
  asio::io_context io = {};
  Outgoing outgoing{io};
};

// Shared by all connections.
struct Shared {
  const HttpOptions& options;
  Handler& handler;
  asio::thread_pool& workers;
  Lane &quick, &bulk;
  std::atomic<std::uint64_t> bodies{0};
  std::atomic<bool> draining{false};
  std::mutex mutex = {};
  std::unordered_set<Connection*> open = {};
};

// Counts an open connection.
class Counted {
 public:
  explicit Counted(Handler& handler) : handler_(&handler) { ++handler.connections; }
  Counted(Counted&& other) noexcept : handler_(std::exchange(other.handler_, nullptr)) {}
  ~Counted() {
    if (handler_) --handler_->connections;
  }

 private:
  Handler* handler_;
};

// Reserves memory for the body of a request while it is read and parsed.
class BodyRoom {
 public:
  BodyRoom() = default;
  BodyRoom(Shared& shared, std::uint64_t bytes) : shared_(&shared), bytes_(bytes) { shared.bodies += bytes; }
  BodyRoom(BodyRoom&& other) noexcept : shared_(std::exchange(other.shared_, nullptr)), bytes_(other.bytes_) {}
  BodyRoom& operator=(BodyRoom&& other) noexcept {
    std::swap(shared_, other.shared_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~BodyRoom() {
    if (shared_) shared_->bodies -= bytes_;
  }

 private:
  Shared* shared_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// One request of a connection, and the way back to it.
class ConnectionExchange : public Exchange, public std::enable_shared_from_this<ConnectionExchange> {
 public:
  ConnectionExchange(std::shared_ptr<Connection> connection, Outgoing& outgoing)
      : connection_(std::move(connection)), outgoing_(outgoing) {}
  void send(HttpReply reply) override {
    put([&](News& news) { news.reply = std::move(reply); });
  }
  void start_events() override {
    put([](News& news) { news.started = true; });
  }
  void event(std::string text) override { stream("data: ", text); }
  void comment(std::string text) override { stream(": ", text); }
  void end_events() override {
    put([](News& news) { news.ended = true; });
  }
  void leave() { gone_.value = true; }

  // Data that has not reached the connection.
  struct News {
    std::optional<HttpReply> reply = {};
    std::string bytes = {};
    bool started = false, ended = false;
  };
  News take() {
    const std::lock_guard lock(mutex_);
    queued_ = false;
    return std::exchange(news_, {});
  }
  // Passes the data to the connection, on its strand.
  void deliver();

 private:
  void stream(std::string_view kind, std::string_view text);
  template <class Change>
  void put(const Change& change) {
    if (gone()) return;
    {
      const std::lock_guard lock(mutex_);
      change(news_);
      if (std::exchange(queued_, true)) return;
    }
    outgoing_.add(shared_from_this());
  }

  std::shared_ptr<Connection> connection_;
  Outgoing& outgoing_;
  std::mutex mutex_;
  News news_;
  bool queued_ = false;
};

// A client. All members except atomics belong to its strand. While a request is being answered, one read is pending to
// detect that the client leaves; the buffer is empty then.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Shared& shared, Lane& lane, Counted counted)
      : socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        stall_(socket_.get_executor()),
        shared_(shared),
        lane_(lane),
        counted_(std::move(counted)) {
    Code ignored;
    socket_.non_blocking(true, ignored);
    const std::lock_guard lock(shared_.mutex);
    shared_.open.insert(this);
  }
  ~Connection() {
    const std::lock_guard lock(shared_.mutex);
    shared_.open.erase(this);
  }

  void start() {
    asio::post(socket_.get_executor(), [self = shared_from_this()] { self->read_ahead(); });
  }

  // Answers and closes without reading a request.
  void turn_away(const HttpReply& reply) {
    asio::post(socket_.get_executor(), [self = shared_from_this(), bytes = format_reply(reply, false)] {
      self->close_after_ = true;
      self->write(bytes);
    });
  }

  // Closes the connection if it has no request.
  void wind_up() {
    asio::post(socket_.get_executor(), [self = shared_from_this()] {
      if (!self->exchange_ && !self->parser_ && !self->writing_ && !self->ending_ && !self->moved_) self->close();
    });
  }

  void hear(const std::shared_ptr<ConnectionExchange>& exchange) {
    const auto news = exchange->take();
    unread_ -= news.bytes.size();
    if (exchange != exchange_) return;
    std::string bytes;
    if (news.started) {
      streaming_ = true;
      close_after_ = close_after_ || !chunked_;
      bytes += format_event_head(chunked_);
      keep_alive();
    }
    if (streaming_ && !news.bytes.empty()) bytes += chunked_ ? format_chunk(news.bytes) : news.bytes;
    const bool over = news.ended || news.reply;
    if (over) {
      close_after_ = close_after_ || shared_.draining;
      exchange_.reset();
    }
    if (streaming_ && news.ended && chunked_) bytes += kLastChunk;
    if (news.reply) bytes += format_reply(*news.reply, !close_after_, head_only_);
    if (over) streaming_ = false;
    if (over || !bytes.empty()) write(bytes);
  }

  void close() {
    if (closed_) return;
    if (exchange_) exchange_->leave();
    exchange_.reset();
    closed_ = true;
    timer_.cancel();
    stall_.cancel();
    Code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
  }

  // Counts bytes on their way to the strand, so that a client that does not read is detected at once.
  bool may_queue(std::size_t bytes) {
    return unread_.fetch_add(bytes) + bytes + waiting_.load() <= shared_.options.max_unread;
  }
  asio::any_io_executor executor() { return socket_.get_executor(); }

 private:
  // Waits for the first byte of a request, or for the client to leave.
  void read_ahead() {
    if (closed_ || reading_) return;
    reading_ = true;
    if (!exchange_) arm(shared_.options.idle_seconds, [this] { close(); });
    socket_.async_read_some(buffer_.prepare(kReadAhead), [self = shared_from_this()](Code code, std::size_t bytes) {
      self->reading_ = false;
      if (self->closed_ || self->ending_) return;
      if (code) return self->close();
      self->buffer_.commit(bytes);
      if (!self->exchange_ && !self->writing_) self->read_request();
    });
  }

  void read_request() {
    if (closed_ || parser_) return;
    parser_.emplace();
    parser_->header_limit(kHeaderBytes);
    parser_->body_limit(shared_.options.max_body);
    arm(shared_.options.header_seconds, [this] { refuse(408, "the head of the request took too long"); });
    http::async_read_header(socket_, buffer_, *parser_, [self = shared_from_this()](Code code, std::size_t) {
      if (self->closed_ || self->ending_) return;
      if (code) return self->fail_read(code);
      self->read_body();
    });
  }

  void read_body() {
    const auto& head = parser_->get();
    const auto field = [&](http::field name) { return std::string(head[name]); };
    const std::string target(head.target());
    request_ = {.method = head.method() == http::verb::head ? "GET" : std::string(head.method_string()),
                .path = target.substr(0, target.find('?')),
                .host = field(http::field::host),
                .authorization = field(http::field::authorization),
                .content_type = field(http::field::content_type),
                .if_none_match = field(http::field::if_none_match)};
    head_only_ = head.method() == http::verb::head;
    chunked_ = head.version() >= 11;
    close_after_ = !parser_->keep_alive();
    if (auto reply = shared_.handler.refuse(request_)) return answer_and_close(*reply);
    const auto length = parser_->content_length();
    const auto bytes = length ? *length : parser_->chunked() ? shared_.options.max_body : 0;
    if (bytes > shared_.options.max_body) return fail_read(http::error::body_limit);
    if (bytes > 0 && shared_.bodies + bytes > shared_.options.max_bodies)
      return refuse(503, "too many large requests at once; send the request again");
    room_ = BodyRoom(shared_, bytes);
    if (beast::iequals(head[http::field::expect], "100-continue")) write("HTTP/1.1 100 Continue\r\n\r\n");
    arm(shared_.options.body_seconds, [this] { refuse(408, "the body of the request took too long"); });
    http::async_read(socket_, buffer_, *parser_, [self = shared_from_this()](Code code, std::size_t) {
      if (self->closed_ || self->ending_) return;
      if (code) return self->fail_read(code);
      self->handle();
    });
  }

  void handle() {
    ++timer_use_;
    timer_.cancel();
    request_.body = std::move(parser_->get().body());
    parser_.reset();
    if (&lane_ == &shared_.quick && !writing_ && !shared_.handler.quick(request_)) return change_lane();
    answer();
  }

  // Moves the socket and its unread bytes to a new object. No operation is pending here.
  void change_lane() {
    Code code;
    const auto protocol = socket_.local_endpoint(code).protocol();
    tcp::socket socket(asio::make_strand(shared_.bulk.io));
    const auto handle = code ? -1 : socket_.release(code);
    if (!code) socket.assign(protocol, handle, code);
    if (code) return close();
    closed_ = true;
    const auto other = std::make_shared<Connection>(std::move(socket), shared_, shared_.bulk, std::move(counted_));
    other->moved_ = true;
    other->buffer_ = std::move(buffer_);
    other->request_ = std::move(request_);
    other->room_ = std::move(room_);
    other->close_after_ = close_after_;
    other->head_only_ = head_only_;
    other->chunked_ = chunked_;
    asio::post(other->executor(), [other] { other->answer(); });
  }

  void answer() {
    moved_ = false;
    exchange_ = std::make_shared<ConnectionExchange>(shared_from_this(), lane_.outgoing);
    if (shared_.handler.quick(request_)) {
      shared_.handler.handle(std::move(request_), exchange_);
    } else {
      asio::post(shared_.workers,
                 [&handler = shared_.handler, request = std::move(request_), exchange = exchange_,
                  room = std::move(room_)]() mutable { handler.handle(std::move(request), std::move(exchange)); });
    }
    room_ = {};
    // With bytes of a further request in the buffer no read is pending; a client that leaves is detected by writing.
    if (buffer_.size() == 0) read_ahead();
  }

  void fail_read(Code code) {
    if (code == http::error::end_of_stream || code == asio::error::eof || code == asio::error::connection_reset ||
        code == asio::error::operation_aborted)
      return close();
    if (code == http::error::header_limit) return refuse(431, "the head of the request is too large");
    if (code == http::error::body_limit)
      return refuse(413, fmt::format("the body is larger than {} bytes", shared_.options.max_body));
    if (code.category() != http::make_error_code(http::error::bad_target).category()) return close();
    refuse(400, "not a valid HTTP request");
  }

  void refuse(int status, const std::string& message) { answer_and_close(shared_.handler.malformed(status, message)); }

  void answer_and_close(const HttpReply& reply) {
    if (closed_ || std::exchange(ending_, true)) return;
    close_after_ = true;
    room_ = {};
    write(format_reply(reply, false, head_only_));
  }

  void write(const std::string& bytes) {
    if (closed_) return;
    pending_ += bytes;
    waiting_ = pending_.size() + out_.size();
    if (!writing_) flush();
  }

  void flush() {
    if (pending_.empty()) return written();
    std::swap(out_, pending_);
    pending_.clear();
    // An event nearly always fits into the socket's buffer; then no operation, timer or handler is needed.
    Code code;
    const auto sent = socket_.write_some(asio::buffer(out_), code);
    if (code && code != asio::error::would_block && code != asio::error::try_again) return close();
    if (sent == out_.size()) {
      out_.clear();
      waiting_ = 0;
      return written();
    }
    writing_ = true;
    stall_.expires_after(seconds(shared_.options.stall_seconds));
    stall_.async_wait([self = shared_from_this()](Code cancelled) {
      if (!cancelled) self->close();
    });
    asio::async_write(socket_, asio::buffer(out_) + sent, [self = shared_from_this()](Code failed, std::size_t) {
      self->writing_ = false;
      self->stall_.cancel();
      self->out_.clear();
      self->waiting_ = self->pending_.size();
      if (failed) return self->close();
      self->flush();
    });
  }

  // Called after all bytes are sent.
  void written() {
    if (closed_ || exchange_) return;
    if (parser_ && !ending_) return;  // after "100 Continue"
    if (close_after_) return linger();
    if (reading_) return arm(shared_.options.idle_seconds, [this] { close(); });
    if (buffer_.size() > 0) return read_request();
    read_ahead();
  }

  // If the client is still sending, closing would reset the connection and lose the reply, so its bytes are read and
  // dropped for a while. The parser and the buffer stay, because a read may be pending.
  void linger() {
    ending_ = true;
    Code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    socket_.cancel(ignored);
    arm(2, [this] { close(); });
    drop();
  }

  void drop() {
    socket_.async_read_some(asio::buffer(scrap_), [self = shared_from_this()](Code code, std::size_t) {
      if (code) return self->close();
      self->drop();
    });
  }

  void keep_alive() {
    arm(shared_.options.keep_alive_seconds, [this] {
      if (!streaming_) return;
      const auto comment = format_comment("keep-alive");
      if (!writing_) write(chunked_ ? format_chunk(comment) : comment);
      keep_alive();
    });
  }

  template <class Action>
  void arm(double after, Action action) {
    if (closed_) return;
    const auto use = ++timer_use_;
    timer_.expires_after(seconds(after));
    timer_.async_wait([self = shared_from_this(), use, action](Code code) {
      if (!code && use == self->timer_use_ && !self->closed_) action();
    });
  }

  tcp::socket socket_;
  asio::steady_timer timer_, stall_;
  Shared& shared_;
  Lane& lane_;
  Counted counted_;
  beast::flat_buffer buffer_{kHeaderBytes + (64 << 10)};
  std::optional<http::request_parser<http::string_body>> parser_;
  HttpRequest request_;
  BodyRoom room_;
  std::shared_ptr<ConnectionExchange> exchange_;
  std::string pending_, out_;
  std::array<char, 4096> scrap_{};
  std::atomic<std::size_t> unread_{0}, waiting_{0};
  std::uint64_t timer_use_ = 0;
  bool reading_ = false, writing_ = false, closed_ = false, close_after_ = false, head_only_ = false, chunked_ = true;
  bool streaming_ = false, ending_ = false, moved_ = false;
};

void ConnectionExchange::deliver() {
  asio::dispatch(connection_->executor(), [self = shared_from_this()] { self->connection_->hear(self); });
}

void ConnectionExchange::stream(std::string_view kind, std::string_view text) {
  if (gone()) return;
  constexpr std::string_view kEnd = "\n\n";
  if (!connection_->may_queue(kind.size() + text.size() + kEnd.size())) {
    leave();
    asio::post(connection_->executor(), [self = shared_from_this()] { self->connection_->close(); });
    return;
  }
  put([&](News& news) { news.bytes.append(kind).append(text).append(kEnd); });
}

void Outgoing::add(std::shared_ptr<ConnectionExchange> exchange) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(exchange));
    if (std::exchange(running_, true)) return;
  }
  asio::post(io_, [this] { hand_out(); });
}

void Outgoing::hand_out() {
  for (int i = 0; i < kAtOnce; ++i) {
    std::shared_ptr<ConnectionExchange> next;
    {
      const std::lock_guard lock(mutex_);
      running_ = !waiting_.empty();
      if (!running_) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    try {
      next->deliver();
    } catch (const std::exception& error) {
      log::warn("serve: a reply was lost: {}", error.what());
    }
  }
  asio::post(io_, [this] { hand_out(); });
}

class Server {
 public:
  Server(const HttpOptions& options, Handler& handler)
      : options_(options), shared_{options, handler, workers_, quick_, bulk_}, signals_(strand_, SIGINT, SIGTERM) {}

  void run(const std::function<void(int)>& listening, const std::stop_token& stop) {
    raise_file_limit();
    listen();
    const std::stop_callback stopping(stop, [this] {
      asio::post(strand_, [this] {
        if (!shared_.draining) drain();
      });
    });
    listening(acceptor_.local_endpoint().port());
    accept();
    watch();
    wait_for_signal();
    std::vector<std::thread> threads;
    const auto work = asio::make_work_guard(bulk_.io);
    for (int i = 0; i < options_.threads; ++i) threads.emplace_back([this] { run_handlers(bulk_); });
    run_handlers(quick_);
    bulk_.io.stop();
    for (auto& thread : threads) thread.join();
    workers_.join();
    shared_.handler.stop();  // no listener calls a connection afterwards
    for (const auto& connection : open_connections()) connection->close();
  }

 private:
  // An exception in one handler, such as a failed allocation, ends neither the thread nor the server.
  static void run_handlers(Lane& lane) {
    name_thread("essh-io");
    for (;;) {
      try {
        lane.io.run();
        return;
      } catch (const std::exception& error) {
        log::warn("serve: {}", error.what());
      }
    }
  }

  void listen() {
    Code code;
    const auto address = asio::ip::make_address(options_.host == "localhost" ? "127.0.0.1" : options_.host, code);
    if (code)
      fail(ErrorKind::Usage, "--host must be an IP address such as 127.0.0.1 or 0.0.0.0, not {}", options_.host);
    const tcp::endpoint endpoint(address, static_cast<unsigned short>(options_.port));
    acceptor_.open(endpoint.protocol(), code);
    if (!code) acceptor_.set_option(tcp::acceptor::reuse_address(true), code);
    if (!code) acceptor_.bind(endpoint, code);
    if (!code) acceptor_.listen(4096, code);
    if (code) {
      fail(ErrorKind::Usage, "cannot listen on {}:{} ({}); choose another --host or --port", options_.host,
           options_.port, code.message());
    }
  }

  void accept() {
    acceptor_.async_accept(asio::make_strand(quick_.io), [this](Code code, tcp::socket socket) {
      if (!acceptor_.is_open() || code == asio::error::operation_aborted) return;
      if (code) {  // for example no file descriptor: a client that leaves frees one
        pause_.expires_after(std::chrono::milliseconds(100));
        pause_.async_wait([this](Code cancelled) {
          if (!cancelled) accept();
        });
        return;
      }
      admit(std::move(socket));
      accept();
    });
  }

  void admit(tcp::socket socket) {
    try {
      Code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      const bool full = shared_.handler.connections >= options_.max_connections;
      const auto connection =
          std::make_shared<Connection>(std::move(socket), shared_, quick_, Counted(shared_.handler));
      if (full) return connection->turn_away(shared_.handler.malformed(503, "too many connections; try again"));
      connection->start();
    } catch (const std::exception& error) {
      log::warn("serve: a connection was dropped: {}", error.what());
    }
  }

  void wait_for_signal() {
    signals_.async_wait([this](Code code, int) {
      if (code) return;
      if (shared_.draining) {
        deadline_ = std::chrono::steady_clock::now();
      } else {
        log::info("stopping: running requests have {:g} s to end; a second signal ends them", options_.drain_seconds);
        drain();
      }
      wait_for_signal();
    });
  }

  void drain() {
    shared_.draining = true;
    shared_.handler.drain();
    Code ignored;
    acceptor_.close(ignored);
    deadline_ = std::chrono::steady_clock::now() + seconds(options_.drain_seconds);
  }

  // Every 50 ms: drains if the handler has failed, and stops once drained.
  void watch() {
    poll_.expires_after(std::chrono::milliseconds(50));
    poll_.async_wait([this](Code code) {
      if (code) return;
      if (shared_.handler.broken() && !shared_.draining) drain();
      if (shared_.draining && finish_drain()) return quick_.io.stop();
      watch();
    });
  }

  bool finish_drain() {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline_) shared_.handler.stop();
    if (!shared_.handler.idle()) return false;
    for (const auto& connection : open_connections()) connection->wind_up();
    if (shared_.handler.connections == 0) return true;
    // Replies that are being sent have a little longer.
    if (!idle_since_) idle_since_ = now;
    return now - *idle_since_ > std::chrono::seconds(3);
  }

  std::vector<std::shared_ptr<Connection>> open_connections() {
    std::vector<std::shared_ptr<Connection>> open;
    const std::lock_guard lock(shared_.mutex);
    for (auto* connection : shared_.open) {
      if (auto held = connection->weak_from_this().lock()) open.push_back(std::move(held));
    }
    return open;
  }

  const HttpOptions& options_;
  asio::thread_pool workers_{2};
  Shared shared_;
  Lane quick_, bulk_;
  // Serialises the server's own work.
  asio::strand<asio::io_context::executor_type> strand_ = asio::make_strand(quick_.io);
  tcp::acceptor acceptor_{strand_};
  asio::steady_timer pause_{strand_}, poll_{strand_};
  asio::signal_set signals_;
  std::chrono::steady_clock::time_point deadline_{};
  std::optional<std::chrono::steady_clock::time_point> idle_since_;
};

}  // namespace

void raise_file_limit() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

bool can_serve() {
  return true;
}

void serve_http(const HttpOptions& options, Handler& handler, const std::function<void(int)>& listening,
                const std::stop_token& stop) {
  Server server(options, handler);
  server.run(listening, stop);
  if (handler.broken()) fail(ErrorKind::Device, "the device failed while serving; see the messages above");
}

}  // namespace essh::serve
#else
namespace essh::serve {

void raise_file_limit() {}

bool can_serve() {
  return false;
}

void serve_http(const HttpOptions&, Handler&, const std::function<void(int)>&, const std::stop_token&) {
  fail(ErrorKind::Unsupported, "this build cannot serve; install Boost 1.74 or later (libboost-dev) and build again");
}

}  // namespace essh::serve
#endif
