#include "essh/evaluate/result_journal.h"

#include <fmt/format.h>

#include "essh/base/error.h"

namespace essh {
namespace fs = std::filesystem;

constexpr std::uint64_t kJournalBytes = std::uint64_t{1} << 32;

ResultJournal::ResultJournal(const fs::path& path) {
  if (path.empty()) return;
  lock_.emplace(path.string() + ".lock");
  std::size_t kept = 0;
  if (fs::exists(path)) {
    const auto text = read_text(path, kJournalBytes);
    std::size_t number = 1;
    for (auto end = text.find('\n'); end != std::string::npos; end = text.find('\n', kept), ++number) {
      const auto place = fmt::format("{}: line {}", path.string(), number);
      const auto line = parse_json(std::string_view(text).substr(kept, end - kept), place);
      if (!line.is_object() || !line.contains("key") || !line["key"].is_string() || !line.contains("result"))
        fail(ErrorKind::BadFile, "{}: not a line of a journal of results; name another --journal", place);
      results_[line["key"].get<std::string>()] = line["result"];
      kept = end + 1;
    }
  }
  file_.emplace(path, kept);
}

const Json* ResultJournal::find(const std::string& key) const {
  const auto found = results_.find(key);
  return found == results_.end() ? nullptr : &found->second;
}

void ResultJournal::add(const std::string& key, const Json& result) {
  results_[key] = result;
  if (!file_) return;
  const auto line = to_text(Json{{"key", key}, {"result", result}}) + "\n";
  file_->append(std::as_bytes(std::span(line)));
  file_->sync();
}

}  // namespace essh
