// Models by hub id, from a cache in the layout of Hugging Face's tools.
#include "hf/hub_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/errors.h"
#include "hf/model_directory.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";

class HubCache : public testing::Test {
 protected:
  HubCache() : root_(testing::TempDir() + "longshore-hub-" + std::to_string(::getpid())) {
    fs::create_directories(model() + "/refs");
    fs::create_directories(model() + "/blobs");
    fs::create_directories(model() + "/snapshots/" + kCommit);
    std::ofstream(model() + "/refs/main") << kCommit << "\n";
    std::ofstream(model() + "/blobs/abc") << "{\"model_type\": \"llama\"}";
    fs::create_symlink("../../blobs/abc", model() + "/snapshots/" + kCommit + "/config.json");
    ::unsetenv("HF_HUB_CACHE");
    ::setenv("HF_HOME", root_.c_str(), 1);
  }
  ~HubCache() override {
    ::unsetenv("HF_HOME");
    fs::remove_all(root_);
  }
  std::string model() const { return root_ + "/hub/models--Owner--Name-1.5B"; }

  std::string root_;
};

// A model id finds the snapshot of its revision.
TEST_F(HubCache, FindsTheSnapshotThatARevisionNames) {
  const std::string snapshot = model() + "/snapshots/" + kCommit;
  EXPECT_EQ(find_in_hub_cache("Owner/Name-1.5B"), snapshot);
  EXPECT_EQ(find_in_hub_cache("Owner/Name-1.5B@main"), snapshot);
  EXPECT_EQ(find_in_hub_cache("Owner/Name-1.5B@" + kCommit), snapshot);
  EXPECT_EQ(find_in_hub_cache("Owner/Name-1.5B@v2"), std::nullopt);
  EXPECT_EQ(find_in_hub_cache("Owner/Other"), std::nullopt);
  std::ofstream(model() + "/refs/main") << "../../../elsewhere";
  EXPECT_THROW(find_in_hub_cache("Owner/Name-1.5B"), DataError);
}

// Hub ids are distinguished from paths.
TEST_F(HubCache, KnowsIdsFromPaths) {
  for (const char* id : {"a/b", "Qwen/Qwen3-0.6B", "a/b@main"}) EXPECT_TRUE(is_hub_id(id)) << id;
  for (const char* path : {"a", "/a/b", "a/b/c", "./a", "../a", "a/..", "a/b@", "a/b@../c", "~/a",
                           "a b/c", "-o/b", "a/-b", "a/b@-c", ""}) {
    EXPECT_FALSE(is_hub_id(path)) << path;
  }
}

// Goal: files that name a model, such as adapter_config.json, name it by what still finds it when
// they move: its hub id, or its absolute path.
TEST_F(HubCache, NamesAModelForFilesThatMove) {
  EXPECT_EQ(lasting_model_name(model() + "/snapshots/" + kCommit), "Owner/Name-1.5B");
  EXPECT_EQ(lasting_model_name(model() + "/snapshots/" + kCommit + "/"), "Owner/Name-1.5B");
  EXPECT_EQ(lasting_model_name("Owner/Name-1.5B"), "Owner/Name-1.5B");
  EXPECT_EQ(lasting_model_name("Owner/Name-1.5B@main"), "Owner/Name-1.5B");
  const fs::path here = fs::current_path();
  fs::create_directories(root_ + "/runs");
  fs::create_directories(root_ + "/models/base");
  fs::current_path(root_ + "/runs");
  EXPECT_EQ(lasting_model_name("../models/base/"), root_ + "/models/base");
  fs::current_path(here);
}

// ModelDirectory opens a hub id, and a missing one gives the command that fetches it.
TEST_F(HubCache, ModelDirectoryOpensAnIdAndSaysHowToFetchOne) {
  const auto opened = ModelDirectory::open("Owner/Name-1.5B", ModelDirectory::Weights::kOptional);
  EXPECT_EQ(opened.path(), model() + "/snapshots/" + kCommit);
  EXPECT_EQ(opened.config()["model_type"], "llama");
  try {
    ModelDirectory::open("Owner/Missing@v1");
    FAIL() << "nothing was said";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "Owner/Missing@v1: no such directory, and not in the Hugging Face cache " + root_ +
                  "/hub; fetch it with: hf download Owner/Missing --revision v1");
  }
}

}  // namespace
}  // namespace longshore
