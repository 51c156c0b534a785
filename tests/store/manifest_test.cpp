#include "essh/store/manifest.h"

#include <cstdlib>

#include "essh/base/sha256.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

struct ManifestTest : TempFolderTest {
  void SetUp() override {
    TempFolderTest::SetUp();
    write_durably(folder / "b.json", "{}");
    write_durably(folder / "a name with spaces", "abc");
    fs::create_directory(folder / "sub");
    write_durably(folder / "sub" / "c", "");
    write_manifest(folder);
  }
  std::string manifest() { return read_text(folder / kManifestName, 10000); }
  std::string refusal(const std::string& text) {
    write_durably(folder / kManifestName, text);
    const auto message = message_of([&] { check_manifest(folder); });
    const auto place = (folder / kManifestName).string() + ": ";
    return message.starts_with(place) ? message.substr(place.size()) : message;
  }
};

TEST_F(ManifestTest, IsWhatSha256sumWritesAndReads) {
  EXPECT_EQ(manifest(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a name with spaces\n"
            "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a  b.json\n"
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  sub/c\n");
  EXPECT_TRUE(check_manifest(folder).empty());
  if (std::system("command -v sha256sum > /dev/null") == 0) {
    EXPECT_EQ(
        std::system(fmt::format("cd '{}' && sha256sum -c --strict --quiet {}", folder.string(), kManifestName).c_str()),
        0);
  }
}

TEST_F(ManifestTest, ListsEveryProblem) {
  write_durably(folder / "b.json", "{ }");
  fs::remove(folder / "sub" / "c");
  const std::vector<std::string> required = {"b.json", "model.safetensors"};
  EXPECT_EQ(check_manifest(folder, required).list(),
            (std::vector<std::string>{
                "b.json has SHA-256 " + sha256_of_text("{ }") + ", SHA256SUMS says " + sha256_of_text("{}"),
                "sub/c is missing", "model.safetensors is not listed in SHA256SUMS"}));
}

TEST_F(ManifestTest, MalformedManifests) {
  const std::string digest = sha256_of_text("abc");
  EXPECT_EQ(refusal(""), "is empty");
  EXPECT_EQ(refusal(digest + "  b.json"), "the last line is cut off");
  const std::string odd = "line 2 is not a SHA-256 sum and a file of this folder";
  const std::string first = sha256_of_text("{}") + " *b.json\n";
  EXPECT_EQ(refusal(first), "no error");
  EXPECT_EQ(refusal(first + "\n"), odd);
  EXPECT_EQ(refusal(first + digest + "\n"), odd);
  EXPECT_EQ(refusal(first + digest + "  \n"), odd);
  EXPECT_EQ(refusal(first + digest + " b.json\n"), odd);
  EXPECT_EQ(refusal(first + digest.substr(1) + "g  b.json\n"), odd);
  EXPECT_EQ(refusal(first + digest + "  ../b.json\n"), odd);
  EXPECT_EQ(refusal(first + digest + "  sub/../b.json\n"), odd);
  EXPECT_EQ(refusal(first + digest + "  /etc/passwd\n"), odd);
  EXPECT_EQ(refusal(first + first), "a file is listed twice");
  fs::remove(folder / kManifestName);
  EXPECT_EQ(message_of([&] { check_manifest(folder); }),
            folder.string() + ": SHA256SUMS is missing; the folder is incomplete or was not written by essh");
}

TEST_F(ManifestTest, OddFilesCannotBeListed) {
  write_durably(folder / "a\nb", "");
  EXPECT_NE(message_of([&] { write_manifest(folder); }).find("\"a?b\" cannot be listed"), std::string::npos);
  EXPECT_NE(message_of([&] { write_manifest(folder / "none"); }).find("cannot list the folder"), std::string::npos);
}

}  // namespace
}  // namespace essh
