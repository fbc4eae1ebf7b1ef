// DriveTuning: block size, depth and speed of a drive, measured once by a short probe and kept in
// the directory as drive_tuning.json; and the stripes that follow for several drives. Free
// functions.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "nvme/parts/stripe_map.h"
#include "nvme/probe/drive_probe.h"

namespace longshore {

struct DriveTuning {
  DriveSettings settings;
  double gb_per_second = 0.0;  // of the slower direction
};

// State of fewer bytes a drive is not worth a probe: the defaults serve it.
inline constexpr Bytes kWorthTuningBytes = kGiB;

// What was kept; nothing where there is no such file, or it makes no sense.
std::optional<DriveTuning> read_drive_tuning(const std::string& directory);

// Measures for about `seconds` through a scratch file (256 MiB, removed), and keeps the result. A
// drive so slow that the file alone takes the time gets the default settings.
DriveTuning tune_drive(const std::string& directory, IoEngine engine, double seconds = 1.0);

// One chunk size and depth for all, and each drive's share of the stripes by its speed.
struct TunedDrives {
  Geometry geometry;
  int depth = DriveSettings{}.depth;
};
TunedDrives combine(std::span<const DriveTuning> drives);

}  // namespace longshore
