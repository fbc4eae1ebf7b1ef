#include "trainer/run/run_saver.h"

#include <chrono>
#include <optional>

#include "trainer/checkpoint/checkpoint_directory.h"

namespace longshore {
namespace {

// Of rank 0: every rank's file, then the manifest, last.
std::string commit(CheckpointWriter& writer, CheckpointManifest& manifest,
                   const std::vector<std::string>& files) {
  for (const std::string& text : files) {
    if (text.empty()) continue;
    manifest.files.push_back(parse_checkpoint_file(text, manifest.parameters, writer.directory()));
  }
  return writer.commit(manifest);
}

}  // namespace

SavedCheckpoint save_checkpoint(const std::string& folder, int64_t keep,
                                const RunProgress& progress, const ShardedModel& model,
                                const StateSweep& walk, World& world, const RankGroups& groups) {
  const auto start = std::chrono::steady_clock::now();
  const bool first = world.ranks().rank == 0;
  SavedCheckpoint saved;
  CheckpointManifest manifest;
  manifest.progress = progress;
  manifest.state_format = name_of(walk.options.format);
  manifest.parameters = trainable_parameters(model.spec);
  {
    std::optional<CheckpointWriter> writer;
    if (first) writer.emplace(folder, progress.step);
    // Rank 0 has made the directory.
    const std::string directory =
        world.exchange("the checkpoint's directory", first ? writer->directory() : "").front();
    std::string mine;
    if (groups.first_replica()) mine = to_json(write_state_file(directory, model, walk)).dump();
    const std::vector<std::string> files = world.exchange("the checkpoint's files", mine);
    if (first) saved.path = commit(*writer, manifest, files);
  }
  if (first) {
    saved.bytes = manifest.file_bytes();
    // Counted as newer, they would push out the one that was just written.
    set_aside_newer(folder, progress.step);
    // What was written a moment ago is valid: sizes are enough to count the others.
    prune_checkpoints(folder, keep, CheckDepth::kSizes);
  }
  saved.path = world.exchange("the saved checkpoint", saved.path).front();
  saved.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return saved;
}

}  // namespace longshore
