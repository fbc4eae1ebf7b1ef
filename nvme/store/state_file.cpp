#include "nvme/store/state_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/errors.h"
#include "base/file.h"
#include "base/texts.h"
#include "nvme/drive/block_file.h"

namespace longshore {
namespace {

constexpr Bytes kPeekChunkBytes = 16 * kBlockBytes;

}  // namespace

std::string state_file_path(const std::string& directory, int32_t rank, StateFile file) {
  const std::string name =
      formatted("rank-%04d.%s", rank, file == StateFile::kState ? "state" : "inputs");
  return directory + "/" + name;
}

StateFileContent read_state_file(const std::string& directory, int32_t rank) {
  StateFileContent content;
  const std::string path = state_file_path(directory, rank);
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return content;
    throw IoError("stat", path, errno);
  }
  DriveOptions options;
  options.file.path = path;
  options.chunk_bytes = kPeekChunkBytes;
  options.depth = 1;
  options.engine = IoEngine::kThreads;
  OpenDrive drive(options);
  content.bytes = drive.size_bytes();
  // A run creates its file in full size, so a shorter file is not one that a run left.
  content.unknown = content.bytes > 0 && content.bytes < kManifestAreaBytes;
  const BlockBuffer block(kBlockBytes);
  for (int copy = 0; copy < kManifestCopies && content.bytes >= kManifestAreaBytes; ++copy) {
    drive.read(copy * kManifestStride, block.bytes());
    const std::optional<Manifest> manifest = decode(block.bytes());
    const bool newer = manifest && (!content.manifest ||
                                    manifest->point.sequence > content.manifest->point.sequence);
    if (newer) content.manifest = manifest;
    if (manifest || is_empty(block.bytes())) continue;
    content.unknown = true;
    if (!content.claimed) content.claimed = claimed_run(block.bytes());
  }
  // One valid copy is enough.
  if (content.manifest) content.unknown = false;
  return content;
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
