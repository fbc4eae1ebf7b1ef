#include "trainer/bench/bench_nvme.h"

#include <algorithm>

#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "device/copy_speed.h"
#include "nvme/probe/drive_probe.h"

namespace longshore {
namespace {

// A fifth of the time is a search for settings, the rest are rounds that alternate with fio's.
constexpr int kDriveRounds = 5;
constexpr double kSearchShare = 0.2;

struct Direction {
  DriveSpeed ours;
  std::optional<DriveSpeed> fio;
  std::string fio_engine;
};

struct Report {
  std::string directory;
  std::string engine;
  DriveSettings settings;
  Direction read;
  Direction write;
};

// Alternates our rounds with fio's, because a drive's speed drifts, and takes fio's best median.
Direction measure_direction(DriveProbe& probe, BlockOp::Kind kind, const DriveSettings& settings,
                            double seconds, bool with_fio) {
  std::vector<std::string> engines;
  if (with_fio) engines = {"io_uring", "libaio"};
  std::vector<DriveSpeed> ours;
  std::vector<std::vector<DriveSpeed>> theirs(engines.size());
  for (int round = 0; round < kDriveRounds; ++round) {
    ours.push_back(probe.measure(kind, settings, seconds));
    for (size_t i = 0; i < engines.size(); ++i) {
      const auto speed = measure_fio(probe.path(), kind, engines[i], settings, seconds);
      if (speed) theirs[i].push_back(*speed);
    }
  }
  Direction direction{median_of(ours), std::nullopt, ""};
  for (size_t i = 0; i < engines.size(); ++i) {
    if (theirs[i].empty()) continue;
    const DriveSpeed speed = median_of(theirs[i]);
    if (direction.fio && direction.fio->gb_per_second >= speed.gb_per_second) continue;
    direction.fio = speed;
    direction.fio_engine = engines[i];
  }
  return direction;
}

Report measure_directory(const std::string& directory, const BenchNvmeOptions& options,
                         bool with_fio) {
  DriveProbe probe(directory, options.file_bytes, IoEngine::kAuto);
  Report report;
  report.directory = directory;
  report.engine = probe.kind();
  report.settings = probe.find_settings(options.seconds * kSearchShare);
  report.read =
      measure_direction(probe, BlockOp::Kind::kRead, report.settings, options.seconds, with_fio);
  report.write =
      measure_direction(probe, BlockOp::Kind::kWrite, report.settings, options.seconds, with_fio);
  return report;
}

Json to_json(const Direction& direction) {
  Json json = {{"gb_per_second", direction.ours.gb_per_second},
               {"core_percent_per_gb_per_second", direction.ours.core_percent_per_gb}};
  if (direction.fio) {
    json["fio"] = {{"engine", direction.fio_engine},
                   {"gb_per_second", direction.fio->gb_per_second},
                   {"core_percent_per_gb_per_second", direction.fio->core_percent_per_gb}};
    json["share_of_fio"] = direction.ours.gb_per_second / direction.fio->gb_per_second;
  }
  return json;
}

void print_direction(const char* name, const Direction& direction) {
  print_out("  %-5s %6.2f GB/s, %5.1f %% of a core for each GB/s", name,
            direction.ours.gb_per_second, direction.ours.core_percent_per_gb);
  if (direction.fio) {
    print_out("; fio %s %.2f GB/s, %.1f %%: %.0f %% of fio", direction.fio_engine.c_str(),
              direction.fio->gb_per_second, direction.fio->core_percent_per_gb,
              100.0 * direction.ours.gb_per_second / direction.fio->gb_per_second);
  }
  print_out("\n");
}

void print(const Report& report) {
  print_out("%s: %s, chunks of %s, %d in flight\n", report.directory.c_str(), report.engine.c_str(),
            format_bytes(report.settings.chunk_bytes).c_str(), report.settings.depth);
  print_direction("read", report.read);
  print_direction("write", report.write);
}

// Sizes from one parameter of a small model to a block of a large one.
const std::vector<Bytes> kCopyBytes = {4 * kMiB, 32 * kMiB, 256 * kMiB};
constexpr int kCopyRounds = 7;

}  // namespace

int run_bench_nvme(const BenchNvmeOptions& options) {
  const bool with_fio = fio_is_installed();
  Json all = Json::array();
  for (const std::string& directory : options.directories) {
    const Report report = measure_directory(directory, options, with_fio);
    if (!options.json) {
      print(report);
      continue;
    }
    all.push_back({{"directory", report.directory},
                   {"engine", report.engine},
                   {"chunk_bytes", report.settings.chunk_bytes},
                   {"depth", report.settings.depth},
                   {"read", to_json(report.read)},
                   {"write", to_json(report.write)}});
  }
  if (options.json) print_out("%s\n", all.dump(2).c_str());
  if (!options.json && !with_fio) print_out("fio is not installed: nothing to compare with\n");
  return 0;
}

int run_bench_copies(const BenchCopiesOptions& options) {
  const auto speeds = measure_copy_speeds(options.gpu, kCopyBytes, kCopyRounds);
  Json rows = Json::array();
  for (const CopySpeed& speed : speeds) {
    const double share = speed.gb_per_second / speed.best_gb_per_second;
    rows.push_back({{"direction", speed.direction},
                    {"copy_bytes", speed.bytes},
                    {"gb_per_second", speed.gb_per_second},
                    {"best_cudamemcpy_gb_per_second", speed.best_gb_per_second},
                    {"share_of_best", share}});
    if (options.json) continue;
    print_out("%s, copies of %s: %.2f GB/s, %.1f %% of the best cudaMemcpyAsync (%.2f)\n",
              speed.direction.c_str(), format_bytes(speed.bytes).c_str(), speed.gb_per_second,
              100.0 * share, speed.best_gb_per_second);
  }
  if (options.json) print_out("%s\n", Json({{"rows", rows}}).dump(2).c_str());
  return 0;
}

}  // namespace longshore
