// DriveRoom: the free space of the file system behind a directory of offload.nvme. Plain functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/bytes.h"

namespace longshore {

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
