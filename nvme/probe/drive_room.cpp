#include "nvme/probe/drive_room.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#include <filesystem>

namespace longshore {
namespace {

namespace fs = std::filesystem;

fs::path nearest_directory(const std::string& directory) {
  std::error_code ignored;
  fs::path path = fs::absolute(directory, ignored).lexically_normal();
  while (path.has_relative_path() && !fs::exists(path, ignored)) path = path.parent_path();
  return path;
}

Bytes held_by_state_files(const std::string& directory) {
  Bytes bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    struct stat status{};
    if (entry.path().extension() != ".state") continue;
    if (::lstat(entry.path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    bytes += status.st_blocks * 512;
  }
  return bytes;
}

}  // namespace

std::optional<DriveRoom> read_drive_room(const std::string& directory) {
  const fs::path path = nearest_directory(directory);
  struct stat status{};
  struct statvfs space{};
  struct statfs kind{};
  if (::stat(path.c_str(), &status) != 0 || ::statvfs(path.c_str(), &space) != 0 ||
      ::statfs(path.c_str(), &kind) != 0) {
    return std::nullopt;
  }
  std::error_code ignored;
  const bool there = fs::is_directory(directory, ignored);
  return DriveRoom{.file_system = status.st_dev,
                   .directory = there ? status.st_ino : 0,
                   .free = static_cast<Bytes>(space.f_bavail) * static_cast<Bytes>(space.f_frsize),
                   .held = held_by_state_files(directory),
                   .in_memory = kind.f_type == TMPFS_MAGIC || kind.f_type == RAMFS_MAGIC};
}

}  // namespace longshore
