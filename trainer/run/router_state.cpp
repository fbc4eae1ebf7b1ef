#include "trainer/run/router_state.h"

#include <charconv>
#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "model/router_load.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolder = "/router_corrections";
constexpr Bytes kMostBytes = 64 * kMiB;
// Drives hold the last two commits, and one more may be on its way.
constexpr int64_t kKeptSteps = 3;

std::string path_of(const std::string& run_directory, Step step) {
  return run_directory + std::string(kFolder) + "/step-" + std::to_string(step.value);
}

// Returns the step of a file of the folder; nullopt for another file.
std::optional<int64_t> step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + std::min(kPrefix.size(), name.size()),
                                            name.data() + name.size(), step);
  const bool whole = error == std::errc() && end == name.data() + name.size();
  return name.starts_with(kPrefix) && whole ? std::optional(step) : std::nullopt;
}

}  // namespace

std::vector<float> initial_corrections(const ModelSource& source) {
  const MoeSpec& moe = source.arch().moe;
  if (moe.correction_rate == 0.0) return {};
  std::vector<float> corrections(static_cast<size_t>(source.arch().layer_count() * moe.experts));
  for (const auto& [name, place] : correction_places(source.arch(), source.whole())) {
    source.read_initial(name, 0,
                        std::span(corrections)
                            .subspan(static_cast<size_t>(place), static_cast<size_t>(moe.experts)));
  }
  return corrections;
}

void check_corrections(const RunProgress& saved, const ModelSource& source,
                       const std::string& path) {
  const ArchSpec& arch = source.arch();
  if (saved.router_corrections.empty()) return;
  if (arch.moe.correction &&
      std::ssize(saved.router_corrections) == arch.layer_count() * arch.moe.experts) {
    return;
  }
  throw CheckpointError(path + ": has corrections of routers that are not of this model");
}

void keep_corrections(const std::string& run_directory, const RunProgress& progress) {
  if (progress.router_corrections.empty()) return;
  const std::string folder = run_directory + std::string(kFolder);
  make_own_directory(folder);
  write_file_durably(path_of(run_directory, progress.step),
                     corrections_text(progress.router_corrections));
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::optional<int64_t> step = step_of(entry.path().filename().string());
    if (step && *step + kKeptSteps <= progress.step.value) remove_tree(entry.path().string());
  }
}

std::vector<float> kept_corrections(const std::string& run_directory, Step step, uint64_t hash) {
  const std::string path = path_of(run_directory, step);
  std::string text;
  try {
    text = read_own_file(path, kMostBytes);
  } catch (const IoError& error) {
    throw CheckpointError(path + ": cannot be read (" + error.what() +
                          "), and the state on the drives needs it; set checkpoint.resume to a "
                          "checkpoint");
  }
  if (hash64(text) != hash) {
    throw CheckpointError(path +
                          ": does not have the checksum that the state on the drives names; set "
                          "checkpoint.resume to a checkpoint");
  }
  return read_corrections(text, path);
}

}  // namespace longshore
