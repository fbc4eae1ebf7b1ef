// DriveWear: what an NVMe drive says of its own wear. Free functions; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "base/bytes.h"

namespace longshore {

struct DriveWear {
  Bytes written = 0;     // by hosts, since the drive was made
  int percent_used = 0;  // of its rated life; may exceed 100
  bool operator==(const DriveWear&) const = default;
};

inline constexpr size_t kSmartLogBytes = 512;

// From the SMART / health information log of NVMe (log page 2).
DriveWear parse_smart_log(std::span<const std::byte, kSmartLogBytes> log);

// Of the drive that holds the directory, or will hold it once it is made. Nothing where it is no
// NVMe drive's own partition, or we may not ask (it needs root).
std::optional<DriveWear> read_drive_wear(const std::string& directory);

}  // namespace longshore
