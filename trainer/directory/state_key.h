// StateKey: <run.dir>/state_key identifies the run on its drives: 128 random bits as 32 hexadecimal
// digits, written before the first state file. A second line, "committed", is added after the first
// commit. Plain functions; rank 0 calls them.
#pragma once

#include <optional>
#include <string>

#include "nvme/commit/manifest.h"

namespace longshore {

std::string state_key_path(const std::string& run_directory);
// Returns 32 hexadecimal digits.
std::string text_of(const RunKey& key);
std::optional<RunKey> parse_key(std::string_view text);

struct StateKeyFile {
  bool exists = false;
  std::optional<RunKey> key;  // empty if the file is missing or damaged
  bool committed = false;
};

StateKeyFile read_state_key(const std::string& run_directory);
void write_state_key(const std::string& run_directory, const RunKey& key, bool committed);
RunKey new_key();

}  // namespace longshore
