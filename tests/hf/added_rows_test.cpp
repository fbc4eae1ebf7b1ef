// Exports of tables to which a run added rows.
#include <gtest/gtest.h>

#include <filesystem>
#include <utility>

#include "hf/exporter.h"
#include "hf/weight_loader.h"
#include "tests/hf/hf_fixtures.h"

namespace longshore {
namespace {

constexpr int64_t kRows = 5, kAdded = 2, kColumns = 3;

// AddedRows: a model of one bf16 table with fewer rows than the run's.
class AddedRows : public testing::Test {
 protected:
  AddedRows() {
    write_safetensors(source_ / "model.safetensors",
                      {{"table", TensorDType::kBF16, {kRows, kColumns}}});
  }

  static ModelSpec spec(bool frozen) {
    ParamSpec table = parameter("table", {kRows + kAdded, kColumns}, frozen);
    table.added_rows = kAdded;
    return spec_of({table});
  }
  ModelDirectory open_source(const std::string& config) const {
    write_text(source_ / "config.json", config);
    return ModelDirectory::open(source_.path());
  }
  // Exports values that count the elements, and returns the directory.
  ModelDirectory exported(const ModelDirectory& source, bool frozen) const {
    const std::string target = work_ / "out/hf";
    std::filesystem::remove_all(target);
    const ParameterReader read = [](const std::string&, int64_t begin, std::span<float> out) {
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<float>(begin + static_cast<int64_t>(i));
      }
    };
    export_model(source, spec(frozen), target, read, {.vocabulary = kRows + kAdded});
    return ModelDirectory::open(target);
  }

  TemporaryDirectory source_, work_;
};

// Goal: every row is written, whether the table was trained or only grew.
TEST_F(AddedRows, AreWrittenWithTheTable) {
  const ModelDirectory source = open_source(R"({"vocab_size": 5})");
  for (const bool frozen : {false, true}) {
    const ModelDirectory written = exported(source, frozen);
    const ModelDirectory::TensorRef table = written.find("table");
    ASSERT_EQ(table.tensor->shape, (std::vector<int64_t>{kRows + kAdded, kColumns}));
    EXPECT_EQ(table.tensor->dtype, TensorDType::kBF16);
    std::vector<float> values(static_cast<size_t>((kRows + kAdded) * kColumns));
    read_elements(table, 0, values);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<float>(i));
  }
}

// Goal: config.json has the new vocab_size wherever it has one, at the top and in the part that
// describes the text, and no other byte changes.
TEST_F(AddedRows, AreCountedInTheConfig) {
  const std::pair<const char*, const char*> configs[] = {
      {R"({"vocab_size": 5, "a" : 1})", R"({"vocab_size": 7, "a" : 1})"},
      {R"({"text_config": {"b":2,"vocab_size":5},"vocab_size":5})",
       R"({"text_config": {"b":2,"vocab_size":7},"vocab_size":7})"},
      {R"({"text_config": {"vocab_size":5}})", R"({"text_config": {"vocab_size":7}})"},
      {R"({"text_config": {}, "vocab_size":5})", R"({"text_config": {}, "vocab_size":7})"},
  };
  for (const auto& [before, after] : configs) {
    EXPECT_EQ(exported(open_source(before), false).config_text(), after);
  }
  const ModelDirectory nested = exported(open_source(R"({"text_config": {"b": 2}})"), false);
  EXPECT_EQ(nested.config().at("text_config").at("vocab_size"), kRows + kAdded);
  const ModelDirectory plain = exported(open_source(R"({"b": 2})"), false);
  EXPECT_EQ(plain.config().at("vocab_size"), kRows + kAdded);
}

}  // namespace
}  // namespace longshore
