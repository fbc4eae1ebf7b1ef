// Files of an untrusted model directory, opened relative to its descriptor. No
// access leaves the directory, except into the Hugging Face cache. Plain functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace longshore {

// The symbolic links that are followed.
enum class Links : uint8_t {
  kAny,    // for names of our own: users link config.json or model.safetensors at will
  kCache,  // for untrusted names: only links to ../../blobs/NAME or .../blobs/DIGEST, as the
           // Hugging Face cache makes them
};

// Returns true for a visible name of at most 255 bytes without '/', '\' and control characters.
bool is_plain_file_name(std::string_view name);

UniqueFd open_directory(const std::string& path);
// Opens a subdirectory, but never through a link.
UniqueFd open_subdirectory(const UniqueFd& directory, const std::string& name);

// Opens a regular file. Throws DataError for a link that `links` forbids and for other kinds of
// files, otherwise IoError.
UniqueFd open_entry(const UniqueFd& directory, const std::string& name, Links links);

// Returns true for an entry of any kind, including a dangling link.
bool entry_exists(const UniqueFd& directory, const std::string& name);
bool is_directory_entry(const UniqueFd& directory, const std::string& name);

// Returns all names except "." and "..", sorted.
std::vector<std::string> list_entries(const UniqueFd& directory);

// Reads a whole open file. Throws DataError if it is longer than `max_bytes`.
std::string read_text(const UniqueFd& fd, Bytes max_bytes);

}  // namespace longshore
