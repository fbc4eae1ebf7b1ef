#include "hf/export_list.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "hf/directory_entry.h"

namespace longshore {
namespace {

constexpr Bytes kMaxListBytes = 16 * kMiB;
constexpr Bytes kChunkBytes = kMiB;

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

OwnFile own_file(const std::string& name, const struct stat& status) {
  return {.name = name,
          .device = status.st_dev,
          .inode = status.st_ino,
          .bytes = status.st_size,
          .changed_ns = status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec};
}

uint64_t hash_of(const UniqueFd& fd) {
  const Bytes bytes = file_bytes(fd);
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(kChunkBytes, bytes)));
  Hasher hasher;
  for (Bytes begin = 0; begin < bytes; begin += kChunkBytes) {
    const auto part =
        std::span(chunk).first(static_cast<size_t>(std::min(kChunkBytes, bytes - begin)));
    read_exact_at(fd, begin, part);
    hasher.update(part);
  }
  return hasher.digest();
}

bool is_unchanged(const std::string& path, const struct stat& status, const ExportedFile& listed) {
  if (status.st_size != listed.bytes) return false;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC), path);
  if (!fd.valid()) return false;  // the writer of a file can read it
  return hash_of(fd) == listed.hash;
}

// Sorts a folder's entries into `contents`; `prefix` is "" or the folder's name with "/".
void add_entries(const std::string& directory, const std::string& prefix, const ExportList& list,
                 ExportContents& contents) {
  for (const std::string& entry : list_entries(open_directory(directory + "/" + prefix))) {
    const std::string name = prefix + entry;
    const std::string path = directory + "/" + name;
    const std::optional<struct stat> status = status_of(path);
    if (!status) continue;
    if (S_ISDIR(status->st_mode) && name == kTemplatesFolder) {
      add_entries(directory, name + "/", list, contents);
      continue;
    }
    if (!S_ISREG(status->st_mode)) {
      (S_ISLNK(status->st_mode) ? contents.foreign : contents.folders).push_back(name);
      continue;
    }
    const auto listed = list.files.find(name);
    const bool own = name == kExportListName ||
                     (listed != list.files.end() && is_unchanged(path, *status, listed->second));
    if (own) {
      contents.own.push_back(own_file(name, *status));
    } else {
      contents.foreign.push_back(name);
    }
  }
}

bool same_file(const std::string& path, const std::string& other) {
  const std::optional<struct stat> a = status_of(path), b = status_of(other);
  return a && b && a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

}  // namespace

void write_export_list(const std::string& directory, const ExportList& list) {
  Json files = Json::object();
  for (const auto& [name, file] : list.files) {
    files[name] = {{"bytes", file.bytes}, {"xxh3", hash_text(file.hash)}};
  }
  Json tensors = Json::object();
  for (const auto& [name, hash] : list.tensors) tensors[name] = hash_text(hash);
  const Json object = {
      {"about", "what longshore wrote here; it replaces these files alone, while unchanged"},
      {"files", std::move(files)},
      {"tensors", std::move(tensors)}};
  write_file_durably(directory + "/" + kExportListName,
                     object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

ExportList read_export_list(const std::string& directory) {
  const std::string path = directory + "/" + kExportListName;
  const std::optional<struct stat> status = status_of(path);
  if (!status || !S_ISREG(status->st_mode)) return {};
  ExportList list;
  try {
    const Json object = read_json_file(path, {.max_bytes = kMaxListBytes});
    for (const auto& [name, file] : object.at("files").items()) {
      const std::optional<uint64_t> hash = parse_hash(file.at("xxh3").get<std::string>());
      if (hash) list.files[name] = {.bytes = file.at("bytes").get<Bytes>(), .hash = *hash};
    }
    const Json tensors = object.value("tensors", Json::object());
    for (const auto& [name, text] : tensors.items()) {
      const std::optional<uint64_t> hash = parse_hash(text.get<std::string>());
      if (hash) list.tensors[name] = *hash;
    }
  } catch (const std::exception&) {
    return {};  // without a list, everything is foreign
  }
  return list;
}

ExportContents read_export_contents(const std::string& directory) {
  ExportContents contents;
  add_entries(directory, "", read_export_list(directory), contents);
  return contents;
}

bool remove_export(const std::string& directory, const std::vector<OwnFile>& own,
                   const std::vector<std::string>& linked, const std::string& elsewhere) {
  for (const OwnFile& file : own) {
    const std::string path = directory + "/" + file.name;
    const std::optional<struct stat> now = status_of(path);
    if (!now || !S_ISREG(now->st_mode)) continue;
    const OwnFile found = own_file(file.name, *now);
    const bool unchanged = found.device == file.device && found.inode == file.inode &&
                           found.bytes == file.bytes && found.changed_ns == file.changed_ns;
    if (unchanged) ::unlink(path.c_str());
  }
  for (const std::string& name : linked) {
    const std::string path = directory + "/" + name;
    if (same_file(path, elsewhere + "/" + name)) ::unlink(path.c_str());
  }
  ::rmdir((directory + "/" + kTemplatesFolder).c_str());
  return ::rmdir(directory.c_str()) == 0 || errno == ENOENT;
}

}  // namespace longshore
