#include "essh/text/regex_splitter.h"

#include <algorithm>
#include <new>

#include "essh/base/error.h"
#include "essh/text/tokenizer_scratch.h"
#include "essh/text/utf8.h"

#if ESSH_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace essh {

#if ESSH_HAVE_PCRE2

namespace {

constexpr std::size_t kLongestPattern = 16384;
// Match steps allowed; a sane pattern needs a few per character of the word.
constexpr std::uint32_t kMatchLimit = 20'000'000;
constexpr std::uint32_t kDepthLimit = 1'000'000;
constexpr std::uint32_t kHeapLimitKilobytes = 65536;
constexpr std::size_t kJitStackStart = 32 << 10;
constexpr std::size_t kJitStackLimit = 8 << 20;

std::string message_of(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

struct MatchState {
  MatchState()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr)) {
    if (data == nullptr || context == nullptr) throw std::bad_alloc();
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_depth_limit(context, kDepthLimit);
    pcre2_set_heap_limit(context, kHeapLimitKilobytes);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchState() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

}  // namespace

struct RegexSplitter::Code {
  ~Code() { pcre2_code_free(code); }

  // All matches in UTF-8 text, shifted by `shift`.
  void find(std::string_view text, std::size_t shift, MatchState& state, std::vector<TextRange>& found) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    bool after_match = false;
    for (std::size_t at = 0; at < text.size();) {
      int count = pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, state.data, state.context);
      if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
        count =
            pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.data, state.context);
      }
      if (count == PCRE2_ERROR_NOMATCH) return;
      if (count < 0) fail(ErrorKind::BadFile, "{}: the pattern fails on this text: {}", place, message_of(count));
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state.data);
      // \K can set the start before the search position or after the end.
      const std::size_t begin = std::max(range[0], at);
      const std::size_t end = std::max(range[1], begin);
      if (begin == end) {
        if (!(after_match && begin == at)) found.push_back({shift + begin, shift + begin});
        at = end < text.size() ? end + utf8_char(text, end).length : end + 1;
        after_match = false;
      } else {
        found.push_back({shift + begin, shift + end});
        at = end;
        after_match = true;
      }
    }
  }

  pcre2_code* code = nullptr;
  std::string place;
  mutable ScratchPool<MatchState> states;
};

RegexSplitter::RegexSplitter(std::string_view pattern, bool literal, std::string place)
    : code_(std::make_unique<Code>()) {
  if (pattern.empty()) fail(ErrorKind::BadFile, "{}: the pattern is empty", place);
  if (pattern.size() > kLongestPattern) {
    fail(ErrorKind::BadFile, "{}: a pattern of {} bytes, the limit is {}", place, pattern.size(), kLongestPattern);
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::uint32_t options = literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  code_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset, nullptr);
  if (code_->code == nullptr) {
    fail(ErrorKind::BadFile, "{}: the pattern is not a regular expression: {} at byte {}", place, message_of(error),
         offset);
  }
  // Without JIT support on this machine the interpreter gives the same result, slower.
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);
  code_->place = std::move(place);
}

void RegexSplitter::matches(std::string_view text, std::vector<TextRange>& found) const {
  auto state = code_->states.borrow();
  std::size_t begin = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Char next = utf8_char(text, at);
    if (!next.valid) {
      code_->find(text.substr(begin, at - begin), begin, *state, found);
      begin = at + next.length;
    }
    at += next.length;
  }
  code_->find(text.substr(begin), begin, *state, found);
}

#else

struct RegexSplitter::Code {};

RegexSplitter::RegexSplitter(std::string_view, bool, std::string place) {
  fail(ErrorKind::Unsupported,
       "{}: a pattern other than GPT-2's and Llama-3's needs PCRE2: install libpcre2-dev and build again", place);
}

void RegexSplitter::matches(std::string_view, std::vector<TextRange>&) const {}

#endif

RegexSplitter::~RegexSplitter() = default;
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;

}  // namespace essh
