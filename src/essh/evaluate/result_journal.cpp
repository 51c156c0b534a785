#include "essh/evaluate/result_journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "essh/base/error.h"
#include "essh/base/log.h"

namespace essh {
namespace fs = std::filesystem;

constexpr std::uint64_t kJournalBytes = std::uint64_t{1} << 32;

ResultJournal::ResultJournal(const fs::path& path) : path_(path) {
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

void ResultJournal::announce(const std::string& prefix) const {
  if (path_.empty() || results_.empty()) return;
  const auto kept =
      std::ranges::count_if(results_, [&](const auto& one) { return one.first.starts_with(prefix + " "); });
  if (kept > 0)
    log::info("{}: goes on after {} results of this measurement", path_.string(), kept);
  else
    log::info("{}: no result of this model, data and options; the {} of other measurements stay and are not used",
              path_.string(), results_.size());
}

std::vector<double> kept_or_measured(ResultJournal* journal, const std::string& key, std::size_t size,
                                     const std::function<std::vector<double>()>& measure) {
  const Json* kept = journal == nullptr ? nullptr : journal->find(key);
  if (kept == nullptr) {
    auto numbers = measure();
    const bool finite = std::ranges::all_of(numbers, [](double number) { return std::isfinite(number); });
    if (journal != nullptr && finite) journal->add(key, numbers);
    return numbers;
  }
  std::vector<double> numbers;
  for (std::size_t i = 0; kept->is_array() && i < kept->size(); ++i) {
    if ((*kept)[i].is_number()) numbers.push_back((*kept)[i].get<double>());
  }
  if (numbers.size() != size || kept->size() != size)
    fail(ErrorKind::BadFile, "the journal's result '{}' is not a list of {} numbers; name another --journal", key,
         size);
  return numbers;
}

}  // namespace essh
