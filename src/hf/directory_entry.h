// Directory entries of a model directory of unknown origin: opened relative to the directory's
// descriptor, without ever leaving it except into the Hugging Face cache. Plain functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace longshore {

// Which symbolic links are followed.
enum class Links : uint8_t {
  kAny,    // for files that we name ourselves: users link config.json or model.safetensors at will
  kCache,  // for names from outside: only to ../../blobs/NAME, or to .../blobs/DIGEST, as the
           // Hugging Face cache makes them
};

// A name without '/', without control characters, not hidden, at most 255 bytes.
bool is_plain_file_name(std::string_view name);

UniqueFd open_directory(const std::string& path);
// A subdirectory; never through a link.
UniqueFd open_subdirectory(const UniqueFd& directory, const std::string& name);

// Opens a regular file; DataError for a link that `links` does not allow and for anything else that
// is not a regular file, IoError otherwise.
UniqueFd open_entry(const UniqueFd& directory, const std::string& name, Links links);

// True for an entry of any kind, a dangling link too.
bool entry_exists(const UniqueFd& directory, const std::string& name);
bool is_directory_entry(const UniqueFd& directory, const std::string& name);

// All names but "." and "..", sorted.
std::vector<std::string> list_entries(const UniqueFd& directory);

// The whole of an open file; DataError where it is longer than `max_bytes`.
std::string read_text(const UniqueFd& fd, Bytes max_bytes);

}  // namespace longshore
