#include "trainer/bench_run/bench_directory.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/errors.h"
#include "base/file.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

std::string temporary_directory() {
  std::string path = (fs::temp_directory_path() / "longshore-bench-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) throw IoError("making a directory", path, errno);
  return path;
}

std::string kept_directory(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(path, ignored) && !fs::is_empty(path, ignored)) {
    throw ConfigError("--keep " + path + ": exists and is not empty; give a new directory");
  }
  make_directories(path);
  return path;
}

void make_drive_folder(const std::string& drive) {
  std::error_code ignored;
  if (!fs::is_directory(drive, ignored)) {
    throw ConfigError("--nvme " + drive + ": no such directory; mount the drive, or make it first");
  }
  const std::string folder = bench_folder(drive);
  if (fs::exists(folder, ignored)) {
    throw ConfigError(folder + ": exists already, from a bench run that goes on or was killed; " +
                      "remove it if none goes on");
  }
  make_directories(folder);
}

}  // namespace

std::string bench_folder(const std::string& drive) {
  return (fs::path(drive) / "longshore-bench").string();
}

BenchDirectory::BenchDirectory(const std::string& keep, const std::vector<std::string>& drives)
    : path_(keep.empty() ? temporary_directory() : kept_directory(keep)), kept_(!keep.empty()) {
  try {
    for (const std::string& drive : drives) {
      make_drive_folder(drive);
      drives_.push_back(bench_folder(drive));
    }
  } catch (const Error&) {
    for (const std::string& folder : drives_) remove_tree(folder);
    if (!kept_) remove_tree(path_);
    throw;
  }
}

BenchDirectory::~BenchDirectory() {
  std::error_code ignored;
  for (const std::string& folder : drives_) fs::remove_all(folder, ignored);
  if (!kept_) fs::remove_all(path_, ignored);
}

Bytes BenchDirectory::drive_bytes() const {
  Bytes bytes = 0;
  for (const std::string& folder : drives_) {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) bytes += static_cast<Bytes>(entry.file_size());
    }
  }
  return bytes;
}

}  // namespace longshore
