#include "nvme/store/state_files.h"

#include <unistd.h>

#include <cstdio>

#include "base/errors.h"
#include "base/file.h"
#include "nvme/commit/version_log.h"

namespace longshore {
namespace {

constexpr Bytes kPeekChunkBytes = 16 * kBlockBytes;

}  // namespace

std::string state_file_path(const std::string& directory, int32_t rank, StateFile file) {
  char name[32];
  std::snprintf(name, sizeof(name), "rank-%04d.%s", rank,
                file == StateFile::kState ? "state" : "inputs");
  return directory + "/" + name;
}

std::optional<Manifest> peek_state_file(const std::vector<std::string>& directories, int32_t rank) {
  LONGSHORE_CHECK(!directories.empty());
  const std::string path = state_file_path(directories.front(), rank);
  if (access(path.c_str(), F_OK) != 0) return std::nullopt;
  DriveOptions options;
  options.file.path = path;
  options.chunk_bytes = kPeekChunkBytes;
  options.depth = 1;
  options.engine = IoEngine::kThreads;
  OpenDrive drive(options);
  return VersionLog::peek(drive);
}

std::vector<std::unique_ptr<Drive>> open_state_files(const StateFileOptions& options,
                                                     const StripeMap& map,
                                                     std::span<std::byte> window) {
  LONGSHORE_CHECK(static_cast<int>(options.directories.size()) == map.drives());
  std::vector<std::unique_ptr<Drive>> drives;
  for (int i = 0; i < map.drives(); ++i) {
    const std::string& directory = options.directories[static_cast<size_t>(i)];
    make_directories(directory);
    DriveOptions drive;
    drive.file.path = state_file_path(directory, options.rank, options.file);
    drive.file.size_bytes = map.file_bytes(i);
    drive.chunk_bytes = map.geometry().chunk_bytes;
    drive.depth = options.depth;
    drive.engine = options.engine;
    drive.memory = {window};
    drives.push_back(std::make_unique<OpenDrive>(drive));
    if (options.file == StateFile::kInputs) unlink(drive.file.path.c_str());
    sync_directory(directory);
  }
  return drives;
}

}  // namespace longshore
