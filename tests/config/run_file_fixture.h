// RunFileFixture: a temporary directory for run files, which is the current directory during a test
// so that error texts show bare file names. One test at a time, one thread.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "config/run_config.h"

namespace longshore {

// The text of a run file with the required keys only.
inline constexpr const char* kNeeded =
    "run.dir = \"runs/x\"\nmodel.path = \"m\"\ndata.train = [\"t\"]\ntrain.steps = 10\n";

class RunFileFixture : public ::testing::Test {
 protected:
  RunFileFixture() : before_(std::filesystem::current_path()) {
    std::string pattern = (std::filesystem::temp_directory_path() / "run_file_XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
    std::filesystem::current_path(directory_);
  }
  ~RunFileFixture() override {
    std::filesystem::current_path(before_);
    remove_tree(directory_);
  }

  static void write(const std::string& name, const std::string& text) {
    write_all(create_file(name), text);
  }
  static RunConfig load(const std::string& text, const std::vector<Override>& overrides = {},
                        const LoadOptions& options = {}) {
    write("run.toml", text);
    return load_run_config({"run.toml"}, overrides, options);
  }
  // Returns all problems, one per line; "accepted" without problems.
  static std::string problems(const std::string& text,
                              const std::vector<Override>& overrides = {}) {
    write("run.toml", text);
    return problems_of({"run.toml"}, overrides);
  }
  // Returns the problems of `text` beside needed.toml, which has the required keys.
  static std::string problems_beside_needed(const std::string& text) {
    write("needed.toml", kNeeded);
    write("run.toml", text);
    return problems_of({"needed.toml", "run.toml"}, {});
  }
  static std::string problems_of(const std::vector<std::string>& files,
                                 const std::vector<Override>& overrides) {
    try {
      load_run_config(files, overrides);
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kConfig);
      return error.what();
    }
    return "accepted";
  }

  std::filesystem::path before_;
  std::string directory_;
};

}  // namespace longshore
