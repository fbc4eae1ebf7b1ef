// StateKey: <run.dir>/state_key names the run on its drives: 128 random bits as 32 hexadecimal
// digits, made before the first state file. A second line, "committed", follows once a commit was
// acknowledged there. Plain functions; rank 0 calls them.
#pragma once

#include <optional>
#include <string>

#include "nvme/commit/manifest.h"

namespace longshore {

std::string state_key_path(const std::string& run_directory);
// 32 hexadecimal digits.
std::string text_of(const RunKey& key);
std::optional<RunKey> parse_key(std::string_view text);

struct StateKeyFile {
  bool exists = false;
  std::optional<RunKey> key;  // none where the file is missing or damaged
  bool committed = false;
};

StateKeyFile read_state_key(const std::string& run_directory);
void write_state_key(const std::string& run_directory, const RunKey& key, bool committed);
RunKey new_key();

}  // namespace longshore
