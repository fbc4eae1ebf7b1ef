// Where prepared data go when the run file names no directory.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "tests/trainer/temporary_directory.h"
#include "trainer/data/run_prepare.h"

namespace longshore {
namespace {

// Sets XDG_CACHE_HOME while it lives.
class UserCache {
 public:
  explicit UserCache(const std::string& path) {
    if (const char* before = std::getenv("XDG_CACHE_HOME")) before_ = before;
    ::setenv("XDG_CACHE_HOME", path.c_str(), 1);
  }
  UserCache(const UserCache&) = delete;
  UserCache& operator=(const UserCache&) = delete;
  ~UserCache() {
    if (before_) {
      ::setenv("XDG_CACHE_HOME", before_->c_str(), 1);
    } else {
      ::unsetenv("XDG_CACHE_HOME");
    }
  }

 private:
  std::optional<std::string> before_;
};

// Goal: prepared data go to the user's cache, which need not be there yet; a user whose cache
// cannot be made, as in a container with a read-only root, trains all the same.
TEST(CacheDirectory, IsInTheRunWhereTheUserHasNoneThatMayBeWritten) {
  const TemporaryDirectory directory;
  RunConfig config;
  config.run.dir = directory.file("run");
  {
    const UserCache cache(directory.file("new/cache"));
    EXPECT_EQ(cache_directory(config), directory.file("new/cache/longshore"));
    EXPECT_FALSE(std::filesystem::exists(directory.file("new")));
  }
  // Nothing can be made below a file, whoever asks.
  std::ofstream(directory.file("file")) << "x";
  const UserCache cache(directory.file("file"));
  EXPECT_EQ(cache_directory(config), directory.file("run/cache"));
  config.data.cache = "named";
  EXPECT_EQ(cache_directory(config), "named");
}

}  // namespace
}  // namespace longshore
