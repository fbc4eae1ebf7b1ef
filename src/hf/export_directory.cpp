#include "hf/export_directory.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/errors.h"
#include "base/file.h"

namespace longshore {
namespace {

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

void rename_to(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) throw IoError("rename to", to, errno);
}

}  // namespace

ExportDirectory::ExportDirectory(std::string destination)
    : destination_(std::move(destination)),
      partial_(destination_ + ".longshore-partial"),
      old_(destination_ + ".longshore-old") {
  if (!exists(destination_) && exists(old_)) rename_to(old_, destination_);
  remove_tree(partial_);
  make_directories(partial_);
}

ExportDirectory::~ExportDirectory() {
  if (published_) return;
  std::error_code ignored;
  std::filesystem::remove_all(partial_, ignored);
}

void ExportDirectory::publish() {
  sync_directory(partial_);
  const std::string parent = std::filesystem::path(destination_).parent_path().string();
  const bool replaces = exists(destination_);
  if (replaces) {
    remove_tree(old_);
    rename_to(destination_, old_);
  }
  try {
    rename_to(partial_, destination_);
  } catch (...) {
    if (replaces) rename_to(old_, destination_);
    throw;
  }
  published_ = true;
  sync_directory(parent);
  if (replaces) remove_tree(old_);
}

}  // namespace longshore
