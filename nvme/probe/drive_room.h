// DriveRoom: what the file system behind a directory of offload.nvme has free. Plain functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/bytes.h"

namespace longshore {

struct DriveRoom {
  uint64_t file_system = 0;  // directories with the same number share what is free
  uint64_t directory = 0;    // its own number there; 0: it does not exist yet
  Bytes free = 0;
  Bytes held = 0;          // by the state files that are there, which are used again
  bool in_memory = false;  // of RAM: nothing on it survives the machine
};

// Of the directory, or of the nearest one above that exists; nullopt where nobody can say.
std::optional<DriveRoom> read_drive_room(const std::string& directory);

}  // namespace longshore
