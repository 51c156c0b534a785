#include "essh/data/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "essh/base/error.h"
#include "essh/base/log.h"
#include "essh/base/progress.h"
#include "essh/base/units.h"
#include "essh/base/utf8.h"
#include "essh/data/ordered_pipeline.h"
#include "essh/data/prepare_journal.h"
#include "essh/data/shard_writer.h"
#include "essh/data/source_list.h"
#include "essh/data/xxhash64.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kListedBadLines = 20, kListedRecords = 8;

enum class Split { OfDocument, Train, Valid };

// A piece, or one side of a piece that is cut between the splits.
struct EncodedPiece {
  std::size_t bytes;
  bool first;              // begins a document
  bool ends;               // an end-of-text token follows
  Split split;             // OfDocument: the document's hash decides
  std::uint64_t hash;      // first pieces only
  std::size_t tokens_end;  // end in Work::tokens
};

// A block in the pipeline.
struct Work {
  std::size_t source = 0;
  Block block;
  std::vector<EncodedPiece> pieces;
  std::vector<std::int32_t> tokens;
};

DatasetPlan make_plan(const PrepareOptions& options, const TextEncoder& encoder) {
  if (options.parts < 1 || options.part < 1 || options.part > options.parts) {
    fail(ErrorKind::Usage, "part {}/{}: a part is one of 1/{} to {}/{}", options.part, options.parts, options.parts,
         options.parts, options.parts);
  }
  if (!(options.valid_fraction >= 0 && options.valid_fraction < 1)) {
    fail(ErrorKind::Usage, "valid_fraction must be at least 0 and below 1, got {}", options.valid_fraction);
  }
  if (options.shard_tokens < 1 || options.shard_tokens > kMostTokens) {
    fail(ErrorKind::Usage, "shard_tokens must be at least 1, got {}", options.shard_tokens);
  }
  if (encoder.eos_id < 0 || encoder.eos_id >= encoder.format.vocab_size) {
    fail(ErrorKind::Usage, "the end-of-text token {} is outside the vocabulary of {}", encoder.eos_id,
         encoder.format.vocab_size);
  }
  return {.tokens = encoder.format,
          .eos_id = encoder.eos_id,
          .field = options.field,
          .valid_fraction = options.valid_fraction,
          .holdout = options.holdout,
          .shard_tokens = options.shard_tokens,
          .part = options.part,
          .parts = options.parts,
          .sources = find_sources(options.inputs, options.format, options.folder)};
}

// The sources of a part, and whether other parts read them too, each part keeping only its own documents.
struct PartSources {
  explicit PartSources(const DatasetPlan& plan)
      : share_documents(plan.parts > 1 && plan.sources.size() < 8 * static_cast<std::size_t>(plan.parts)) {
    const auto step = share_documents ? 1 : static_cast<std::size_t>(plan.parts);
    for (std::size_t i = share_documents ? 0 : static_cast<std::size_t>(plan.part - 1); i < plan.sources.size();
         i += step) {
      files.push_back(plan.sources[i]);
    }
  }

  bool share_documents;
  std::vector<SourceFile> files;
};

// Reads the sources in order into blocks.
class SourceReader {
 public:
  SourceReader(const std::vector<SourceFile>& files, const DatasetPlan& plan, std::size_t source,
               SourcePosition position)
      : files_(files), plan_(plan), source_(source), position_(position) {}

  bool read(Work& work) {
    while (source_ < files_.size()) {
      const auto& file = files_[source_];
      if (!reader_)
        reader_ = open_document_reader(file.path, parse_format(file.format), plan_.field, position_, plan_.holdout);
      work.source = source_;
      work.block.clear();
      if (reader_->read(work.block)) return true;
      check_unchanged(file);
      reader_.reset();
      position_ = {};
      ++source_;
    }
    return false;
  }

 private:
  static void check_unchanged(const SourceFile& file) {
    auto now = describe_source(file.path);
    now.format = file.format;
    if (now != file)
      fail(ErrorKind::BadFile, "{}: changed while it was read; remove the dataset's folder and start again", file.path);
  }

  const std::vector<SourceFile>& files_;
  const DatasetPlan& plan_;
  std::size_t source_;
  SourcePosition position_;
  std::unique_ptr<DocumentReader> reader_;
};

class Preparation {
 public:
  Preparation(const PrepareOptions& options, const TextEncoder& encoder, const DatasetPlan& plan)
      : options_(options), encoder_(encoder), plan_(plan), sources_(plan), journal_(options.folder, plan) {
    for (const auto& file : sources_.files) {
      pipes_ = pipes_ || file.pipe;
      total_bytes_ += static_cast<double>(file.size);
      starts_.push_back(total_bytes_ - static_cast<double>(file.size));
      // Fail now, not after hours of work.
      if (file.format == format_name(CorpusFormat::Parquet) && !parquet_available())
        open_document_reader(file.path, CorpusFormat::Parquet, plan.field);
    }
  }

