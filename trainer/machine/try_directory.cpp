// Probes a directory: creates a file, reads it with io_uring and removes it.
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <filesystem>

#include "base/errors.h"
#include "base/texts.h"
#include "nvme/drive/block_file.h"
#include "nvme/drive/io_ring.h"
#include "trainer/machine/machine_facts.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kFileBytes = kMiB;
// These constants are missing in older kernel headers.
constexpr long kXfs = 0x58465342, kZfs = 0x2fc12fc1, kLustre = 0x0bd00bd0, kFuse = 0x65735546;
constexpr long kCifs = static_cast<long>(0xff534d42), kSmb2 = static_cast<long>(0xfe534d42);

std::string name_of_file_system(long type) {
  static constexpr struct {
    long type;
    const char* name;
  } kNames[] = {{EXT4_SUPER_MAGIC, "ext4"},
                {kXfs, "xfs"},
                {BTRFS_SUPER_MAGIC, "btrfs"},
                {F2FS_SUPER_MAGIC, "f2fs"},
                {kZfs, "zfs"},
                {OVERLAYFS_SUPER_MAGIC, "overlay"},
                {TMPFS_MAGIC, "tmpfs"},
                {RAMFS_MAGIC, "ramfs"},
                {NFS_SUPER_MAGIC, "nfs"},
                {kCifs, "cifs"},
                {kSmb2, "smb"},
                {kLustre, "lustre"},
                {CEPH_SUPER_MAGIC, "ceph"},
                {V9FS_MAGIC, "9p"},
                {kFuse, "fuse"}};
  for (const auto& known : kNames) {
    if (known.type == type) return known.name;
  }
  return formatted("0x%lx", type);
}

fs::path nearest_existing(const std::string& directory) {
  std::error_code ignored;
  fs::path path = fs::absolute(directory, ignored).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  while (path.has_relative_path() && !fs::exists(path, ignored)) path = path.parent_path();
  return path;
}

}  // namespace

DirectoryFacts try_directory(const std::string& purpose, const std::string& directory) {
  DirectoryFacts facts;
  facts.purpose = purpose;
  facts.path = nearest_existing(directory);
  struct statfs kind{};
  if (::statfs(facts.path.c_str(), &kind) == 0) {
    facts.file_system = name_of_file_system(static_cast<long>(kind.f_type));
    facts.free = static_cast<Bytes>(kind.f_bavail) * static_cast<Bytes>(kind.f_bsize);
  }
  const std::string path = facts.path + "/.longshore-check-" + std::to_string(::getpid()) + ".tmp";
  try {
    const DirectFile file({.path = path, .size_bytes = kFileBytes});
    facts.direct = file.direct();
    IoRing::try_make(&file, {}, facts.ring_trouble);
  } catch (const Error& error) {
    facts.file_trouble = error.what();
  }
  ::unlink(path.c_str());
  return facts;
}

}  // namespace longshore
