#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "essh/base/json.h"
#include "tests/serve/live_server.h"

// Faults of clients, numbered as in docs/reliability.md. Tests wait for events, never for a time, so a slow machine
// cannot fail them.
namespace essh::serve {
namespace {

constexpr std::int64_t kEndless = std::int64_t{1} << 40;
constexpr std::string_view kEndlessStream =
    R"({"prompt": "x", "max_tokens": 1099511627776, "ignore_eos": true, "stream": true})";

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!can_serve()) GTEST_SKIP() << "built without Boost";
  }
};

ApiOptions endless() {
  ApiOptions options;
  options.limits.max_tokens = kEndless;
  return options;
}

template <class Condition>
void wait_until(const Condition& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

std::string ask(const LiveServer& server, const std::string& request) {
  Client client(server.port);
  client.send(request);
  return client.read_all();
}

std::string completion(const LiveServer& server, std::string_view body) {
  return ask(server, post("/v1/completions", body, kClose));
}

bool healthy(const LiveServer& server) {
  return ask(server, get("/health", kClose)).starts_with("HTTP/1.1 200 OK");
}

// S2: slow and idle clients.

TEST_F(ServerTest, S2AHeadThatDoesNotEndIsAnswered408) {
  LiveServer server({.header_seconds = 0.02});
  for (const std::string_view head : {"G", "GET /health HTTP/1.1\r\nHost: localhost\r\nX: "}) {
    Client client(server.port);
    client.send(head);
    // Single bytes do not extend the deadline.
    while (!client.readable(1) && client.send("a")) {
    }
    EXPECT_EQ(client.read_all().substr(0, 13), "HTTP/1.1 408 ");
    EXPECT_NE(client.read_all().find("\"error\""), std::string::npos);
  }
  EXPECT_TRUE(healthy(server));
}

TEST_F(ServerTest, S2ABodyThatDoesNotEndIsAnswered408) {
  LiveServer server({.body_seconds = 0.02});
  Client client(server.port);
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 1000000\r\n\r\n{");
  while (!client.readable(1) && client.send(" ")) {
  }
  EXPECT_EQ(client.read_all().substr(0, 13), "HTTP/1.1 408 ");
  EXPECT_TRUE(healthy(server));
}

TEST_F(ServerTest, S2IdleConnectionsAreClosed) {
  LiveServer server({.idle_seconds = 0.02});
  EXPECT_EQ(Client(server.port).read_all(), "");
  // On a slow machine the connection may be closed before the request arrives.
  std::string reply;
  while (reply.empty()) reply = ask(server, get("/health"));
  EXPECT_EQ(count(reply, "HTTP/1.1 200 OK"), 1u);
  wait_until([&] { return server.model.api.connections == 0; });
}

TEST_F(ServerTest, S2AConnectionIsKeptBetweenRequests) {
  LiveServer server;
  Client client(server.port);
  for (int i = 0; i < 50; ++i) {
    client.send(i % 2 ? get("/health") : post("/v1/completions", R"({"prompt": "x", "max_tokens": 1})"));
    const auto& reply = client.read_until(i % 2 ? "ok\"}" : "\"total_tokens\"");
    ASSERT_TRUE(reply.starts_with("HTTP/1.1 200 OK")) << reply;
    client.take();
  }
}

TEST_F(ServerTest, S2RequestsSentAtOnceAreAnsweredInOrder) {
  LiveServer server;
  std::string all;
  for (int i = 0; i < 20; ++i) {
    all += post("/tokenize", fmt::format(R"({{"prompt": "{}"}})", std::string(static_cast<std::size_t>(i), 'a')));
    if (i % 3 == 0) all += post("/v1/completions", R"({"prompt": "x", "max_tokens": 2, "stream": true})");
  }
  const auto replies = ask(server, all + get("/health", kClose));
  EXPECT_EQ(count(replies, "HTTP/1.1 200 OK"), 28u);
  EXPECT_EQ(count(replies, "data: [DONE]"), 7u);
  std::size_t at = 0;
  for (int i = 0; i < 20; ++i) {
    at = replies.find(fmt::format("\"count\":{}", i), at);
    ASSERT_NE(at, std::string::npos) << i;
  }
}

// S3: clients that do not read.

TEST_F(ServerTest, S3AClientThatReadsNothingIsDropped) {
  for (const bool by_time : {false, true}) {
    HttpOptions http{.max_unread = by_time ? std::uint64_t{1} << 40 : 1 << 16, .stall_seconds = by_time ? 0.02 : 1e6};
    LiveServer server(http, endless());
    Client client(server.port, 4096);
    client.send(
        post("/v1/completions", R"({"prompt": "x", "max_tokens": 1099511627776, "ignore_eos": true, "stream": true,
                                            "logprobs": 20, "n": 16})"));
    wait_until(
        [&] { return server.metrics().find("essh_cancelled_total{reason=\"disconnected\"} 1") != std::string::npos; });
    wait_until([&] { return server.model.scheduler.idle(); });
    EXPECT_TRUE(healthy(server));
  }
}

TEST_F(ServerTest, S3AQuietStreamIsKeptAlive) {
  // The engine waits until the client has received a comment.
  std::atomic<bool> go{false};
  LiveServer server({.keep_alive_seconds = 0.01}, {}, {.before_step = [&] { wait_until([&] { return go.load(); }); }});
  Client client(server.port);
  client.send(post("/v1/completions", R"({"prompt": "x", "max_tokens": 2, "stream": true})", kClose));
  client.read_until(": keep-alive\n\n");
  go = true;
  EXPECT_NE(client.read_all().find("data: [DONE]"), std::string::npos);
}

// S4: clients that leave.

TEST_F(ServerTest, S4ClientsThatLeaveInEveryPhase) {
  LiveServer server({}, endless(), {.max_slots = 2, .prompt_piece = 8});
  const auto body = [](std::size_t prompt, std::string_view more) {
    return fmt::format(R"({{"prompt": "{}", "max_tokens": 1099511627776, "ignore_eos": true{}}})",
                       std::string(prompt, 'x'), more);
  };
  const auto gauges = [&] { return server.model.scheduler.gauges(); };
  const auto request = post("/v1/completions", body(1, ""));
  // In the head and in the body.
  for (std::size_t cut = 1; cut < request.size(); cut += 7) {
    Client client(server.port);
    client.send(std::string_view(request).substr(0, cut));
  }
  // While the prompt is computed and while tokens are drawn; with and without a stream; with several choices.
  for (const auto& sent :
       {body(1 << 20, ""), body(1 << 20, R"(, "stream": true)"), body(1, ""), body(1, R"(, "stream": true)"),
        body(1, R"(, "n": 7)"), body(300, R"(, "n": 7, "stream": true)")}) {
    Client client(server.port);
    client.send(post("/v1/completions", sent));
    wait_until([&] { return gauges().running > 0; });
    client.leave();
    wait_until([&] { return server.model.scheduler.idle(); });
  }
  // In the queue, behind two texts that continue.
  Client first(server.port), second(server.port), third(server.port);
  for (auto* client : {&first, &second}) client->send(post("/v1/completions", kEndlessStream));
  wait_until([&] { return gauges().running == 2; });
  third.send(post("/v1/completions", kEndlessStream));
  wait_until([&] { return gauges().queued == 1; });
  third.leave();
  wait_until([&] { return gauges().queued == 0; });
  EXPECT_EQ(gauges().running, 2);
  for (auto* client : {&first, &second}) {
    client->take();
    EXPECT_NE(client->read_until("data: ").find("data: "), std::string::npos);
    client->leave();
  }
  wait_until([&] { return server.model.scheduler.idle() && server.model.api.connections == 0; });
  EXPECT_EQ(gauges().state_bytes, 0);
}

// S5: many clients at once.

TEST_F(ServerTest, S5ManyStreamsAtOnceAndHealthBetween) {
  LiveServer server;
  const auto expected =
      completion(server, R"({"prompt": "abc", "max_tokens": 8, "temperature": 0, "ignore_eos": true})");
  const auto text =
      parse_json(expected.substr(expected.find("\r\n\r\n") + 4), "reply").at("choices").front().at("text").text();
  std::vector<Client> clients;
  for (int i = 0; i < 200; ++i) {
    clients.emplace_back(server.port);
    clients.back().send(
        post("/v1/completions",
             R"({"prompt": "abc", "max_tokens": 8, "temperature": 0, "ignore_eos": true, "stream": true})", kClose));
    if (i % 50 == 0) {
      EXPECT_TRUE(healthy(server));
    }
  }
  for (auto& client : clients) {
    const auto& reply = client.read_all();
    std::string streamed;
    for (auto at = reply.find("data: {"); at != std::string::npos; at = reply.find("data: {", at + 1)) {
      const auto event = reply.substr(at + 6, reply.find("\n\n", at) - at - 6);
      streamed += parse_json(event, "event").at("choices").front().at("text").text();
    }
    EXPECT_EQ(streamed, text);
    EXPECT_NE(reply.find("data: [DONE]"), std::string::npos);
  }
}

TEST_F(ServerTest, S5BusyAnswersSayWhenToComeAgain) {
  LiveServer server({}, endless(), {.max_slots = 1, .max_queue = 1});
  Client running(server.port), waiting(server.port);
  for (auto* client : {&running, &waiting}) client->send(post("/v1/completions", kEndlessStream));
  const auto gauges = [&] { return server.model.scheduler.gauges(); };
  wait_until([&] { return gauges().running == 1 && gauges().queued == 1; });
  const auto reply = completion(server, R"({"prompt": "x"})");
  EXPECT_TRUE(reply.starts_with("HTTP/1.1 429 ")) << reply;
  EXPECT_NE(reply.find("\r\nRetry-After: "), std::string::npos);
  EXPECT_TRUE(healthy(server));
}

// S10: texts that are slow to tokenize.

TEST_F(ServerTest, S10LongRunsOfOneCharacter) {
  LiveServer server;
  for (const std::string_view unit : {"a", "\\n", " ", "\xf0\x9f\x99\x82"}) {
    std::string text;
    while (text.size() < (1u << 20)) text += unit;
    const auto reply = ask(server, post("/tokenize", fmt::format(R"({{"prompt": "{}"}})", text), kClose));
    EXPECT_TRUE(reply.starts_with("HTTP/1.1 200 OK"));
    EXPECT_TRUE(healthy(server));
  }
}

// S12: a step that fails.

TEST_F(ServerTest, S12AStepWithoutMemoryFailsItsRequestsAlone) {
  std::atomic<int> failures{1};
  LiveServer server({}, {}, {.before_step = [&] {
                      if (failures-- > 0) throw Error(ErrorKind::OutOfMemory, "no memory for this step");
                    }});
  const auto reply = completion(server, R"({"prompt": "x", "max_tokens": 1})");
  EXPECT_TRUE(reply.starts_with("HTTP/1.1 503 ")) << reply;
  EXPECT_NE(reply.find("Retry-After"), std::string::npos);
  EXPECT_TRUE(completion(server, R"({"prompt": "x", "max_tokens": 1})").starts_with("HTTP/1.1 200 OK"));
  EXPECT_TRUE(healthy(server));
}

TEST_F(ServerTest, S12ADeviceThatHasFailedEndsTheServer) {
  ServedModel model({}, {.before_step = [] { throw Error(ErrorKind::Device, "the device is lost"); }});
  std::promise<int> listening;
  std::exception_ptr error;
  std::thread server([&] {
    try {
      serve_http({.port = 0}, model.api, [&](int port) { listening.set_value(port); });
    } catch (...) {
      error = std::current_exception();
    }
  });
  Client client(listening.get_future().get());
  client.send(post("/v1/completions", R"({"prompt": "x"})"));
  EXPECT_TRUE(client.read_until("}}").starts_with("HTTP/1.1 500 "));
  server.join();
  ASSERT_TRUE(error);
  try {
    std::rethrow_exception(error);
  } catch (const Error& caught) {
    EXPECT_EQ(caught.kind(), ErrorKind::Device);
  }
}

// S16: cached states are separate per key.

TEST_F(ServerTest, S16KeysDoNotShareStates) {
  LiveServer server({}, {.keys = {"one", "two"}}, {.cache_bytes = 1 << 20});
  const auto cached = [&](std::string_view key) {
    const auto reply = ask(server, post("/v1/completions", R"({"prompt": "a secret", "max_tokens": 1})",
                                        fmt::format("Authorization: Bearer {}\r\n{}", key, kClose)));
    const auto body = parse_json(reply.substr(reply.find("\r\n\r\n") + 4), "reply");
    return body.at("usage").at("prompt_tokens_details").at("cached_tokens").get<int>();
  };
  EXPECT_EQ(cached("one"), 0);
  EXPECT_EQ(cached("two"), 0);
  EXPECT_EQ(cached("one"), 7);
}

// S17: shutdown.

TEST_F(ServerTest, S17RunningRequestsEndBeforeTheServer) {
  std::atomic<bool> go{false};
  LiveServer server({}, {}, {.before_step = [&] { wait_until([&] { return go.load(); }); }});
  Client client(server.port), idle(server.port);
  client.send(post("/v1/completions", R"({"prompt": "x", "max_tokens": 50, "ignore_eos": true, "stream": true})"));
  client.read_until("200 OK");
  server.request_stop();
  wait_until([&] { return server.model.scheduler.draining(); });
  go = true;
  EXPECT_NE(client.read_all().find("data: [DONE]"), std::string::npos);
  EXPECT_EQ(idle.read_all(), "");
  client.leave();
  idle.leave();
  server.stop();
  EXPECT_THROW(Client(server.port), std::runtime_error);
}

TEST_F(ServerTest, S17WhatTakesTooLongEndsWithAnError) {
  LiveServer server({.drain_seconds = 0.01}, endless());
  Client client(server.port);
  client.send(post("/v1/completions", kEndlessStream));
  client.read_until("data: ");
  server.request_stop();
  EXPECT_NE(client.read_all().find("\"code\":\"shutting_down\""), std::string::npos);
  client.leave();
  server.stop();
}

// Long prompts.

TEST_F(ServerTest, ALongPromptTellsItsProgress) {
  LiveServer server({}, {}, {.prompt_piece = 64});
  const auto reply =
      completion(server, fmt::format(R"({{"prompt": "{}", "max_tokens": 1, "stream": true}})", std::string(200, 'x')));
  std::size_t at = 0;
  for (const int done : {64, 128, 192}) {
    at = reply.find(fmt::format(": prompt {}/200\n\n", done), at);
    ASSERT_NE(at, std::string::npos) << done;
  }
  EXPECT_EQ(count(reply, ": prompt "), 3u);
  EXPECT_GT(reply.find("data: {"), at);
}

// A smaller tier under load.

TEST_F(ServerTest, RequestsWithoutATierGetASmallerOneUnderLoad) {
  LatencyControl control({.limit = 0.02, .grow_seconds = 1e9}, 2);
  for (const bool named_too : {false, true}) {
    LiveServer server({}, {.latency = &control, .reduce_named = named_too});
    if (!named_too) {
      EXPECT_NE(completion(server, R"({"prompt": "x", "max_tokens": 1})").find("\"model\":\"m@full\""),
                std::string::npos);
      control.observe(0, 0.5, 0);
    }
    for (const std::string_view stream : {"false", "true"}) {
      const auto reply = completion(server, fmt::format(R"({{"prompt": "x", "max_tokens": 3, "stream": {}}})", stream));
      EXPECT_NE(reply.find("\"model\":\"m@T1\""), std::string::npos) << reply;
      EXPECT_NE(reply.find("500.0 ms between tokens, the limit is 20 ms"), std::string::npos);
      EXPECT_NE(reply.find("\"asked_tier\":\"full\""), std::string::npos);
    }
    const auto named = completion(server, R"({"model": "m@full", "prompt": "x", "max_tokens": 1})");
    EXPECT_NE(named.find(named_too ? "\"model\":\"m@T1\"" : "\"model\":\"m@full\""), std::string::npos);
    const auto small = completion(server, R"({"model": "m@T1", "prompt": "x", "max_tokens": 1})");
    EXPECT_EQ(small.find("asked_tier"), std::string::npos);
  }
}

}  // namespace
}  // namespace essh::serve