  PrepareReport run() {
    const auto start = std::chrono::steady_clock::now();
    PrepareReport report;
    if (auto kept = journal_.resume(); kept && !pipes_) {
      state_ = std::move(*kept);
      if (state_.source >= sources_.files.size()) {
        fail(ErrorKind::BadFile, "{}: the state of the interrupted run is damaged; remove the folder and start again",
             options_.folder.string());
      }
      report.resumed = true;
      log::info("continuing an interrupted run at source {} of {}", std::min(state_.source + 1, sources_.files.size()),
                sources_.files.size());
    }
    const auto suffix = part_suffix(plan_.part, plan_.parts);
    train_.emplace(options_.folder, "train" + suffix, plan_.tokens, plan_.shard_tokens, state_.train.shards);
    valid_.emplace(options_.folder, "valid" + suffix, plan_.tokens, plan_.shard_tokens, state_.valid.shards);
    const auto bytes_before = state_.train.bytes + state_.valid.bytes;

    Progress progress("prepare", total_bytes_, "MB", 1e6);
    progress_ = &progress;
    progress.update(starts_[state_.source] + static_cast<double>(state_.consumed));
    SourceReader reader(sources_.files, plan_, state_.source, state_.position);
    const int workers = std::max(options_.threads, 1);
    OrderedPipeline<Work> pipeline(workers, static_cast<std::size_t>(workers + workers / 2 + 2));
    pipeline.run([&](Work& work) { return reader.read(work); }, [&](Work& work) { encode(work); },
                 [&](Work& work) { write(work); });
    progress.finish(fmt::format("{} tokens", format_count(static_cast<double>(tokens_))));

    report.manifest = finish();
    report.text_bytes = static_cast<std::uint64_t>(state_.train.bytes + state_.valid.bytes - bytes_before);
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return report;
  }

 private:
  bool of_this_part(std::uint64_t hash) const {
    return !sources_.share_documents ||
           hash % static_cast<std::uint64_t>(plan_.parts) == static_cast<std::uint64_t>(plan_.part - 1);
  }

  void encode(Work& work) const {
    decode_block(work.block, plan_.field);
    work.pieces.clear();
    work.tokens.clear();
    for (const auto& piece : work.block.pieces) {
      const auto text = std::string_view(work.block.text).substr(piece.begin, piece.size);
      const auto hash = piece.first ? xxhash64(text) : 0;
      // Only the writer knows which part owns the later pieces of a long document.
      const bool maybe_ours = !piece.first || of_this_part(hash);
      const auto add = [&](std::string_view side, bool first, bool ends, Split split) {
        if (side.empty()) return;
        if (maybe_ours) {
          encoder_.encode(side, work.tokens);
          if (ends) work.tokens.push_back(encoder_.eos_id);
        }
        work.pieces.push_back({side.size(), first, ends, split, hash, work.tokens.size()});
      };
      if (!shared(piece)) {
        add(text, piece.first, piece.last, piece.held_out ? Split::Valid : Split::OfDocument);
        continue;
      }
      const auto cut = cut_for_validation(text, plan_.valid_fraction);
      add(text.substr(0, cut), piece.first, cut < text.size() || piece.last, Split::Train);
      add(text.substr(cut), piece.first && cut == 0, true, Split::Valid);
    }
  }

  // Whether both splits get text of this piece's document; the same for every piece of a document.
  bool shared(const Piece& piece) const {
    if (plan_.valid_fraction == 0 || piece.held_out) return false;
    const bool whole = piece.first && piece.last;
    return !whole || plan_.valid_fraction * static_cast<double>(piece.size) >= static_cast<double>(kLeastShareBytes);
  }

  void write(Work& work) {
    std::size_t begin = 0;
    for (const auto& piece : work.pieces) {
      if (piece.first) {
        taking_ = of_this_part(piece.hash);
        validating_ = static_cast<double>(piece.hash >> 11) * 0x1p-53 < plan_.valid_fraction;
      }
      if (taking_) {
        const bool validating = piece.split == Split::OfDocument ? validating_ : piece.split == Split::Valid;
        auto& split = validating ? state_.valid : state_.train;
        auto& writer = validating ? *valid_ : *train_;
        writer.append(std::span(work.tokens).subspan(begin, piece.tokens_end - begin));
        split.bytes += static_cast<std::int64_t>(piece.bytes);
        if (piece.ends) {
          writer.end_document();
          ++split.documents;
        }
        tokens_ += static_cast<std::int64_t>(piece.tokens_end - begin);
      }
      begin = piece.tokens_end;
    }
    for (auto& name : work.block.records) {
      if (std::ranges::find(plan_.holdout, name) != plan_.holdout.end()) state_.held_out.push_back(name);
      if (state_.first_records.size() < kListedRecords) state_.first_records.push_back(std::move(name));
    }
    report_faults(work);
    const double done = starts_[work.source] + static_cast<double>(work.block.consumed);
    progress_->update(done, fmt::format("{} tokens", format_count(static_cast<double>(tokens_))));
    if (!work.block.resumable || pipes_) return;
    const auto shards = train_->finished() + valid_->finished();
    if (shards == kept_shards_ && done - kept_done_ < static_cast<double>(options_.checkpoint_bytes)) return;
    state_.source = work.source;
    state_.position = work.block.end;
    state_.consumed = work.block.consumed;
    state_.train.shards = train_->checkpoint();
    state_.valid.shards = valid_->checkpoint();
    journal_.keep(state_);
    kept_shards_ = shards;
    kept_done_ = done;
  }

