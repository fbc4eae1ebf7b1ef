#include "trainer/run/resume_point.h"

#include <filesystem>
#include <sstream>

#include "base/errors.h"
#include "base/file.h"
#include "trainer/checkpoint/checkpoint_directory.h"

namespace longshore {
namespace {

std::string indented(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

// The named checkpoint exists, or the message says what to name instead.
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

// The folder's checkpoints as rank 0 sees them, newest first: all ranks must try the same ones.
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
  std::string problem;  // the first rank's; empty where it is valid
};

// Every rank opens it and reads its share of the files.
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
    throw CheckpointError(folder +
                          ": no checkpoint is valid; checkpoint.resume = \"never\" starts over" +
                          indented(found.refused));
  }
  return found;
}

FoundCheckpoint find_checkpoint(const std::string& folder, const std::string& resume) {
  const std::unique_ptr<World> alone = World::connect({}, {});
  return find_checkpoint(folder, resume, *alone);
}

}  // namespace longshore
