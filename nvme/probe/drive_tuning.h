// DriveTuning: chunk size, depth and speed of a drive, measured once by a short probe and cached in
// the directory as drive_tuning.json; and the stripes for several drives that follow from it. Free
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

// With less state than this on a drive, a probe does not pay, and the defaults apply.
inline constexpr Bytes kWorthTuningBytes = kGiB;

// Returns the cached result; nullopt if the file is missing or implausible.
std::optional<DriveTuning> read_drive_tuning(const std::string& directory);

// Measures for about `seconds` through a scratch file (256 MiB, removed), and caches the result. A
// drive so slow that creating the file takes that long gets the default settings.
DriveTuning tune_drive(const std::string& directory, IoEngine engine, double seconds = 1.0);

// One chunk size and depth for all drives, and each drive's share of the stripes by its speed.
struct TunedDrives {
  Geometry geometry;
  int depth = DriveSettings{}.depth;
};
TunedDrives combine(std::span<const DriveTuning> drives);

}  // namespace longshore
