// BenchDirectory: the directories of a bench run, which are removed with this object unless the
// user keeps the run's: the run's own, and a folder "longshore-bench" on each drive. A process that
// is killed leaves no others. Owned by the command; main thread.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"

namespace longshore {

class BenchDirectory {
 public:
  // `keep` is the run's directory, which must be missing or empty; empty: a temporary one. Each of
  // `drives` gets a folder, which must not exist. Throws ConfigError or IoError.
  BenchDirectory(const std::string& keep, const std::vector<std::string>& drives);
  BenchDirectory(const BenchDirectory&) = delete;
  BenchDirectory& operator=(const BenchDirectory&) = delete;
  ~BenchDirectory();

  const std::string& path() const { return path_; }
  // Returns "<path>/<name>".
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // The folders on drives, in the order of the drives.
  const std::vector<std::string>& drives() const { return drives_; }
  // Returns the bytes of all files on the drives.
  Bytes drive_bytes() const;

 private:
  std::string path_;
  bool kept_ = false;
  std::vector<std::string> drives_;  // those that this object made
};

// Returns the folder of a bench run on a drive.
std::string bench_folder(const std::string& drive);

}  // namespace longshore
