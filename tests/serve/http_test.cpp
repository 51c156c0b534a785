#include "essh/serve/http.h"

#include <gtest/gtest.h>

#include <new>

#include "essh/base/error.h"
#include "essh/base/json.h"

namespace essh::serve {
namespace {

TEST(Http, AnErrorHasAllFourMembers) {
  const auto error = parse_json(HttpError(400, "bad \xff \"x\"", "n", "c").body(), "error").at("error");
  EXPECT_EQ(error.size(), 4u);
  EXPECT_EQ(error.at("type"), "invalid_request_error");
  EXPECT_EQ(error.at("param"), "n");
  EXPECT_EQ(error.at("code"), "c");
  EXPECT_TRUE(parse_json(HttpError(500, "x").body(), "error").at("error").at("param").is_null());
}

TEST(Http, OverloadSaysWhenToComeBack) {
  for (const int status : {429, 503}) {
    const auto reply = HttpError(status, "busy").reply();
    ASSERT_EQ(reply.headers.size(), 1u);
    EXPECT_EQ(reply.headers[0].first, "Retry-After");
  }
  EXPECT_TRUE(HttpError(400, "x").reply().headers.empty());
}

TEST(Http, ExceptionsHaveAStatus) {
  EXPECT_EQ(as_http_error(Error(ErrorKind::Usage, "x")).status(), 400);
  EXPECT_EQ(as_http_error(Error(ErrorKind::OutOfMemory, "x")).status(), 503);
  EXPECT_EQ(as_http_error(Error(ErrorKind::Device, "x")).status(), 500);
  EXPECT_EQ(as_http_error(std::bad_alloc()).status(), 503);
  EXPECT_EQ(as_http_error(std::runtime_error("x")).status(), 500);
  EXPECT_EQ(as_http_error(HttpError(404, "x")).status(), 404);
}

TEST(Http, AReplyReplacesStandardHeaders) {
  const auto text = format_reply({.body = "x", .headers = {{"Cache-Control", "no-cache"}}}, true);
  EXPECT_NE(text.find("Cache-Control: no-cache\r\n"), std::string::npos);
  EXPECT_EQ(text.find("no-store"), std::string::npos);
  EXPECT_NE(text.find("Content-Security-Policy: default-src 'none'"), std::string::npos);
}

TEST(Http, NotModifiedHasNoBody) {
  const auto text = format_reply({.status = 304, .headers = {{"ETag", "\"x\""}}}, true);
  EXPECT_TRUE(text.starts_with("HTTP/1.1 304 Not Modified\r\n"));
  EXPECT_EQ(text.find("Content-Length"), std::string::npos);
  EXPECT_TRUE(text.ends_with("\r\n\r\n"));
}

TEST(Http, Replies) {
  const auto text = format_reply({.body = "abc", .headers = {{"X-A", "1"}}}, true);
  EXPECT_TRUE(text.starts_with("HTTP/1.1 200 OK\r\n"));
  for (const char* line :
       {"\r\nContent-Length: 3\r\n", "\r\nConnection: keep-alive\r\n", "\r\nX-A: 1\r\n",
        "\r\nX-Content-Type-Options: nosniff\r\n", "\r\nContent-Security-Policy: default-src 'none'"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
  EXPECT_TRUE(text.ends_with("\r\n\r\nabc"));
  const auto head = format_reply({.body = "abc"}, false, true);
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
  EXPECT_NE(head.find("Content-Length: 3"), std::string::npos);
  EXPECT_NE(head.find("Connection: close"), std::string::npos);
}

TEST(Http, Streams) {
  EXPECT_EQ(format_event("[DONE]"), "data: [DONE]\n\n");
  EXPECT_EQ(format_chunk("0123456789abcdef"), "10\r\n0123456789abcdef\r\n");
  EXPECT_NE(format_event_head(true).find("Transfer-Encoding: chunked\r\n"), std::string::npos);
  EXPECT_EQ(format_event_head(false).find("chunked"), std::string::npos);
  for (const bool chunked : {false, true}) {
    const auto head = format_event_head(chunked);
    EXPECT_NE(head.find("Content-Type: text/event-stream"), std::string::npos);
    EXPECT_TRUE(head.ends_with("\r\n\r\n"));
    EXPECT_EQ(head.find("\r\n\r\n"), head.size() - 4);
  }
}

}  // namespace
}  // namespace essh::serve
