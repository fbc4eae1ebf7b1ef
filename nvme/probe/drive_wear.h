// DriveWear: the wear that an NVMe drive reports. Free functions; any thread.
#pragma once

#include <cstddef>
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

}  // namespace longshore
