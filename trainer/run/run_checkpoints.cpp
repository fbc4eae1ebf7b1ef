#include "trainer/run/run_checkpoints.h"

#include <chrono>
#include <filesystem>
#include <optional>
#include <sstream>

#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "base/measurement.h"
#include "base/texts.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/model/weight_check.h"

namespace longshore {
namespace {

// Throws if the named checkpoint does not exist; the message says what to name instead.
void check_named(const std::string& path) {
  if (!std::filesystem::is_directory(path)) {
    const std::string absolute = std::filesystem::absolute(path).string();
    throw CheckpointError(absolute +
                          ": no such directory; checkpoint.resume is \"auto\", "
                          "\"never\" or a checkpoint's directory");
  }
  const std::vector<CheckpointEntry> inside = list_checkpoints(path + "/checkpoints");
  if (!inside.empty()) {
    throw CheckpointError(
        path + ": this is a run's directory; name a checkpoint of it: " + inside.front().path);
  }
}

// Returns rank 0's list of checkpoints, newest first, because all ranks must try the same ones.
std::vector<std::string> candidates(const std::string& folder, World& world) {
  std::string mine;
  if (world.ranks().rank == 0) {
    for (const CheckpointEntry& entry : list_checkpoints(folder)) mine += entry.path + "\n";
  }
  std::istringstream lines(world.exchange("the list of checkpoints", mine).front());
  std::vector<std::string> paths;
  for (std::string line; std::getline(lines, line);) paths.push_back(line);
  return paths;
}

struct Opened {
  std::optional<Checkpoint> checkpoint;
  std::string problem;  // the lowest rank's problem; empty: valid
};

// Opens a checkpoint on every rank; each rank verifies its share of the files.
Opened open_together(const std::string& path, World& world) {
  Opened opened;
  std::string mine;
  try {
    opened.checkpoint = Checkpoint::open(path);
    opened.checkpoint->verify(world.ranks().rank, world.ranks().size);
  } catch (const CheckpointError& error) {
    mine = error.what();
  }
  const std::vector<std::string> problems = world.exchange("the check of " + path, mine);
  for (const std::string& problem : problems) {
    if (!problem.empty() && opened.problem.empty()) opened.problem = problem;
  }
  if (!opened.problem.empty()) opened.checkpoint.reset();
  return opened;
}

// Adds the ranks' files to the manifest and commits it. Rank 0 calls it.
std::string commit(CheckpointWriter& writer, CheckpointManifest& manifest,
                   const std::vector<std::string>& files) {
  for (const std::string& text : files) {
    if (text.empty()) continue;
    manifest.files.push_back(parse_checkpoint_file(text, manifest, writer.directory()));
  }
  return writer.commit(manifest);
}

// Loads the model's values and passes them to `check`. If the ranks read different files, passes
// the values to `comparison` too; null: there are no other ranks.
void read_initial_weights(Engine& engine, const ModelSource& source, WeightCheck& check,
                          WeightComparison* comparison) {
  const ShardedModel model{engine.spec(), engine.layouts(), engine.groups().shard()};
  // A frozen model that stays in its files is not loaded, so it is read once more for a comparison.
  const bool loads_all = !engine.plan().frozen_in_files;
  const bool compares = comparison != nullptr && comparison->needed();
  {
    Progress progress("loading weights", model.fp32_bytes(loads_all));
    engine.load([&](const std::string& name, int64_t begin, std::span<float> out) {
      source.read_initial(name, begin, out);
      check.take(name, out);
      if (loads_all && compares) comparison->take(name, begin, std::as_bytes(out));
      progress.add(static_cast<Bytes>(out.size_bytes()));
    });
  }
  if (!loads_all && compares) {
    engine.read_shard(
        engine.groups().shard(),
        [&](const std::string& name, int64_t begin, std::span<float> out) {
          source.read_initial(name, begin, out);
          comparison->take(name, begin, std::as_bytes(out));
        },
        [&](const std::string& name, Bytes begin, std::span<std::byte> out) {
          source.packing().read_packed(name, begin, out);
          comparison->take(name, begin, out);
        });
  }
  if (comparison == nullptr || !comparison->other_shard()) return;
  const Rank other = *comparison->other_shard();
  const ShardedModel theirs{engine.spec(), engine.layouts(), other};
  Progress progress("comparing weights with another rank", theirs.fp32_bytes(true));
  engine.read_shard(
      other,
      [&](const std::string& name, int64_t begin, std::span<float> out) {
        source.read_initial(name, begin, out);
        comparison->take_other(name, begin, std::as_bytes(out));
        progress.add(static_cast<Bytes>(out.size_bytes()));
      },
      [&](const std::string& name, Bytes begin, std::span<std::byte> out) {
        source.packing().read_packed(name, begin, out);
        comparison->take_other(name, begin, out);
        progress.add(std::ssize(out));
      });
}

}  // namespace

FoundCheckpoint find_checkpoint(const std::string& folder, const std::string& resume,
                                World& world) {
  FoundCheckpoint found;
  if (resume == "never") return found;
  if (resume != "auto") {
    check_named(resume);
    Opened opened = open_together(resume, world);
    if (!opened.checkpoint) throw CheckpointError(opened.problem);
    found.checkpoint = std::move(opened.checkpoint);
    return found;
  }
  for (const std::string& path : candidates(folder, world)) {
    Opened opened = open_together(path, world);
    if (opened.checkpoint) {
      found.checkpoint = std::move(opened.checkpoint);
      return found;
    }
    found.refused.push_back(opened.problem);
  }
  if (!found.refused.empty()) {
    throw CheckpointError(
        folder + ": no checkpoint is valid; checkpoint.resume = \"never\" starts over\n  " +
        joined(found.refused, "\n  "));
  }
  return found;
}

FoundCheckpoint find_checkpoint(const std::string& folder, const std::string& resume) {
  const std::unique_ptr<World> alone = World::connect({}, {});
  return find_checkpoint(folder, resume, *alone);
}

std::string model_difference(const RunProgress& saved, const std::string& path,
                             const ModelSource& source) {
  if (saved.model_fingerprint == source.fingerprint()) return {};
  const auto named = [](const std::string& tokens) {
    return tokens.empty() ? std::string("no added tokens") : tokens;
  };
  const std::string before = added_tokens_text(saved.config_text), now = source.tokens().text();
  if (!saved.config_text.empty() && before != now) {
    return path + ": was made with " + named(before) + ", and this run has " + named(now) +
           "; give the same tokens, or another run.dir";
  }
  const bool adapts = source.has_adapter();
  return path + ": was made from another model than " + source.directory().path() +
         (adapts ? ", or with another adapter.base, adapter.alpha, adapter.rslora or pattern"
                 : "") +
         (now.empty() ? "" : ", or with other tokens than " + now) + "; give its model.path" +
         (adapts ? " and these keys" : "") + ", or another run.dir";
}

std::string load_initial_weights(Engine& engine, const ModelSource& source, World* world) {
  const std::string& model = source.directory().path();
  WeightCheck check;
  if (world == nullptr) {
    read_initial_weights(engine, source, check, nullptr);
    return check.describe(model);
  }
  WeightComparison comparison(source.weight_files(), engine.groups().topology, *world);
  read_initial_weights(engine, source, check, &comparison);
  comparison.conclude(model);
  return check.conclude(model, *world);
}

void restore_checkpoint(const Checkpoint& checkpoint, Engine& engine) {
  checkpoint.restore({engine.spec(), engine.layouts(), engine.groups().shard()},
                     engine.state_sweep());
  engine.advance_version();
}

SavedCheckpoint save_checkpoint(const std::string& folder, int64_t keep,
                                const RunProgress& progress, const ShardedModel& model,
                                const StateSweep& sweep, World& world, const RankGroups& groups) {
  const auto start = std::chrono::steady_clock::now();
  const bool first = world.ranks().rank == 0;
  SavedCheckpoint saved;
  CheckpointManifest manifest;
  manifest.progress = progress;
  manifest.state_format = name_of(sweep.options.format);
  manifest.regions = checkpoint_regions(sweep.options.regions);
  manifest.parameters = trainable_parameters(model.spec);
  {
    std::optional<CheckpointWriter> writer;
    if (first) writer.emplace(folder, progress.step);
    // Rank 0 has created the directory.
    const std::string directory =
        world.exchange("the checkpoint's directory", first ? writer->directory() : "").front();
    std::string mine;
    if (groups.first_replica()) mine = to_json(write_state_file(directory, model, sweep)).dump();
    const std::vector<std::string> files = world.exchange("the checkpoint's files", mine);
    if (first) saved.path = commit(*writer, manifest, files);
  }
  if (first) {
    saved.bytes = manifest.file_bytes();
    // Pruning would count later steps as newer, and remove the checkpoint just written.
    set_aside_newer(folder, progress.step);
    // File sizes suffice to count the other checkpoints, because the new one is valid.
    prune_checkpoints(folder, keep, CheckDepth::kSizes);
  }
  saved.path = world.exchange("the saved checkpoint", saved.path).front();
  saved.seconds = seconds_since(start);
  return saved;
}

}  // namespace longshore
