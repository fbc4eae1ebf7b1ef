#include "trainer/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>

#include "base/errors.h"
#include "base/file.h"
#include "trainer/checkpoint/checkpoint_reader.h"

namespace longshore {
namespace {

constexpr std::string_view kPrefix = "step-";

std::optional<Step> parse_checkpoint_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0) {
    return std::nullopt;
  }
  if (checkpoint_name(Step(step)) != name) return std::nullopt;
  return Step(step);
}

// Returns the names of the folder's directories; empty if the folder is missing.
std::vector<std::string> directories_of(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  if (error) throw IoError("list", folder, error.value());
  for (const auto& entry : entries) {
    if (entry.is_directory(error)) names.push_back(entry.path().filename().string());
  }
  return names;
}

bool exists(const std::string& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0;
}

// Throws if the folder is a symbolic link, because the target may not belong to the run.
void refuse_link(const std::string& folder) {
  if (!is_symbolic_link(folder)) return;
  throw IoError(folder + ": a symbolic link, behind which a run changes nothing");
}

void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw IoError("rename " + from + " to", to, errno);
}

CheckpointReport inspect(const CheckpointEntry& entry, CheckDepth depth) {
  CheckpointReport report{entry, 0, ""};
  try {
    const Checkpoint checkpoint = Checkpoint::open(entry.path);
    report.bytes = checkpoint.manifest().file_bytes();
    if (depth == CheckDepth::kChecksums) checkpoint.verify();
  } catch (const Error& error) {
    report.problem = error.what();
  }
  return report;
}

}  // namespace

std::string checkpoint_name(Step step) {
  const std::string digits = std::to_string(step.value);
  const std::string zeros(digits.size() < 8 ? 8 - digits.size() : 0, '0');
  return std::string(kPrefix) + zeros + digits;
}

std::vector<CheckpointEntry> list_checkpoints(const std::string& folder) {
  std::vector<CheckpointEntry> entries;
  for (const std::string& name : directories_of(folder)) {
    if (const auto step = parse_checkpoint_name(name)) {
      entries.push_back({*step, folder + "/" + name});
    }
  }
  std::ranges::sort(entries, std::greater<>(), &CheckpointEntry::step);
  return entries;
}

std::vector<CheckpointReport> inspect_checkpoints(const std::string& folder, CheckDepth depth) {
  std::vector<CheckpointReport> reports;
  for (const CheckpointEntry& entry : list_checkpoints(folder)) {
    reports.push_back(inspect(entry, depth));
  }
  return reports;
}

std::string format_reports(const std::vector<CheckpointReport>& reports) {
  std::string text;
  for (const CheckpointReport& report : reports) {
    const std::string bytes = report.bytes > 0 ? format_bytes(report.bytes) : "-";
    text += "step " + std::to_string(report.entry.step.value) + "  " + bytes + "  " +
            (report.valid() ? "valid" : "damaged") + "  " + report.entry.path + "\n";
    if (!report.valid()) text += "  " + report.problem + "\n";
  }
  return text;
}

Json to_json(const std::vector<CheckpointReport>& reports) {
  Json array = Json::array();
  for (const CheckpointReport& report : reports) {
    Json object = {{"step", report.entry.step.value},
                   {"path", report.entry.path},
                   {"bytes", report.bytes},
                   {"valid", report.valid()}};
    if (!report.valid()) object["problem"] = report.problem;
    array.push_back(std::move(object));
  }
  return array;
}

std::vector<std::string> prune_checkpoints(const std::string& folder, int64_t keep,
                                           CheckDepth depth) {
  LONGSHORE_CHECK(keep >= 1) << keep;
  refuse_link(folder);
  std::vector<std::string> removed;
  int64_t valid = 0;
  for (const CheckpointEntry& entry : list_checkpoints(folder)) {
    if (valid < keep) {
      if (inspect(entry, depth).valid()) ++valid;
      continue;
    }
    remove_checkpoint(entry.path);
    removed.push_back(entry.path);
  }
  return removed;
}

void remove_checkpoint(const std::string& path) {
  const std::string removing = path + std::string(kRemovingSuffix);
  remove_tree(removing);
  rename_path(path, removing);
  sync_directory(parent_of(path));
  remove_tree(removing);
}

void move_into_place(const std::string& temporary, const std::string& path) {
  const std::string parent = parent_of(path);
  if (!exists(path)) {
    rename_path(temporary, path);
    sync_directory(parent);
    return;
  }
  const std::string replaced = path + std::string(kReplacedSuffix);
  remove_tree(replaced);
  // The swap is atomic if supported; otherwise clean_leftovers repairs a kill in between.
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    rename_path(temporary, replaced);
  } else {
    rename_path(path, replaced);
    rename_path(temporary, path);
  }
  sync_directory(parent);
  remove_tree(replaced);
}

std::vector<std::string> set_aside_newer(const std::string& folder, Step step) {
  refuse_link(folder);
  std::vector<std::string> moved;
  for (const CheckpointEntry& entry : list_checkpoints(folder)) {
    if (entry.step <= step) break;
    const std::string aside = entry.path + std::string(kAbandonedSuffix);
    std::string path = aside;
    for (int i = 2; exists(path); ++i) path = aside + "-" + std::to_string(i);
    rename_path(entry.path, path);
    moved.push_back(path);
  }
  if (!moved.empty()) sync_directory(folder);
  return moved;
}

std::vector<std::string> list_abandoned(const std::string& folder) {
  std::vector<std::string> paths;
  for (const std::string& name : directories_of(folder)) {
    const size_t suffix = name.find(kAbandonedSuffix);
    if (suffix == std::string::npos || !parse_checkpoint_name(name.substr(0, suffix))) continue;
    paths.push_back(folder + "/" + name);
  }
  std::ranges::sort(paths);
  return paths;
}

std::vector<std::string> remove_abandoned(const std::string& folder) {
  refuse_link(folder);
  const std::vector<std::string> paths = list_abandoned(folder);
  for (const std::string& path : paths) remove_tree(path);
  return paths;
}

void clean_leftovers(const std::string& folder) {
  refuse_link(folder);
  for (const std::string& name : directories_of(folder)) {
    const std::string path = folder + "/" + name;
    for (const std::string_view suffix : {kWritingSuffix, kReplacedSuffix, kRemovingSuffix}) {
      if (!name.ends_with(suffix)) continue;
      const std::string original = name.substr(0, name.size() - suffix.size());
      if (!parse_checkpoint_name(original)) continue;  // another's directory
      if (suffix == kReplacedSuffix && !exists(folder + "/" + original)) {
        rename_path(path, folder + "/" + original);
        sync_directory(folder);
      } else {
        remove_tree(path);
      }
    }
  }
}

}  // namespace longshore
