#include "essh/serve/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <new>

#include "essh/base/error.h"
#include "essh/base/json.h"

namespace essh::serve {
namespace {

// Defaults of every reply: no scripts, frames, content sniffing or caching.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kStandardHeaders = {
    {{"Server", "essh"},
     {"X-Content-Type-Options", "nosniff"},
     {"Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"},
     {"Referrer-Policy", "no-referrer"},
     {"Cache-Control", "no-store"}}};

std::string format_headers(const std::vector<std::pair<std::string, std::string>>& own) {
  std::string text;
  for (const auto& [name, value] : kStandardHeaders) {
    const bool replaced = std::ranges::any_of(own, [&](const auto& header) { return header.first == name; });
    if (!replaced) text += fmt::format("{}: {}\r\n", name, value);
  }
  for (const auto& [name, value] : own) text += fmt::format("{}: {}\r\n", name, value);
  return text;
}

std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

Json or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

}  // namespace

std::string HttpError::body() const {
  return to_text(
      {{"error",
        {{"message", what()}, {"type", type_of(status_)}, {"param", or_null(param_)}, {"code", or_null(code_)}}}});
}

HttpReply HttpError::reply() const {
  HttpReply reply{.status = status_, .body = body()};
  if (status_ == 429 || status_ == 503) reply.headers.emplace_back("Retry-After", "1");
  if (status_ == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

HttpError as_http_error(const std::exception& error) {
  if (const auto* known = dynamic_cast<const HttpError*>(&error)) return *known;
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    switch (known->kind()) {
      case ErrorKind::Usage:
      case ErrorKind::BadFile:
      case ErrorKind::Unsupported:
        return {400, known->what()};
      case ErrorKind::OutOfMemory:
        return {503, known->what(), "", "out_of_memory"};
      default:
        return {500, known->what()};
    }
  }
  if (dynamic_cast<const std::bad_alloc*>(&error)) return {503, "out of memory; try again", "", "out_of_memory"};
  return {500, fmt::format("internal error: {}", error.what())};
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Internal Server Error";
  }
}

std::string format_reply(const HttpReply& reply, bool keep_alive, bool head_only) {
  auto text = fmt::format("HTTP/1.1 {} {}\r\n", reply.status, reason_phrase(reply.status));
  // 304 has no body, so Content-Type and Content-Length would describe nothing.
  if (reply.status != 304)
    text += fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n", reply.content_type, reply.body.size());
  text += fmt::format("Connection: {}\r\n{}\r\n", keep_alive ? "keep-alive" : "close", format_headers(reply.headers));
  if (!head_only) text += reply.body;
  return text;
}

std::string format_event_head(bool chunked) {
  return fmt::format(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n{}\r\nX-Accel-Buffering: no\r\n{}\r\n",
      chunked ? "Connection: keep-alive\r\nTransfer-Encoding: chunked" : "Connection: close", format_headers({}));
}

std::string format_chunk(std::string_view bytes) {
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

std::string format_event(std::string_view text) {
  return fmt::format("data: {}\n\n", text);
}

std::string format_comment(std::string_view text) {
  return fmt::format(": {}\n\n", text);
}

}  // namespace essh::serve
