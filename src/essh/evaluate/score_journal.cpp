#include "essh/evaluate/score_journal.h"

#include "essh/base/json.h"
#include "essh/config/fields.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

constexpr std::uint64_t kScoreJournalBytes = std::uint64_t{1} << 32;

struct ScoreLine {
  std::string key;
  std::int64_t item = 0;
  std::vector<double> log_likelihood;
  std::vector<bool> greedy;
};

template <class Visitor>
void fields(Visitor& visit, ScoreLine& line) {
  visit("key", line.key, Field{.required = true});
  visit("item", line.item, Field{.min = 0, .required = true});
  visit("log_likelihood", line.log_likelihood, Field{.required = true});
  visit("greedy", line.greedy, Field{.required = true});
}

}  // namespace

ScoreJournal::ScoreJournal(const fs::path& path) : path_(path), lock_(path.string() + ".lock") {
  std::size_t kept = 0;
  if (fs::exists(path)) {
    const auto text = read_text(path, kScoreJournalBytes);
    std::size_t number = 1;
    for (auto end = text.find('\n'); end != std::string::npos; end = text.find('\n', kept), ++number) {
      const auto place = fmt::format("{}: line {}", path.string(), number);
      ScoreLine line;
      read_fields(line, parse_json(std::string_view(text).substr(kept, end - kept), place), place, UnknownKeys::Ignore);
      if (line.greedy.size() != line.log_likelihood.size())
        fail(ErrorKind::BadFile, "{}: log_likelihood and greedy differ in length", place);
      auto& likelihoods = items_[line.key][static_cast<std::size_t>(line.item)];
      likelihoods.clear();
      for (std::size_t i = 0; i < line.greedy.size(); ++i)
        likelihoods.push_back({.log_likelihood = line.log_likelihood[i], .greedy = line.greedy[i]});
      kept = end + 1;
    }
  }
  file_.emplace(path, kept);
}

const std::vector<Likelihood>* ScoreJournal::find(const std::string& key, std::size_t item) const {
  const auto items = items_.find(key);
  if (items == items_.end()) return nullptr;
  const auto found = items->second.find(item);
  return found == items->second.end() ? nullptr : &found->second;
}

void ScoreJournal::add(const std::string& key, std::size_t item, const std::vector<Likelihood>& likelihoods,
                       Json details) {
  Json log_likelihood = Json::array(), greedy = Json::array();
  for (const auto& one : likelihoods) {
    log_likelihood.push_back(one.log_likelihood);
    greedy.push_back(one.greedy);
  }
  details["key"] = key;
  details["item"] = item;
  details["log_likelihood"] = std::move(log_likelihood);
  details["greedy"] = std::move(greedy);
  const auto line = to_text(details) + "\n";
  file_->append(std::as_bytes(std::span(line)));
}

void ScoreJournal::sync() {
  file_->sync();
}

}  // namespace essh
