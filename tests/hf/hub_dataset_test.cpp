// Data sets by hub id, from a cache in the layout of Hugging Face's tools.
#include "hf/hub_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/errors.h"
#include "tests/hf/hf_fixtures.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

const std::string kCommit = "89abcdef0123456789abcdef0123456789abcdef";
const DatasetUse kTrain = DatasetUse::kTrain, kEvaluate = DatasetUse::kEvaluate;

class HubDatasets : public testing::Test {
 protected:
  HubDatasets() : root_(testing::TempDir() + "longshore-sets-" + std::to_string(::getpid())) {
    fs::create_directories(repository() + "/refs");
    fs::create_directories(repository() + "/blobs");
    fs::create_directories(snapshot());
    std::ofstream(repository() + "/refs/main") << kCommit;
    ::unsetenv("HF_HUB_CACHE");
    ::setenv("HF_HOME", root_.c_str(), 1);
  }
  ~HubDatasets() override {
    ::unsetenv("HF_HOME");
    fs::remove_all(root_);
  }
  std::string repository() const { return root_ + "/hub/datasets--Owner--Set"; }
  std::string snapshot() const { return repository() + "/snapshots/" + kCommit; }

  // Adds a file of the snapshot as a link to its blob.
  void add(const std::string& name, const std::string& text = "{}\n") {
    const std::string blob = repository() + "/blobs/" + std::to_string(blobs_++);
    std::ofstream(blob) << text;
    fs::create_directories(fs::path(snapshot() + "/" + name).parent_path());
    fs::create_symlink(blob, snapshot() + "/" + name);
  }
  void add_card(const std::string& configs) {
    add("README.md", "---\nlicense: mit\nconfigs:\n" + configs + "tags:\n- x\n---\n# Set\n");
  }
  // Returns the file names without the snapshot's path.
  std::vector<std::string> files(const std::string& named, DatasetUse use = kTrain) const {
    std::vector<std::string> names;
    for (const std::string& path : hub_dataset_files(named, use)) {
      EXPECT_TRUE(path.starts_with(snapshot() + "/")) << path;
      names.push_back(path.substr(snapshot().size() + 1));
    }
    return names;
  }
  static std::string refusal(const std::string& named, DatasetUse use = kTrain) {
    try {
      hub_dataset_files(named, use);
    } catch (const DataError& error) {
      return error.what();
    }
    return "nothing was said";
  }

  std::string root_;
  int blobs_ = 0;
};

using Names = std::vector<std::string>;

// The shards of a split come in order.
TEST_F(HubDatasets, ShardsOfASplitComeInTheirOrder) {
  for (const char* name : {"data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet",
                           "data/train-00000-of-00002.parquet", "dataset_infos.json"}) {
    add(name);
  }
  EXPECT_EQ(files("Owner/Set"),
            (Names{"data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"}));
  EXPECT_EQ(files("Owner/Set@main:test"), Names{"data/test-00000-of-00001.parquet"});
  EXPECT_NE(refusal("Owner/Set:validation").find("has the splits test, train"), std::string::npos);
  EXPECT_NE(refusal("Owner/Set", kEvaluate).find("name one: Owner/Set:SPLIT"), std::string::npos);
}

// Goal: a shard that was not fetched, or was removed, is named with the command to fetch it.
TEST_F(HubDatasets, WhatIsMissingIsNamedWithTheCommandThatFetchesIt) {
  add("data/train-00000-of-00003.parquet");
  EXPECT_NE(refusal("Owner/Set")
                .find("has 1 of the 3 files of data/train; fetch what is missing "
                      "with: hf download --repo-type dataset Owner/Set"),
            std::string::npos)
      << refusal("Owner/Set");
  fs::remove(repository() + "/blobs/0");
  EXPECT_NE(refusal("Owner/Set").find("has no bytes of data/train-00000-of-00003.parquet"),
            std::string::npos);
  EXPECT_NE(refusal("Owner/Other@v2")
                .find("hf download --repo-type dataset Owner/Other "
                      "--revision v2"),
            std::string::npos);
}

