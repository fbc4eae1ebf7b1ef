#include "trainer/run/frozen_sums.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolder = "/frozen";
constexpr std::string_view kPrefix = "rank-";
constexpr JsonLimits kLimits{.max_bytes = 256 * kMiB, .max_depth = 4, .max_values = 8'000'000};
constexpr DType kComputeDTypes[] = {DType::kF32, DType::kBF16};

// Returns the files of all ranks; none if there is no such folder.
std::vector<std::string> kept_files(const std::string& run_directory) {
  std::vector<std::string> files;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run_directory + std::string(kFolder), none)) {
    const std::string name = entry.path().filename().string();
    const std::string_view number =
        std::string_view(name).substr(name.starts_with(kPrefix) ? kPrefix.size() : name.size());
    const bool digits = std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
    if (!number.empty() && digits) files.push_back(entry.path().string());
  }
  std::ranges::sort(files);
  return files;
}

std::optional<DType> dtype_of(const Json& name) {
  for (const DType dtype : kComputeDTypes) {
    if (name == name_of(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace

void FrozenSums::load(const std::string& run_directory) {
  for (const std::string& path : kept_files(run_directory)) load_file(path);
}

// The file is a list of parts: [name, begin, elements, dtype, checksum].
void FrozenSums::load_file(const std::string& path) {
  const auto damaged = [&path](const std::string& why) {
    return CheckpointError(path + ": the checksums of the frozen model are damaged (" + why +
                           "); remove the file to go on without them");
  };
  Json parts;
  try {
    parts = parse_json(read_own_file(path, kLimits.max_bytes), kLimits, path);
  } catch (const DataError& error) {
    throw damaged(error.what());
  }
  if (!parts.is_array()) throw damaged("not a list");
  const MutexLock lock(mutex_);
  for (const Json& part : parts) {
    const bool listed = part.is_array() && part.size() == 5 && part[0].is_string() &&
                        part[1].is_number_unsigned() && part[2].is_number_unsigned() &&
                        part[4].is_string();
    const std::optional<DType> dtype = listed ? dtype_of(part[3]) : std::nullopt;
    const std::optional<uint64_t> sum =
        listed ? parse_hash(part[4].get_ref<const std::string&>()) : std::nullopt;
    if (!dtype || !sum) throw damaged("an entry is not a part of a parameter");
    sums_[{part[0].get<std::string>(), part[1].get<int64_t>(), part[2].get<int64_t>(), *dtype}] =
        *sum;
  }
}

void FrozenSums::keep(const std::string& run_directory, Rank rank) {
  Json parts = Json::array();
  {
    const MutexLock lock(mutex_);
    if (!new_) return;
    new_ = false;
    for (const auto& [part, sum] : sums_) {
      const auto& [name, begin, elements, dtype] = part;
      parts.push_back({name, begin, elements, name_of(dtype), hash_text(sum)});
    }
  }
  const std::string folder = run_directory + std::string(kFolder);
  make_own_directory(folder);
  write_file_durably(folder + "/" + std::string(kPrefix) + std::to_string(rank.value),
                     parts.dump() + "\n");
}

void FrozenSums::forget(const std::string& run_directory) {
  for (const std::string& path : kept_files(run_directory)) remove_tree(path);
}

Bytes FrozenSums::read(const std::string& name, int64_t begin, DType compute,
                       std::span<std::byte> out) const {
  const Bytes bytes = files_->read(name, begin, compute, out);
  const auto elements = static_cast<int64_t>(out.size()) / width_of(compute);
  const uint64_t found = hash64(out);
  {
    const MutexLock lock(mutex_);
    const auto [noted, is_new] = sums_.try_emplace({name, begin, elements, compute}, found);
    new_ = new_ || is_new;
    if (noted->second == found) return bytes;
  }
  throw CheckpointError(place_of(name) + ": elements from " + std::to_string(begin) +
                        " have other values than when this run first read them (checksum): the "
                        "file changed, or its drive returns wrong data. Restore the file, and the "
                        "same command resumes from the last checkpoint");
}

}  // namespace longshore
