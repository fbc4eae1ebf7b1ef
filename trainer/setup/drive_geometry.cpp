#include "trainer/setup/drive_geometry.h"

#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "nvme/probe/drive_tuning.h"
#include "nvme/store/state_files.h"

namespace longshore {
namespace {

// A directory that is missing may be a typo, or a drive that is not mounted: its parent has to be
// there, and the user reads what was made.
void make_drive_directory(const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::exists(directory, ignored)) return;
  fs::path path = fs::absolute(directory, ignored).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string parent = path.parent_path().string();
  if (!fs::is_directory(parent, ignored)) {
    throw ConfigError("offload.nvme: " + directory + ": neither it nor " + parent +
                      " exists; mount the drive, or make the directory first");
  }
  make_directories(directory);
  log_info("offload.nvme: made " + directory + ", in " + parent);
}

void probe_unknown_drives(const NvmeTier& tier, const TierPlan& draft) {
  for (size_t i = 0; i < tier.directories.size(); ++i) {
    const std::string& directory = tier.directories[i];
    if (draft.drives.files[i] < kWorthTuningBytes || read_drive_tuning(directory)) continue;
    const DriveTuning tuning = tune_drive(directory, IoEngine::kAuto);
    log_info(directory + ": chunks of " + format_bytes(tuning.settings.chunk_bytes) + ", " +
             std::to_string(tuning.settings.depth) + " in flight, by a short probe");
  }
}

}  // namespace

void read_drive_geometry(RunSetup& setup) {
  NvmeTier& tier = setup.inputs.nvme;
  std::vector<DriveTuning> tunings;
  for (const std::string& directory : tier.directories) {
    const std::optional<DriveTuning> tuning = read_drive_tuning(directory);
    if (!tuning) return;  // stripes by half the speeds would be worse than equal ones
    tunings.push_back(*tuning);
  }
  if (tunings.empty()) return;
  const TunedDrives tuned = combine(tunings);
  tier.geometry = tuned.geometry;
  tier.depth = tuned.depth;
}

void settle_drive_geometry(RunSetup& setup) {
  NvmeTier& tier = setup.inputs.nvme;
  if (!tier.used()) return;
  const RankInfo& info = setup.ranks->info();
  if (info.local_rank == 0) {
    for (const std::string& directory : tier.directories) make_drive_directory(directory);
    probe_unknown_drives(tier, draft_tier_plan(setup.inputs, setup.machine));
  }
  setup.ranks->world().exchange("the drives' speeds", "");  // measured, where need be
  read_drive_geometry(setup);
  if (!tier.state) return;
  const std::optional<Manifest> made =
      read_state_file(tier.directories.front(), info.rank).manifest;
  if (made && made->drives == static_cast<int32_t>(tier.directories.size())) {
    tier.geometry = made->geometry;
  }
}

}  // namespace longshore
