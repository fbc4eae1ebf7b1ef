// ScratchFiles: files for one test in a directory that is deleted with it. The test owns it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "base/file.h"

namespace longshore {

class ScratchFiles {
 public:
  ScratchFiles() {
    std::string pattern = (std::filesystem::temp_directory_path() / "longshore-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  ScratchFiles(const ScratchFiles&) = delete;
  ScratchFiles& operator=(const ScratchFiles&) = delete;
  ~ScratchFiles() { remove_tree(directory_); }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  // Writes the file and returns its path.
  std::string write(const std::string& name, std::string_view content) const {
    write_all(create_file(path(name)), content);
    return path(name);
  }

 private:
  std::string directory_;
};

}  // namespace longshore
