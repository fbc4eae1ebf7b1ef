#include "hf/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "hf/directory_entry.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kMaxRefBytes = 4096;
constexpr JsonLimits kListLimits = {.max_bytes = 256 * kMiB, .max_depth = 8};

struct HubId {
  std::string owner, name, revision = "main";
};

bool is_part(std::string_view text) {
  const auto allowed = [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '-' || letter == '_' || letter == '.';
  };
  return is_plain_file_name(text) && std::all_of(text.begin(), text.end(), allowed);
}

std::optional<HubId> parse_id(std::string_view text) {
  HubId id;
  const size_t at = text.find('@');
  if (at != std::string_view::npos) id.revision = text.substr(at + 1);
  text = text.substr(0, at);
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  id.owner = text.substr(0, slash);
  id.name = text.substr(slash + 1);
  if (!is_part(id.owner) || !is_part(id.name) || !is_part(id.revision)) return std::nullopt;
  return id;
}

std::string said(const char* value) {
  return value == nullptr ? "" : value;
}

// Returns the commit of a branch or tag; otherwise the revision itself.
std::string commit_of(const fs::path& repository, const std::string& revision) {
  const fs::path ref = repository / "refs" / revision;
  std::error_code ignored;
  if (!fs::is_regular_file(ref, ignored)) return revision;
  std::string commit = read_whole_file(ref.string(), kMaxRefBytes);
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())) != 0) {
    commit.pop_back();
  }
  if (!is_part(commit)) throw DataError(ref.string() + ": names no commit");
  return commit;
}

}  // namespace

bool is_hub_id(std::string_view text) {
  return parse_id(text).has_value();
}

std::string hub_cache_directory() {
  if (const std::string own = said(std::getenv("HF_HUB_CACHE")); !own.empty()) return own;
  if (const std::string home = said(std::getenv("HF_HOME")); !home.empty()) return home + "/hub";
  if (const std::string caches = said(std::getenv("XDG_CACHE_HOME")); !caches.empty()) {
    return caches + "/huggingface/hub";
  }
  return said(std::getenv("HOME")) + "/.cache/huggingface/hub";
}

std::optional<std::string> find_in_hub_cache(std::string_view text, HubKind kind) {
  const std::optional<HubId> id = parse_id(text);
  if (!id) return std::nullopt;
  const std::string folder = kind == HubKind::kModel ? "models--" : "datasets--";
  const fs::path repository =
      fs::path(hub_cache_directory()) / (folder + id->owner + "--" + id->name);
  const fs::path snapshot = repository / "snapshots" / commit_of(repository, id->revision);
  std::error_code ignored;
  if (!fs::is_directory(snapshot, ignored)) return std::nullopt;
  return snapshot.string();
}

std::optional<std::vector<std::string>> listed_in_hub_cache(const std::string& snapshot) {
  const fs::path commit(snapshot);
  const fs::path list =
      commit.parent_path().parent_path() / "trees" / (commit.filename().string() + ".json");
  std::error_code ignored;
  if (!fs::is_regular_file(list, ignored)) return std::nullopt;
  try {
    const Json tree = read_json_file(list.string(), kListLimits);
    if (tree.at("format_version") != 1) return std::nullopt;
    std::vector<std::string> names;
    for (const auto& [name, facts] : tree.at("files").items()) {
      const fs::path path = fs::path(name).lexically_normal();
      if (path.empty() || path.is_absolute() || *path.begin() == "..") return std::nullopt;
      names.push_back(path.string());
    }
    std::sort(names.begin(), names.end());
    return names;
  } catch (const std::exception&) {
    return std::nullopt;  // the caller lists the directory instead
  }
}

std::string fetch_command(std::string_view id, HubKind kind) {
  const size_t at = id.find('@');
  std::string command = "hf download ";
  if (kind == HubKind::kDataset) command += "--repo-type dataset ";
  command += id.substr(0, at);
  if (at != std::string_view::npos) command += " --revision " + std::string(id.substr(at + 1));
  return command;
}

}  // namespace longshore