// Goal: if the client has saved the list of the commit's files, as huggingface_hub 2.4 does, an
// incomplete set is never taken as complete.
TEST_F(HubDatasets, AFileThatTheCacheListsAndHasNotIsMissed) {
  const std::string list = repository() + "/trees/" + kCommit + ".json";
  fs::create_directories(repository() + "/trees");
  const auto write_list = [&](const std::string& files) {
    std::ofstream(list) << "{\"format_version\": 1, \"files\": {" << files << "}}";
  };
  const std::string rows = "\"a/x.jsonl\": {\"size\": 3}, \"a/y.jsonl\": {\"size\": 3}";
  write_list(rows + ", \"README.md\": {\"size\": 3}");
  add("a/x.jsonl");
  EXPECT_NE(refusal("Owner/Set").find("lacks its README.md"), std::string::npos);
  add_card(
      "- config_name: one\n  default: true\n  data_files: a/*.jsonl\n- config_name: two\n"
      "  data_files: b/*.jsonl\n");
  EXPECT_NE(refusal("Owner/Set")
                .find("has 1 of the 2 files of its split train; fetch what is "
                      "missing with: hf download --repo-type dataset Owner/Set"),
            std::string::npos)
      << refusal("Owner/Set");
  EXPECT_NE(refusal("Owner/Set:two").find("name its split too: Owner/Set:two:SPLIT"),
            std::string::npos);
  add("a/y.jsonl");
  EXPECT_EQ(files("Owner/Set"), (Names{"a/x.jsonl", "a/y.jsonl"}));
}

// A list of files in an unknown form is ignored, and the files on disk are used.
TEST_F(HubDatasets, AListOfAnotherKindIsPassedOver) {
  add("train.jsonl");
  const std::string list = repository() + "/trees/" + kCommit + ".json";
  fs::create_directories(repository() + "/trees");
  for (const std::string text :
       {"", "[]", "{\"format_version\": 2, \"files\": {\"train2.jsonl\": {}}}",
        "{\"format_version\": 1, \"files\": {\"../../train.jsonl\": {}}}",
        "{\"format_version\": 1, \"files\": {\"/etc/train.jsonl\": {}}}",
        "{\"format_version\": 1, \"files\": 3}", "{\"format_version\": 1}"}) {
    std::ofstream(list) << text;
    EXPECT_EQ(files("Owner/Set"), Names{"train.jsonl"}) << text;
  }
}

// Files are assigned to splits by the words in their names.
TEST_F(HubDatasets, FilesAreTakenByTheWordsInTheirNames) {
  add("my_train_rows.jsonl");
  add("my_dev_rows.jsonl.gz");
  EXPECT_EQ(files("Owner/Set"), Names{"my_train_rows.jsonl"});
  EXPECT_EQ(files("Owner/Set:validation"), Names{"my_dev_rows.jsonl.gz"});
}

// A single file without a split is used for training and evaluation.
TEST_F(HubDatasets, OneFileWithoutASplitIsAll) {
  add("alpaca_data.json", "[]");
  EXPECT_EQ(files("Owner/Set"), Names{"alpaca_data.json"});
  EXPECT_EQ(files("Owner/Set", kEvaluate), Names{"alpaca_data.json"});
}

// The data set's card assigns files to configs and splits.
TEST_F(HubDatasets, TheCardSaysWhichFilesBelongToWhichConfig) {
  add_card(
      "- config_name: main\n  default: true\n  data_files:\n  - split: train\n    path: "
      "main/train-*\n  - split: test\n    path:\n    - main/test-*\n- config_name: socratic\n"
      "  data_files:\n  - split: train\n    path: [\"socratic/*.parquet\"]\n");
  for (const char* name : {"main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet",
                           "socratic/rows.parquet"}) {
    add(name);
  }
  EXPECT_EQ(files("Owner/Set"), Names{"main/train-00000-of-00001.parquet"});
  EXPECT_EQ(files("Owner/Set:test"), Names{"main/test-00000-of-00001.parquet"});
  EXPECT_EQ(files("Owner/Set:socratic:train"), Names{"socratic/rows.parquet"});
  EXPECT_NE(refusal("Owner/Set:other:train").find("has the configs main, socratic"),
            std::string::npos);
}

// Files of other formats are refused with the call that converts them.
TEST_F(HubDatasets, WhatHoldsNoRowsIsRefusedWithTheWayToConvertIt) {
  add("train.csv");
  EXPECT_NE(refusal("Owner/Set").find("train.csv; write it so once: datasets.load_dataset"),
            std::string::npos)
      << refusal("Owner/Set");
}

std::string card_with(const std::string& configs) {
  return "---\nconfigs:\n" + configs + "\n---\n# Title\n";
}

