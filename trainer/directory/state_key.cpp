#include "trainer/directory/state_key.h"

#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/random.h"

namespace longshore {
namespace {

constexpr size_t kDigits = 32;
constexpr std::string_view kCommitted = "\ncommitted\n";
constexpr Bytes kMaxBytes = 4 * kKiB;

}  // namespace

std::string state_key_path(const std::string& run_directory) {
  return run_directory + "/state_key";
}

std::string text_of(const RunKey& key) {
  return hash_text(key.bits[0]) + hash_text(key.bits[1]);
}

std::optional<RunKey> parse_key(std::string_view text) {
  if (text.size() != kDigits) return std::nullopt;
  const auto first = parse_hash(text.substr(0, kDigits / 2));
  const auto second = parse_hash(text.substr(kDigits / 2));
  if (!first || !second) return std::nullopt;
  return RunKey{{*first, *second}};
}

StateKeyFile read_state_key(const std::string& run_directory) {
  StateKeyFile file;
  const std::string path = state_key_path(run_directory);
  if (!std::filesystem::exists(std::filesystem::symlink_status(path))) return file;
  file.exists = true;
  std::string text;
  try {
    text = read_own_file(path, kMaxBytes);
  } catch (const DataError&) {
    return file;  // the file is too long for a key
  }
  const std::string_view rest = std::string_view(text).substr(std::min(kDigits, text.size()));
  file.committed = rest == kCommitted;
  if (rest == "\n" || rest == kCommitted) file.key = parse_key(text.substr(0, kDigits));
  return file;
}

void write_state_key(const std::string& run_directory, const RunKey& key, bool committed) {
  write_file_durably(state_key_path(run_directory),
                     text_of(key) + (committed ? std::string(kCommitted) : "\n"));
}

RunKey new_key() {
  return {{random_word(), random_word()}};
}

}  // namespace longshore
