#include "hf/export_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/errors.h"
#include "base/json.h"
#include "base/log.h"
#include "hf/directory_entry.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLeftovers = 100;
constexpr Bytes kMaxNoteBytes = 16 * kMiB;
constexpr const char* kWriting = "writing";

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

void rename_to(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) throw IoError("rename to", to, errno);
}

// Marks an export in progress: the list's file, with names only.
void note_names(const std::string& directory, const std::vector<std::string>& names) {
  write_file_durably(directory + "/" + kExportListName, Json({{kWriting, names}}).dump() + "\n");
}

// Returns nullopt if the directory does not hold an export in progress.
std::optional<std::vector<std::string>> noted_names(const std::string& directory) {
  try {
    const Json note =
        read_json_file(directory + "/" + kExportListName, {.max_bytes = kMaxNoteBytes});
    return note.at(kWriting).get<std::vector<std::string>>();
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// Removes temporary files of the list, which a process leaves that is killed while it writes it.
void remove_temporaries(const std::string& directory) {
  for (const std::string& name : list_entries(open_directory(directory))) {
    if (is_temporary_of(name, kExportListName)) ::unlink((directory + "/" + name).c_str());
  }
}

// Removes the files of an export in progress. Returns whether the directory is gone.
bool remove_written(const std::string& directory, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const size_t slash = name.find('/');
    const bool template_file =
        slash != std::string::npos && name.substr(0, slash) == kTemplatesFolder;
    const std::string last = template_file ? name.substr(slash + 1) : name;
    if (is_plain_file_name(last)) ::unlink((directory + "/" + name).c_str());
  }
  ::unlink((directory + "/" + kExportListName).c_str());
  ::rmdir((directory + "/" + kTemplatesFolder).c_str());
  return ::rmdir(directory.c_str()) == 0;
}

// Removes the remains of a killed export: a partial one, or the replaced older one.
bool remove_leftover(const std::string& directory, const std::string& destination) {
  remove_temporaries(directory);
  if (const auto names = noted_names(directory)) return remove_written(directory, *names);
  const ExportContents contents = read_export_contents(directory);
  if (contents.own.empty() && !contents.foreign.empty()) return false;
  return remove_export(directory, contents.own, contents.foreign, destination);
}

}  // namespace

ExportDirectory::ExportDirectory(std::string destination, std::vector<std::string> names)
    : destination_(std::move(destination)), names_(std::move(names)) {
  // Earlier versions did two renames: a kill in between left the older export under this name.
  const std::string old = destination_ + ".longshore-old";
  if (!exists(destination_) && exists(old)) rename_to(old, destination_);
  make_directories(fs::path(destination_).parent_path().string());
  const std::string first = destination_ + ".longshore-partial";
  for (int number = 1; number <= kMostLeftovers; ++number) {
    if (take(number == 1 ? first : first + "-" + std::to_string(number))) return;
  }
  throw ConfigError(first + ": exists, and so do all alternatives; move them away");
}

// Creates the directory, replacing a killed export's; returns false if it has foreign content.
bool ExportDirectory::take(const std::string& path) {
  if (exists(path)) {
    const fs::file_status status = fs::symlink_status(path);
    if (!fs::is_directory(status)) return false;
    const UniqueFd held = open_directory(path);
    if (::flock(held.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw ConfigError(destination_ + ": another process is exporting to it; wait for that one");
    }
    if (!remove_leftover(path, destination_)) return false;
  }
  if (::mkdir(path.c_str(), 0755) != 0) {
    if (errno == EEXIST) return false;
    throw IoError("create directory", path, errno);
  }
  partial_ = path;
  lock_ = open_directory(path);
  ::flock(lock_.get(), LOCK_EX | LOCK_NB);  // file systems without locks work without one
  note_names(partial_, names_);
  return true;
}

ExportDirectory::~ExportDirectory() {
  if (!published_) remove_written(partial_, names_);
}

// Hard-links the foreign files, so that the destination keeps them, even after a kill.
void ExportDirectory::carry_over(const std::vector<std::string>& foreign) const {
  for (const std::string& name : foreign) {
    const std::string from = destination_ + "/" + name;
    if (name.find('/') != std::string::npos) make_directories(partial_ + "/" + kTemplatesFolder);
    if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, (partial_ + "/" + name).c_str(), 0) == 0)
      continue;
    throw IoError("export: keep", from, errno);
  }
}

void ExportDirectory::publish(const ExportList& written, const ExportContents& before) {
  write_export_list(partial_, written);
  const bool replaces = exists(destination_);
  if (replaces) carry_over(before.foreign);
  sync_directory(partial_);
  std::string replaced = partial_;
  if (!replaces) {
    rename_to(partial_, destination_);
  } else if (::renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, destination_.c_str(),
                         RENAME_EXCHANGE) != 0) {
    // This file system cannot exchange. A kill between the renames leaves the older export aside.
    replaced = destination_ + ".longshore-old";
    rename_to(destination_, replaced);
    try {
      rename_to(partial_, destination_);
    } catch (...) {
      rename_to(replaced, destination_);
      throw;
    }
  }
  published_ = true;
  sync_directory(parent_of(destination_));
  if (replaces && !remove_export(replaced, before.own, before.foreign, destination_)) {
    log_warning(replaced + ": holds files that came or changed while the export was written; " +
                "they stay there");
  }
}

}  // namespace longshore
