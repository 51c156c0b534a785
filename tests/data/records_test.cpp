#include "essh/data/records.h"

#include <gtest/gtest.h>

#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/json.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

class Records : public ::testing::Test {
 protected:
  Records() { fs::create_directories(folder_); }
  ~Records() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) const {
    write_durably(folder_ / name, text);
    return folder_ / name;
  }
  std::string problem(const fs::path& path, const RecordOptions& options = {}) const {
    try {
      read_records(path, options);
    } catch (const Error& error) {
      return std::string(error.what()).substr(folder_.string().size() + 1);
    }
    return "";
  }

  const fs::path folder_ = fs::path(::testing::TempDir()) /
                           ("records_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
};

TEST_F(Records, JsonInItsThreeForms) {
  const std::vector<Json> two = {{{"a", 1}}, {{"a", "\n"}}};
  EXPECT_EQ(read_records(write("a.jsonl", "{\"a\": 1}\r\n\n{\"a\": \"\\n\"}")), two);
  EXPECT_EQ(read_records(write("b.json", "[{\"a\": 1},\n {\"a\": \"\\n\"}]\n")), two);
  EXPECT_EQ(read_records(write("c.json", "{\n \"a\": 1\n}\n")), std::vector<Json>{two[0]});
  EXPECT_TRUE(read_records(write("d.json", " \n")).empty());
  EXPECT_EQ(problem(write("e.jsonl", "{\"a\": 1}\n[1]\n")), "e.jsonl: line 2: expected a JSON object");
  EXPECT_EQ(problem(write("f.jsonl", "{\"a\": \"\xff\"}\n")), "f.jsonl: not UTF-8 at byte 7");
}

TEST_F(Records, TablesWithQuotes) {
  const std::vector<Json> rows = {{{"a", "1, \"x\"\n2"}, {"b", ""}}, {{"a", ""}, {"b", "z\"z"}}};
  EXPECT_EQ(read_records(write("a.csv", "a,b\r\n\"1, \"\"x\"\"\n2\",\r\n,z\"z\r\n")), rows);
  EXPECT_EQ(read_records(write("a.tsv", "a\tb\n\"1, \"\"x\"\"\n2\"\t\n\tz\"z")), rows);
  EXPECT_EQ(problem(write("b.csv", "a,b\n1\n")), "b.csv: row 2 has 1 cells, the first row names 2 columns");
  EXPECT_EQ(problem(write("c.csv", "a,b\n\"1,2\n")), "c.csv: row 2 has a quote that is not closed");
}

TEST_F(Records, GroupsOfLinesAndFolders) {
  const auto path = write("a.txt", "\nx\ny\n\nz\n\n");
  const std::vector<Json> records = {{{"p", "x"}, {"q", "y"}}, {{"p", "z"}, {"q", ""}}};
  EXPECT_EQ(read_records(path, {.format = "lines", .fields = {"", "p", "q"}}), records);
  EXPECT_EQ(problem(path, {.format = "lines", .fields = {"p", "q", "r", "s"}}),
            "a.txt: 6 lines are not a multiple of the 4 of a record");
  EXPECT_EQ(problem(path, {.format = "xml"}),
            "a.txt: format must be one of auto, json, csv, tsv, lines, parquet, got \"xml\"");
  fs::create_directories(folder_ / "many");
  write("many/2.txt", "{\"n\": 2}");
  write("many/1.txt", "{\"n\": 1}");
  EXPECT_EQ(read_records(folder_ / "many"), (std::vector<Json>{{{"n", 1}}, {{"n", 2}}}));
}

}  // namespace
}  // namespace essh
