// ExportList: the files that an export wrote, with their hashes, stored beside them in
// .longshore-export.json. Only listed and unchanged files belong to this program. Everything else
// in the directory is foreign and is never replaced or removed. Plain functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace longshore {

struct ExportedFile {
  Bytes bytes = 0;
  uint64_t hash = 0;  // xxh3 of the whole file
};

struct ExportList {
  // By name; chat templates of the subdirectory are "additional_chat_templates/NAME".
  std::map<std::string, ExportedFile> files;
  std::map<std::string, uint64_t> tensors;  // xxh3 of each tensor's bytes, by name
};

inline constexpr const char* kExportListName = ".longshore-export.json";
inline constexpr const char* kTemplatesFolder = "additional_chat_templates";

void write_export_list(const std::string& directory, const ExportList& list);
// Returns an empty list if the file is missing or unreadable.
ExportList read_export_list(const std::string& directory);

// An exported file at the time of the check; it is removed only if it is still the same.
struct OwnFile {
  std::string name;
  uint64_t device = 0;
  uint64_t inode = 0;
  Bytes bytes = 0;
  int64_t changed_ns = 0;
};

struct ExportContents {
  std::vector<OwnFile> own;          // listed files with unchanged bytes, and the list itself
  std::vector<std::string> foreign;  // other files and links
  std::vector<std::string> folders;  // folders and special files, which no export writes
};

// Reads and hashes every listed file without following links. `directory` must be a directory.
ExportContents read_export_contents(const std::string& directory);

// Removes unchanged files of `own`, files of `linked` that are the same file as in `elsewhere`, and
// then the directory if it is empty. Returns whether the directory is gone.
bool remove_export(const std::string& directory, const std::vector<OwnFile>& own,
                   const std::vector<std::string>& linked, const std::string& elsewhere);

}  // namespace longshore
