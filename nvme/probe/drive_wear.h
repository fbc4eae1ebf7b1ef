// DriveWear: the wear that an NVMe drive reports, and the free space of the file system behind a
// directory of offload.nvme. Free functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/bytes.h"

namespace longshore {

struct DriveWear {
  Bytes written = 0;     // by hosts, since manufacture
  int percent_used = 0;  // of its rated life; may exceed 100
  bool operator==(const DriveWear&) const = default;
};

inline constexpr size_t kSmartLogBytes = 512;

// Parses the SMART / health information log of NVMe (log page 2).
DriveWear parse_smart_log(std::span<const std::byte, kSmartLogBytes> log);

// Reads the wear of the drive that holds the directory, or will hold it once it is made. Returns
// nullopt if that is not directly an NVMe drive, or without the permission (root).
std::optional<DriveWear> read_drive_wear(const std::string& directory);

// DriveRoom: the free space of the file system behind a directory of offload.nvme. Plain functions.

struct DriveRoom {
  uint64_t file_system = 0;  // directories with equal numbers share free space
  uint64_t directory = 0;    // the directory's own number; 0: it does not exist yet
  Bytes free = 0;
  Bytes held = 0;          // by existing state files, which are reused
  bool in_memory = false;  // a RAM file system: nothing on it survives a reboot
};

// Reads the directory or its nearest existing parent; nullopt if that fails.
std::optional<DriveRoom> read_drive_room(const std::string& directory);

}  // namespace longshore
