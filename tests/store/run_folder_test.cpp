#include "essh/store/run_folder.h"

#include <gtest/gtest.h>

#include "essh/base/file.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {

using RunFolder = TempFolderTest;

TEST_F(RunFolder, TheMostRefinedModelStandsForARun) {
  const auto run = folder / "run";
  EXPECT_EQ(model_of_run(run), run) << "a path that is not there stays";
  for (const auto& model : {run / "pretrained", run / "refined", run}) {
    make_folder(model);
    write_durably(model / "config.json", "{}");
    EXPECT_EQ(model_of_run(run), model);
  }
}

}  // namespace
}  // namespace essh
