// Exports in the published form: what they say of the trained change.
#include "trainer/report/packing_report.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

// A parameter with one value that training and packing moved.
PackedParameter moved(const std::string& name, float base, float trained, float packed) {
  PackedParameter parameter{.name = name, .change = {}};
  parameter.change.add(trained, base, packed);
  return parameter;
}

ExportResult result_of(std::vector<PackedParameter> packed) {
  ExportResult result;
  result.packed = std::move(packed);
  return result;
}

// Goal: experts that the files hold one by one are one line, with the sums over all of them, and
// what did not change is told apart; an export without packed matrices says nothing.
TEST(PackingReport, HasALineForEachMatrixAndOneForAll) {
  const ExportResult result = result_of({moved("layers.0.experts.0.up.weight", 1.0F, 2.0F, 2.5F),
                                         moved("layers.0.q.weight", 3.0F, 3.0F, 3.0F),
                                         moved("layers.0.experts.11.up.weight", 1.0F, 2.0F, 1.5F)});
  const std::vector<std::string> lines = packing_lines(result);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0],
            "packed layers.0.experts.*.up.weight: error 25.00 % of the values, 100.0 % of the "
            "trained change survives");
  EXPECT_EQ(lines[1], "packed layers.0.q.weight: unchanged, keeps its published bytes");
  EXPECT_EQ(lines[2],
            "packed 2 trained matrices in the published form: error 17.15 % of the values, "
            "100.0 % of the trained change survives");
  const Json json = packing_json(result);
  EXPECT_EQ(json.at("surviving"), 1.0);
  EXPECT_EQ(json.at("matrices").at(0).at("name"), "layers.0.experts.*.up.weight");
  EXPECT_EQ(json.at("matrices").at(0).at("error"), 0.25);
  EXPECT_EQ(packing_warning(result, false, "run"), "");
  EXPECT_TRUE(packing_lines(result_of({})).empty());
  EXPECT_TRUE(packing_json(result_of({})).is_null());
}

// Goal: half of the change is enough, less is not, and neither is an error that is larger than the
// change, in whatever direction; each warning names what to export instead.
TEST(PackingReport, WarnsBelowHalfAndBeyondTheChange) {
  const auto warning = [](float packed, bool adapter) {
    return packing_warning(result_of({moved("w", 0.0F, 1.0F, packed)}), adapter, "runs/a");
  };
  EXPECT_EQ(warning(0.5F, false), "");
  EXPECT_EQ(warning(2.0F, false), "");
  const std::string lost = warning(0.25F, false), beyond = warning(2.5F, true);
  EXPECT_TRUE(lost.starts_with("only 25.0 % of what training changed survives")) << lost;
  EXPECT_TRUE(
      lost.ends_with("instead export bf16 (longshore export runs/a --format bf16 --to DIR)"))
      << lost;
  EXPECT_TRUE(beyond.starts_with(
      "packing in the published form changes values by 1.5 times what training changed"))
      << beyond;
  EXPECT_TRUE(
      beyond.ends_with("instead export the adapter alone (longshore export runs/a --to DIR) "
                       "or bf16 (longshore export runs/a --merged --format bf16 --to DIR)"))
      << beyond;
}

}  // namespace
}  // namespace longshore
