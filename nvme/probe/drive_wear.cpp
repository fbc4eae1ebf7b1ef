#include "nvme/probe/drive_wear.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/nvme_ioctl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/file.h"

namespace longshore {
namespace {

// Offsets in the log, and the unit of the drive's counter: 1000 sectors of 512 bytes.
constexpr size_t kPercentageUsedAt = 5;
constexpr size_t kDataUnitsWrittenAt = 48;
constexpr Bytes kDataUnitBytes = 512'000;
constexpr uint8_t kGetLogPage = 0x02;
constexpr uint32_t kSmartLogPage = 0x02;
constexpr uint32_t kAllNamespaces = 0xffffffff;

// Returns "/dev/nvme0n1" for a directory on it or its partitions; empty for anything else.
std::string nvme_device_of(const std::string& directory) {
  std::error_code failed;
  std::filesystem::path existing = std::filesystem::absolute(directory, failed);
  while (!failed && !std::filesystem::exists(existing, failed) && existing.has_relative_path()) {
    existing = existing.parent_path();
  }
  struct stat status{};
  if (stat(existing.c_str(), &status) != 0) return {};
  const std::string link = "/sys/dev/block/" + std::to_string(major(status.st_dev)) + ":" +
                           std::to_string(minor(status.st_dev));
  const std::filesystem::path block = std::filesystem::canonical(link, failed);
  if (failed) return {};
  for (std::filesystem::path at = block; at.has_relative_path(); at = at.parent_path()) {
    const std::string name = at.filename().string();
    const bool partition = std::filesystem::exists(at / "partition", failed);
    if (name.starts_with("nvme") && !partition && std::filesystem::exists(at / "queue", failed)) {
      return "/dev/" + name;
    }
  }
  return {};
}

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

DriveWear parse_smart_log(std::span<const std::byte, kSmartLogBytes> log) {
  uint64_t units = 0;
  std::memcpy(&units, log.data() + kDataUnitsWrittenAt, sizeof(units));
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<Bytes>::max() / kDataUnitBytes);
  return {static_cast<Bytes>(std::min(units, kMost)) * kDataUnitBytes,
          std::to_integer<int>(log[kPercentageUsedAt])};
}

std::optional<DriveWear> read_drive_wear(const std::string& directory) {
  const std::string device = nvme_device_of(directory);
  if (device.empty()) return std::nullopt;
  const UniqueFd fd(open(device.c_str(), O_RDONLY | O_CLOEXEC), device);
  if (fd.get() < 0) return std::nullopt;
  alignas(8) std::array<std::byte, kSmartLogBytes> log{};
  nvme_admin_cmd command{};
  command.opcode = kGetLogPage;
  command.nsid = kAllNamespaces;
  command.addr = reinterpret_cast<uintptr_t>(log.data());
  command.data_len = kSmartLogBytes;
  command.cdw10 = kSmartLogPage | ((kSmartLogBytes / 4 - 1) << 16);
  if (ioctl(fd.get(), NVME_IOCTL_ADMIN_CMD, &command) != 0) return std::nullopt;
  return parse_smart_log(log);
}

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
