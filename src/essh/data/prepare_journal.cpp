#include "essh/data/prepare_journal.h"

#include "essh/config/fields.h"

namespace essh {
namespace fs = std::filesystem;

template <class Visitor>
void fields(Visitor& visit, SourcePosition& position) {
  visit("offset", position.offset, {.required = true});
  visit("line", position.line, {.required = true});
}

template <class Visitor>
void fields(Visitor& visit, PrepareState::Split& split) {
  visit("documents", split.documents, {.required = true});
  visit("bytes", split.bytes, {.required = true});
  visit("open_tokens", split.shards.tokens, {.min = 0, .required = true});
  visit("open_documents", split.shards.documents, {.min = 0, .required = true});
  visit("open_checksum", split.shards.checksum, {.required = true});
}

template <class Visitor>
void fields(Visitor& visit, PrepareState& state) {
  visit("source", state.source, {.required = true});
  visit("position", state.position, {.required = true});
  visit("consumed", state.consumed, {.required = true});
  visit("train", state.train, {.required = true});
  visit("valid", state.valid, {.required = true});
  visit("bad_lines", state.bad_lines, {.min = 0, .required = true});
  visit("first_bad_lines", state.first_bad_lines, {.required = true});
  visit("first_records", state.first_records, {});
  visit("held_out", state.held_out, {});
}

namespace {

constexpr JsonLimits kPlanLimits{.bytes = std::uint64_t{1} << 30, .depth = 8, .values = 64u << 20};

Json shards_to_json(const std::vector<ShardEntry>& shards) {
  Json list = Json::array();
  for (const auto& shard : shards) list.push_back(to_json(shard));
  return list;
}

}  // namespace

PrepareJournal::PrepareJournal(const fs::path& folder, const DatasetPlan& plan)
    : folder_(folder),
      plan_(plan),
      suffix_(part_suffix(plan.part, plan.parts)),
      plan_path_(folder / fmt::format("prepare{}.plan.json", suffix_)),
      state_path_(folder / fmt::format("prepare{}.state.json", suffix_)),
      lock_path_(folder / fmt::format("prepare{}.lock", suffix_)),
      lock_(lock_path_) {}

std::optional<PrepareState> PrepareJournal::resume() {
  const auto plan_text = to_text(to_json(plan_), 1) + "\n";
  if (!fs::exists(plan_path_)) {
    // Shards without a plan are not from an interrupted run: never remove them.
    for (const char* split : {"train", "valid"}) {
      const auto first = folder_ / fmt::format("{}{}-00000.bin", split, suffix_);
      if (fs::exists(first))
        fail(ErrorKind::Usage, "{}: in the way; remove it or choose another folder", first.string());
    }
    write_durably(plan_path_, plan_text);
    return std::nullopt;
  }
  const auto planned = plan_from_json(read_json(plan_path_, kPlanLimits), plan_path_.string());
  if (const auto why = difference(planned, plan_); !why.empty()) {
    fail(ErrorKind::Usage,
         "{}: an interrupted run that was started differently: {}; repeat its command, or remove the folder to start "
         "again",
         folder_.string(), why);
  }
  if (!fs::exists(state_path_)) return std::nullopt;
  const auto place = state_path_.string();
  Json object = read_json(state_path_, kPlanLimits);
  PrepareState state;
  if (!object.is_object() || !object.contains("train_shards") || !object.contains("valid_shards")) {
    fail(ErrorKind::BadFile, "{}: not the state of a preparation; remove the folder to start again", place);
  }
  state.train.shards.finished = shards_from_json(object["train_shards"], place + ": train_shards");
  state.valid.shards.finished = shards_from_json(object["valid_shards"], place + ": valid_shards");
  read_fields(state, object, place, UnknownKeys::Ignore);
  return state;
}

void PrepareJournal::keep(const PrepareState& state) {
  Json object = write_fields(state);
  object["train_shards"] = shards_to_json(state.train.shards.finished);
  object["valid_shards"] = shards_to_json(state.valid.shards.finished);
  write_durably(state_path_, to_text(object, 1) + "\n");
}

void PrepareJournal::remove() {
  // A process killed while writing one of these left a temporary file.
  const auto manifest = manifest_path(folder_, plan_.part, plan_.parts);
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const auto name = entry.path().filename().string();
    for (const auto& written : {plan_path_, state_path_, manifest}) {
      if (name.starts_with(written.filename().string() + ".tmp-")) fs::remove(entry.path());
    }
  }
  fs::remove(state_path_);
  fs::remove(plan_path_);
  fs::remove(lock_path_);
}

}  // namespace essh
