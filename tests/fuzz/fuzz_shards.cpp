#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "essh/base/file.h"
#include "essh/base/log.h"
#include "essh/data/dataset.h"
#include "essh/data/dataset_manifest.h"
#include "essh/data/prepare.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/scratch_folder.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

void write_file(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// A dataset of two shards with damage in its manifest or in a shard: refused, or every token is in the vocabulary.
class ShardFuzzer {
 public:
  explicit ShardFuzzer(std::uint64_t seed)
      : folder_(fuzz::scratch_folder() / fmt::format("essh-fuzz-shards-{}-{}", ::getpid(), seed)),
        mutator_(seed,
                 {"{", "}", "[", "]", ",", "\"", "\"tokens\":", "\"file\":", "../", "/etc/passwd", "train-00001.bin",
                  "-1", "1e300", "281474976710656", "9223372036854775807", "null", std::string(1, '\0'), "ESSHTOKS"}) {
    log::set_level(log::Level::Quiet);
    fs::remove_all(folder_);
    make_folder(folder_);
    write_file(folder_ / "text",
               "some text that is long enough for two shards of tokens\n<|endoftext|>\nand a second document\n");
    PrepareOptions options;
    options.inputs = {(folder_ / "text").string()};
    options.folder = folder_ / "data";
    options.shard_tokens = 40;
    options.valid_fraction = 0;
    prepare(options, {.format = {.tokenizer_hash = "bytes", .vocab_size = 257},
                      .eos_id = 256,
                      .encode = [](std::string_view text, std::vector<std::int32_t>& out) {
                        out.insert(out.end(), text.begin(), text.end());
                      }});
    // Without the names and times of this process: the same seed makes the same inputs.
    auto manifest = read_manifest(folder_ / "data" / "dataset.json");
    manifest.plan.sources = {{.path = "text", .format = "text", .size = 96, .mtime = 1}};
    write_file(folder_ / "data" / "dataset.json", to_text(manifest));
    for (const char* name : {"dataset.json", "train-00000.bin", "train-00001.bin"}) {
      files_.push_back({folder_ / "data" / name, read_text(folder_ / "data" / name, 1 << 20)});
    }
  }
  ShardFuzzer(ShardFuzzer&&) = default;
  ~ShardFuzzer() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }

  void operator()() {
    const auto& [path, good] = mutator_.one_in(2) ? files_[0] : mutator_.pick(files_);
    auto image = good;
    if (path == files_[0].first)
      mutator_.mutate_json(image, good);
    else
      mutator_.mutate(image, mutator_.pick(files_).second);
    write_file(path, image);
    const struct Restore {
      const fs::path& file;
      const std::string& bytes;
      ~Restore() { write_file(file, bytes); }
    } restore{path, good};
    const Dataset dataset(folder_ / "data", mutator_.one_in(2) ? Verify::Full : Verify::Quick);
    for (const auto* stream : {&dataset.train(), &dataset.valid()}) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(stream->tokens()));
      stream->read(0, tokens);
      for (const auto token : tokens) {
        if (token < 0 || token >= dataset.vocab_size()) throw std::logic_error("a token outside the vocabulary");
      }
    }
  }

 private:
  fs::path folder_;
  std::vector<std::pair<fs::path, std::string>> files_;
  fuzz::Mutator mutator_;
};

const fuzz::Registered<ShardFuzzer> kShardFuzzer("shards");

}  // namespace
}  // namespace essh
