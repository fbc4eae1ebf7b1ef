#include "nvme/probe/drive_tuning.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"

namespace longshore {
namespace {

constexpr Bytes kProbeFileBytes = 256 * kMiB;
constexpr Bytes kMaxInFlightBytes = 128 * kMiB;
constexpr JsonLimits kLimits{.max_bytes = kBlockBytes, .max_values = 16};
// Nine settings in two directions, plus both directions of the chosen one.
constexpr double kMeasurements = 20.0;
// Speeds are rounded to quarters of the slowest, because so short a probe is not more precise.
constexpr double kSharesOfSlowest = 4.0;
constexpr double kMaxShare = 64.0;

std::string path_in(const std::string& directory) {
  return directory + "/drive_tuning.json";
}

bool makes_sense(const DriveTuning& tuning) {
  const Bytes chunk = tuning.settings.chunk_bytes;
  return chunk >= kBlockBytes && chunk % kBlockBytes == 0 && chunk <= 16 * kMiB &&
         tuning.settings.depth >= 1 && tuning.settings.depth <= kMaxInFlightBytes / chunk &&
         std::isfinite(tuning.gb_per_second) && tuning.gb_per_second > 0.0;
}

}  // namespace

std::optional<DriveTuning> read_drive_tuning(const std::string& directory) {
  try {
    const Json json = read_json_file(path_in(directory), kLimits);
    const DriveTuning tuning = {{json.at("chunk_bytes").get<Bytes>(), json.at("depth").get<int>()},
                                json.at("gb_per_second").get<double>()};
    if (makes_sense(tuning)) return tuning;
  } catch (const Error&) {
  } catch (const Json::exception&) {
  }
  return std::nullopt;
}

DriveTuning tune_drive(const std::string& directory, IoEngine engine, double seconds) {
  make_directories(directory);
  const auto begin = std::chrono::steady_clock::now();
  DriveProbe probe(directory, kProbeFileBytes, engine);
  const double spent =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  DriveTuning tuning;
  tuning.gb_per_second = static_cast<double>(kProbeFileBytes) * 1e-9 / spent;
  const double each = (seconds - spent) / kMeasurements;
  if (each > 0.01) {
    tuning.settings = probe.find_settings(each);
    const auto rate = [&](BlockOp::Kind kind) {
      return probe.measure(kind, tuning.settings, each).gb_per_second;
    };
    tuning.gb_per_second = std::min(rate(BlockOp::Kind::kRead), rate(BlockOp::Kind::kWrite));
  }
  const Json json = {{"chunk_bytes", tuning.settings.chunk_bytes},
                     {"depth", tuning.settings.depth},
                     {"gb_per_second", tuning.gb_per_second}};
  write_file_durably(path_in(directory), json.dump() + "\n");
  return tuning;
}

TunedDrives combine(std::span<const DriveTuning> drives) {
  LONGSHORE_CHECK(!drives.empty() && drives.size() <= static_cast<size_t>(kMaxDrives));
  TunedDrives tuned;
  Bytes in_flight = 0;
  double slowest = drives.front().gb_per_second;
  tuned.geometry.chunk_bytes = 0;
  for (const DriveTuning& drive : drives) {
    const DriveSettings& settings = drive.settings;
    tuned.geometry.chunk_bytes = std::max(tuned.geometry.chunk_bytes, settings.chunk_bytes);
    in_flight = std::max(in_flight, settings.chunk_bytes * settings.depth);
    slowest = std::min(slowest, drive.gb_per_second);
  }
  tuned.depth = static_cast<int>(std::max<Bytes>(1, in_flight / tuned.geometry.chunk_bytes));
  uint32_t divisor = 0;
  for (size_t i = 0; i < drives.size(); ++i) {
    const double share = std::round(kSharesOfSlowest * drives[i].gb_per_second / slowest);
    tuned.geometry.weights[i] = static_cast<uint32_t>(std::min(share, kMaxShare));
    divisor = std::gcd(divisor, tuned.geometry.weights[i]);
  }
  for (size_t i = 0; i < drives.size(); ++i) tuned.geometry.weights[i] /= divisor;
  return tuned;
}

}  // namespace longshore