// Goal: a malformed card gives an error with the place and the way out, however deeply it nests.
TEST(DatasetCard, WhatIsNotReadIsRefused) {
  std::string nested;
  for (int i = 0; i < 100; ++i) nested += std::string(static_cast<size_t>(2 * i + 2), ' ') + "a:\n";
  for (const std::string& bad :
       {std::string("- config_name: *b"), "- data_files: " + std::string(100'000, '['),
        std::string("- data_files: [,]"),
        "- data_files: " + std::string(50'000, '[') + std::string(50'000, ']'), nested,
        std::string("- config_name: a\n   odd: b"), std::string("- data_files:\n  - split: a"),
        std::string("- config_name: no"), std::string("- config_name: a\n  config_name: b"),
        std::string("- words"), std::string("- [a]"), std::string("  a: 1"),
        std::string("\t- a: 1"), std::string("- config_name: a\n  default: maybe"),
        std::string("- data_files: [[a]]"), std::string("- config_name: \xFF")}) {
    EXPECT_THROW(dataset_configs(card_with(bad), "card"), DataError) << bad.substr(0, 60);
  }
  const std::string error = error_of<DataError>(
      [&] { dataset_configs(card_with("- config_name: a\n  config_name: b"), "card"); });
  EXPECT_EQ(error,
            "card: line 4, column 3: key 'config_name' occurs twice; name the data set's files in "
            "place of its id");
}

// The head is read as YAML: quotes, brackets, anchors, comments, and numbers as names.
TEST(DatasetCard, IsReadAsYaml) {
  const std::vector<DatasetConfig> configs = dataset_configs(
      "---\r\nlicense: mit # free\r\nsize: .nan\r\nconfigs: # two\r\n"
      "- {config_name: \"d\\u00e9\", data_files: &files {train: [a/*.jsonl, 'b c/**']}}\r\n"
      "- config_name: 2024\r\n  data_dir: d\r\n  data_files: *files\r\n  default: yes\r\n"
      "- config_name: null\r\n  data_files: >-\r\n    x-*\r\n---\r\n- not: [yaml\r\n",
      "card");
  ASSERT_EQ(configs.size(), 3u);
  EXPECT_EQ(configs[0].name, "d\u00e9");
  ASSERT_EQ(configs[0].splits.size(), 1u);
  EXPECT_EQ(configs[0].splits[0].name, "train");
  EXPECT_EQ(configs[0].splits[0].paths, (Names{"a/*.jsonl", "b c/**"}));
  EXPECT_FALSE(configs[0].is_default);
  EXPECT_EQ(configs[1].name, "2024");
  EXPECT_EQ(configs[1].folder, "d");
  EXPECT_TRUE(configs[1].is_default);
  EXPECT_EQ(configs[1].splits.at(0).paths, configs[0].splits[0].paths);
  EXPECT_EQ(configs[2].name, "default");
  EXPECT_EQ(configs[2].splits.at(0).paths, Names{"x-*"});
}

// A card without configs in a closed head has none, as for huggingface_hub.
TEST(DatasetCard, MayHaveNoConfigs) {
  for (const char* card :
       {"", "no head", "---\ntags: [a]\n---\n", "---\n---\n", "---\nconfigs:\n---\n",
        "---\nconfigs: [{config_name: a}]\n", "----\nconfigs: [{}]\n---\n", "---\n- a\n---",
        "# Title\n---\nconfigs: [{}]\n---\n", "---\nnot_configs: [{}]\n---\n"}) {
    EXPECT_TRUE(dataset_configs(card, "card").empty()) << card;
  }
  EXPECT_EQ(dataset_configs(card_with("- config_name: 'a b' "), "card").at(0).name, "a b");
  EXPECT_EQ(dataset_configs("\n---\nconfigs: [{config_name: a}]\n---", "card").size(), 1u);
}

// Names of hub data sets are distinguished from paths.
TEST(HubDatasetNames, AreToldFromPaths) {
  for (const char* name : {"a/b", "a/b:train", "a/b@v1:c:test"}) {
    EXPECT_TRUE(names_hub_dataset(name)) << name;
  }
  for (const char* name : {"train.jsonl", "data/train.jsonl", "data/x.parquet", "/a/b", "a/b/c"}) {
    EXPECT_FALSE(names_hub_dataset(name)) << name;
  }
}

}  // namespace
}  // namespace longshore
