// ExportList: which files of a directory an export wrote, with their hashes, kept beside them in
// .longshore-export.json. Only what is listed and unchanged belongs to this program: everything
// else in an export's directory is somebody's, and is never replaced or removed. Plain functions.
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
  // By name; files of the directory for chat templates as "additional_chat_templates/NAME".
  std::map<std::string, ExportedFile> files;
  std::map<std::string, uint64_t> tensors;  // xxh3 of each tensor's bytes, by name
};

inline constexpr const char* kExportListName = ".longshore-export.json";
inline constexpr const char* kTemplatesFolder = "additional_chat_templates";

void write_export_list(const std::string& directory, const ExportList& list);
// Empty where there is none, or none that can be read.
ExportList read_export_list(const std::string& directory);

// A file of ours as it was found; it is removed only while it still looks like this.
struct OwnFile {
  std::string name;
  uint64_t device = 0;
  uint64_t inode = 0;
  Bytes bytes = 0;
  int64_t changed_ns = 0;
};

struct ExportContents {
  std::vector<OwnFile> own;          // listed, with the bytes that were listed; and the list
  std::vector<std::string> foreign;  // other files and links
  std::vector<std::string> folders;  // folders and special files that no export writes
};

// Reads and hashes every listed file; nothing is followed. `directory` must be a directory.
ExportContents read_export_contents(const std::string& directory);

// Removes those of `own` that are unchanged, those of `linked` that are the same file as in
// `elsewhere`, and then the directory, if nothing else is left in it. Whether it is gone.
bool remove_export(const std::string& directory, const std::vector<OwnFile>& own,
                   const std::vector<std::string>& linked, const std::string& elsewhere);

}  // namespace longshore