  void report_faults(const Work& work) {
    for (const auto& bad : work.block.bad_lines) {
      const auto words =
          fmt::format("{}:{}: {}", sources_.files[work.source].path, bad.number, describe(bad.fault, plan_.field));
      if (options_.strict) fail(ErrorKind::BadFile, "{}", words);
      if (state_.first_bad_lines.size() == kListedBadLines) break;
      state_.first_bad_lines.push_back(words);
      log::warn("{}, skipped", words);
    }
    state_.bad_lines += static_cast<std::int64_t>(work.block.bad_count);
  }

  static SplitManifest summary(PrepareState::Split& split, ShardWriter& writer) {
    SplitManifest manifest{.tokens = 0, .documents = split.documents, .bytes = split.bytes, .shards = writer.finish()};
    for (const auto& shard : manifest.shards) manifest.tokens += shard.tokens;
    return manifest;
  }

  // A part that reads only some of the files cannot check the names.
  void check_holdout() {
    if (plan_.parts > 1 && !sources_.share_documents) return;
    for (const auto& name : plan_.holdout) {
      if (std::ranges::find(state_.held_out, name) != state_.held_out.end()) continue;
      journal_.remove();
      fail(ErrorKind::Usage, "holdout {}: no FASTA record has that name; {}", in_quotes(name),
           state_.first_records.empty() ? "the sources have no FASTA records"
                                        : fmt::format("the first are {}", fmt::join(state_.first_records, ", ")));
    }
  }

  // One part of several may be empty.
  void check_splits(const DatasetManifest& manifest) {
    if (plan_.parts > 1) return;
    if (manifest.train.tokens + manifest.valid.tokens == 0) {
      journal_.remove();
      fail(ErrorKind::BadFile, "{}: no text in {} source(s), {} bad lines; check the format and the field \"{}\"",
           sources_.files.front().path, sources_.files.size(), manifest.bad_lines, plan_.field);
    }
    if (manifest.train.tokens == 0)
      log::warn("the training split is empty: all documents went to validation; add documents or lower valid_fraction");
    if (manifest.valid.tokens == 0 && plan_.valid_fraction > 0)
      log::warn("the validation split is empty: add documents, or raise valid_fraction to {:.2g}",
                std::min(0.5, 2 * static_cast<double>(kLeastShareBytes) / static_cast<double>(manifest.train.bytes)));
  }

  DatasetManifest finish() {
    check_holdout();
    DatasetManifest manifest{.plan = plan_,
                             .train = summary(state_.train, *train_),
                             .valid = summary(state_.valid, *valid_),
                             .bad_lines = state_.bad_lines,
                             .first_bad_lines = state_.first_bad_lines};
    check_splits(manifest);
    write_durably(manifest_path(options_.folder, plan_.part, plan_.parts), to_text(manifest));
    journal_.remove();
    return manifest;
  }

  const PrepareOptions& options_;
  const TextEncoder& encoder_;
  const DatasetPlan& plan_;
  PartSources sources_;
  PrepareJournal journal_;
  bool pipes_ = false;
  double total_bytes_ = 0;
  std::vector<double> starts_;  // bytes of all sources before each one
  PrepareState state_;
  std::optional<ShardWriter> train_;
  std::optional<ShardWriter> valid_;
  Progress* progress_ = nullptr;
  bool taking_ = false;      // whether the current document is kept
  bool validating_ = false;  // its split
  std::int64_t tokens_ = 0;
  std::size_t kept_shards_ = 0;
  double kept_done_ = 0;
};

}  // namespace

PrepareReport prepare(const PrepareOptions& options, const TextEncoder& encoder) {
  try {
    make_folder(options.folder);
    const auto plan = make_plan(options, encoder);
    const auto manifest_file = manifest_path(options.folder, plan.part, plan.parts);
    if (!fs::exists(manifest_file)) return Preparation(options, encoder, plan).run();
    PrepareReport report;
    report.manifest = read_manifest(manifest_file);
    report.already = true;
    auto why = difference(report.manifest.plan, plan);
    if (why.empty() && std::ranges::any_of(plan.sources, &SourceFile::pipe)) why = "its input was a pipe";
    if (!why.empty()) {
      fail(ErrorKind::Usage, "{}: holds a dataset already: {}; choose another folder or remove this one",
           options.folder.string(), why);
    }
    for (const auto* split : {&report.manifest.train, &report.manifest.valid}) {
      for (const auto& entry : split->shards) Shard(options.folder, entry, plan.tokens, Verify::Quick);
    }
    PrepareJournal(options.folder, plan).remove();
    return report;
  } catch (const fs::filesystem_error& error) {
    fail(ErrorKind::BadFile, "{}", error.what());
  }
}

}  // namespace essh
