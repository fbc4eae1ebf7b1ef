// The key optimizer.groups: tables are read as values, and mistakes are named with positions.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "tests/config/run_file_fixture.h"

namespace longshore {
namespace {

class ParameterGroups : public RunFileFixture {};

// Parameter groups are read from their tables in order.
TEST_F(ParameterGroups, AreReadFromTablesInTheirOrder) {
  const RunConfig config =
      load(std::string(kNeeded) +
           "[optimizer]\nlr = 1e-3\n"
           "[[optimizer.groups]]\nparameters = [\"*.bias\", \"*norm*\"]\nweight_decay = 0\n"
           "[[optimizer.groups]]\nparameters = [\"head.*\"]\nlr = 5e-4\nweight_decay = 0.1\n");
  const std::vector<ParameterGroup> wanted = {{{"*.bias", "*norm*"}, std::nullopt, 0.0},
                                              {{"head.*"}, 5e-4, 0.1}};
  EXPECT_EQ(config.optimizer.groups, wanted);
}

// Each mistake in a parameter group gives its own error.
TEST_F(ParameterGroups, SayWhatIsWrong) {
  const std::pair<const char*, const char*> mistakes[] = {
      {"groups = 3", "expected [[optimizer.groups]] tables, found the integer 3"},
      {"groups = [3]", "optimizer.groups[1]: expected a table, found the integer 3"},
      {"groups = [{ lr = 1.0 }]", "add parameters = [\"*.bias\"]"},
      {"groups = [{ parameters = [] }]", "expected a list of globs"},
      {"groups = [{ parameters = [\"\"] }]", "expected a glob of names, found the string \"\""},
      {"groups = [{ parameters = [\"a\"] }]", "add an lr or a weight_decay"},
      {"groups = [{ parameters = [\"a\"], lr = -1.0 }]", "lr: must be at least 0"},
      {"groups = [{ parameters = [\"a\"], lr = \"1\" }]", "lr: expected a number"},
      {"groups = [{ parameters = [\"a\"], weigth_decay = 0.0 }]", "did you mean 'weight_decay'?"},
      {"groups = [{ parameters = [\"a\"], lr = 1e308 }]", "leaves fp32 with optimizer.lr"},
      {"lr = 1e30\ngroups = [{ parameters = [\"a\"], weight_decay = 1e9 }]",
       "its product with the weight decay, may be at most 1e38"},
      {"lr = 0.0\ngroups = [{ parameters = [\"a\"], lr = 1.0 }]", "are relative to optimizer.lr"},
  };
  for (const auto& [text, problem] : mistakes) {
    const std::string found = problems_beside_needed("[optimizer]\n" + std::string(text));
    EXPECT_NE(found.find(problem), std::string::npos) << text << ": " << found;
  }
}

}  // namespace
}  // namespace longshore
