#include "hf/exporter.h"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/number_formats.h"
#include "base/texts.h"
#include "hf/export_directory.h"
#include "hf/export_plan.h"
#include "hf/json_members.h"
#include "hf/tensor_dtype.h"
#include "hf/weight_index.h"
#include "hf/weight_loader.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChunkElements = int64_t{1} << 18;

struct Place {
  fs::path path;  // absolute, as the user named it
  fs::path canonical;
  bool is_link = false;
};

// Resolves `destination`. Refuses the model's own directory and paths inside it.
Place place_of(const std::string& destination, const std::string& source) {
  std::error_code error;
  fs::path path = fs::absolute(destination, error).lexically_normal();
  if (error) throw IoError("resolve", destination, error.value());
  if (!path.has_filename()) path = path.parent_path();
  const bool link = fs::is_symlink(fs::symlink_status(path, error));
  const fs::path canonical = fs::weakly_canonical(path, error);
  if (error) throw IoError("resolve", destination, error.value());
  if (!canonical.has_relative_path()) {
    throw ConfigError(destination + ": an export needs a directory of its own");
  }
  const fs::path base = fs::canonical(source, error);
  const fs::path inside = canonical.lexically_relative(base);
  if (!error && !inside.empty() && *inside.begin() != "..") {
    throw ConfigError(canonical.string() + (inside == "." ? ": is" : ": lies in") +
                      " the model that the run began with; name another");
  }
  return {path, canonical, link};
}

// Returns an absolute path. Refuses a link at its end, because the user did not name its target.
fs::path resolved(const std::string& destination, const std::string& source) {
  const Place place = place_of(destination, source);
  if (place.is_link) {
    throw ConfigError(place.path.string() + ": is a symbolic link to " + place.canonical.string() +
                      "; name the directory itself, or another");
  }
  return place.canonical;
}

// A user's own documentation stays, even if the export has a file of the same name.
bool is_about_the_model(std::string_view name) {
  return name.ends_with(".md") || name.starts_with("LICENSE") || name.starts_with("NOTICE");
}

constexpr const char* kCardName = "README.md";
constexpr const char* kBaseCardName = "BASE_README.md";

// Returns the name in the export of a source file.
std::string name_of_copy(const std::string& name, const ExportPlan& plan) {
  return name == kCardName && !plan.card.empty() ? kBaseCardName : name;
}

// Returns the object with this value of the member.
std::string with_number(std::string object, const char* key, const std::string& number) {
  const std::optional<TextRange> value = member_value(object, key);
  if (!value) return with_member(object, key, number);
  return object.replace(value->begin, value->end - value->begin, number);
}

// Returns a config.json with this vocab_size, at the top and in text_config. If neither has the
// key, the object that describes the text gets it.
std::string with_vocabulary(std::string text, int64_t vocabulary) {
  constexpr const char* kKey = "vocab_size";
  const std::string number = std::to_string(vocabulary);
  const bool own = member_value(text, kKey).has_value();
  const std::optional<TextRange> inner = member_value(text, "text_config");
  if (inner && text[inner->begin] == '{') {
    const std::string described = text.substr(inner->begin, inner->end - inner->begin);
    if (!own || member_value(described, kKey)) {
      text.replace(inner->begin, described.size(), with_number(described, kKey, number));
    }
    if (!own) return text;
  }
  return with_number(text, kKey, number);
}

// Returns the source's files that the export copies, with small edits at most.
std::vector<std::string> copied_files(const ModelDirectory& source, const ExportPlan& plan) {
  std::vector<std::string> names;
  for (const std::string& name : source.companion_files()) {
    if (!plan.texts.contains(name) && !plan.left_out.contains(name)) names.push_back(name);
  }
  return names;
}

std::vector<std::string> names_of(const ModelDirectory& source, const ExportPlan& plan) {
  std::vector<std::string> names;
  for (const std::string& name : copied_files(source, plan)) {
    names.push_back(name_of_copy(name, plan));
  }
  for (const auto& [name, text] : plan.texts) names.push_back(name);
  if (!plan.card.empty()) names.emplace_back(kCardName);
  for (const ExportFile& file : plan.files) names.push_back(file.name);
  if (!plan.index_text.empty()) names.emplace_back(kWeightIndexName);
  return names;
}

// Checks that an export can go to `path` without touching foreign files, and that none of those
// would be loaded in its place. Returns the content of `path`.
ExportContents contents_for(const fs::path& path, const std::vector<std::string>& names) {
  if (!fs::exists(path)) return {};
  if (!fs::is_directory(path)) {
    throw ConfigError(path.string() + ": exists and is not a directory; name another");
  }
  ExportContents contents = read_export_contents(path.string());
  if (!contents.folders.empty()) {
    throw ConfigError(path.string() + ": holds " + printable(contents.folders.front()) +
                      ", which no export writes; name another directory, or move it away");
  }
  for (const std::string& name : contents.foreign) {
    if (is_about_the_model(name) || std::ranges::count(names, name) == 0) continue;
    throw ConfigError((path / name).string() +
                      ": was not written by an export, or changed since; name another directory, "
                      "or move the file away");
  }
  for (const std::string& name : contents.foreign) {
    if (!is_loaded_as_weights(name)) continue;
    throw ConfigError((path / name).string() +
                      ": other weights, which programs may load in place of the export's; name "
                      "another directory, or move the file away");
  }
  return contents;
}

class ExportJob {
 public:
  ExportJob(const ModelDirectory& source, const ExportPlan& plan,
            const ParameterReader& read_parameter, bool allow_nonfinite,
            const std::string& directory)
      : source_(source),
        plan_(plan),
        read_parameter_(read_parameter),
        allow_nonfinite_(allow_nonfinite),
        directory_(directory) {}

  // `kept` lists the foreign files that stay.
  void write(const std::vector<std::string>& kept) {
    // Names are in order, so a README.md comes after an earlier model's BASE_README.md.
    for (const std::string& name : copied_files(source_, plan_)) {
      const std::string copy = name_of_copy(name, plan_);
      if (std::ranges::count(kept, copy) == 0) write_companion(name, copy);
    }
    for (const auto& [name, text] : plan_.texts) {
      make_folder_of(name);
      write_text(name, text);
    }
    if (!plan_.card.empty() && std::ranges::count(kept, kCardName) == 0) {
      write_text(kCardName, plan_.card);
    }
    for (const ExportFile& file : plan_.files) write_weights(file);
    if (!plan_.index_text.empty()) {
      write_text(std::string(kWeightIndexName), plan_.index_text);
    }
    if (fs::exists(path_of(kTemplatesFolder))) sync_directory(path_of(kTemplatesFolder));
  }

  // Reads everything back from the disk and compares.
  ExportResult verify() const {
    for (const auto& [name, hash] : file_hashes_) drop_from_page_cache(path_of(name));
    // Reading it as a model also checks its index and configuration.
    if (!plan_.adapter) ModelDirectory::open(directory_);
    ExportResult result;
    result.packed = packed_;
    Progress progress("reading the export back", written_bytes());
    for (const ExportFile& file : plan_.files) {
      const SafetensorsFile written = SafetensorsFile::open(path_of(file.name));
      for (const ExportTensor& tensor : file.tensors) {
        progress.add(verify_tensor(written, file, tensor));
      }
      result.tensors += static_cast<int64_t>(file.tensors.size());
    }
    for (const auto& [name, hash] : file_hashes_) {
      const UniqueFd fd = open_for_reading(path_of(name));
      result.files.push_back(name);
      result.bytes += file_bytes(fd);
      // Weight files were compared by tensor and have no bytes outside of header and tensors.
      if (!weight_files_.contains(name) && hash_file(fd) != hash) {
        fail(name, "read back with another checksum");
      }
    }
    return result;
  }

  ExportList list() const {
    ExportList list{.files = {}, .tensors = tensor_hashes_};
    for (const auto& [name, hash] : file_hashes_) {
      list.files[name] = {.bytes = file_bytes(open_for_reading(path_of(name))), .hash = hash};
    }
    return list;
  }

 private:
  std::string path_of(const std::string& name) const { return directory_ + "/" + name; }
  Bytes written_bytes() const {
    Bytes bytes = 0;
    for (const auto& [name, hash] : file_hashes_) {
      bytes += file_bytes(open_for_reading(path_of(name)));
    }
    return bytes;
  }
  [[noreturn]] void fail(const std::string& where, const std::string& what) const {
    throw IoError("export to " + directory_ + ": " + where + ": " + what +
                  "; the disk or the memory is faulty");
  }

  void write_text(const std::string& name, const std::string& text) {
    const UniqueFd fd = create_file(path_of(name));
    write_all(fd, text);
    sync_file(fd);
    file_hashes_[name] = hash64(text);
  }

  void make_folder_of(const std::string& name) const {
    if (name.find('/') != std::string::npos) make_directories(path_of(kTemplatesFolder));
  }

  void write_companion(const std::string& name, const std::string& copy) {
    if (name == "config.json" && (plan_.config_dtype || plan_.unquantised || plan_.vocabulary)) {
      std::string text = source_.config_text();
      if (plan_.unquantised) text = without_member(text, "quantization_config");
      if (plan_.vocabulary) text = with_vocabulary(text, *plan_.vocabulary);
      write_text(name, plan_.config_dtype ? with_config_dtype(text, *plan_.config_dtype) : text);
      return;
    }
    make_folder_of(name);
    if (const std::string* text = source_.companion_text(name)) {
      write_text(copy, *text);
      return;
    }
    const UniqueFd from = source_.open_companion(name);
    const UniqueFd to = create_file(path_of(copy));
    Hasher hasher;
    read_in_pieces(from, [&](std::span<const std::byte> chunk) {
      hasher.update(chunk);
      write_all(to, chunk);
    });
    sync_file(to);
    file_hashes_[copy] = hasher.digest();
  }

  static uint64_t hash_file(const UniqueFd& fd) {
    Hasher hasher;
    read_in_pieces(fd, [&hasher](std::span<const std::byte> chunk) { hasher.update(chunk); });
    return hasher.digest();
  }

  // Evicts the file so that it is read back from the disk; best effort.
  static void drop_from_page_cache(const std::string& path) {
    const UniqueFd fd = open_for_reading(path);
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }

  void write_weights(const ExportFile& file) {
    std::vector<SafetensorsWriter::Tensor> declared;
    declared.reserve(file.tensors.size());
    for (const ExportTensor& tensor : file.tensors) declared.push_back(tensor.target);
    SafetensorsWriter writer(path_of(file.name), declared, file.metadata);
    for (const ExportTensor& tensor : file.tensors) {
      write_tensor(tensor, writer);
    }
    const SafetensorsWriter::Result result = writer.finish();
    for (size_t i = 0; i < file.tensors.size(); ++i) {
      tensor_hashes_[file.tensors[i].target.name] = result.tensor_hashes[i];
    }
    file_hashes_[file.name] = result.file_hash;
    weight_files_.insert(file.name);
  }

  void write_tensor(const ExportTensor& tensor, SafetensorsWriter& writer) {
    switch (tensor.values) {
      case ExportTensor::Values::kSourceBytes:
        return copy_bytes(tensor, writer);
      case ExportTensor::Values::kReader:
      case ExportTensor::Values::kSource:
        return write_values(tensor, writer);
      case ExportTensor::Values::kCodes:
        return write_codes(tensor, writer);
      case ExportTensor::Values::kScales:
        return write_scales(tensor, writer);
    }
  }

  RepackedTensor repacked(const ExportTensor& tensor) const {
    const auto read = [this, name = tensor.parameter](int64_t begin, std::span<float> out) {
      read_parameter_(name, begin, out);
    };
    return {*tensor.stored.packed, read, plan_.power_scales};
  }

  // Keeps the scales until their tensor is written.
  void write_codes(const ExportTensor& tensor, SafetensorsWriter& writer) {
    RepackedTensor packed = repacked(tensor);
    std::vector<std::byte> scales =
        packed.pack([&writer](std::span<const std::byte> bytes) { writer.append(bytes); });
    packed_.push_back({tensor.parameter, packed.change()});
    if (scales_written_.erase(tensor.parameter) == 0) {
      scales_[tensor.parameter] = std::move(scales);
    }
  }

  void write_scales(const ExportTensor& tensor, SafetensorsWriter& writer) {
    const auto kept = scales_.find(tensor.parameter);
    if (kept == scales_.end()) {
      writer.append(repacked(tensor).pack([](std::span<const std::byte>) {}));
      scales_written_.insert(tensor.parameter);
      return;
    }
    writer.append(kept->second);
    scales_.erase(kept);
  }

  static void copy_bytes(const ExportTensor& tensor, SafetensorsWriter& writer) {
    tensor.stored.file->file.read_in_pieces(
        *tensor.stored.tensor,
        [&writer](std::span<const std::byte> piece) { writer.append(piece); });
  }

  void write_values(const ExportTensor& tensor, SafetensorsWriter& writer) const {
    int64_t elements = 1;
    for (const int64_t dimension : tensor.target.shape) elements *= dimension;
    std::vector<float> chunk(static_cast<size_t>(std::min(kChunkElements, elements)));
    std::vector<uint16_t> narrow;
    for (int64_t begin = 0; begin < elements; begin += kChunkElements) {
      const auto part =
          std::span(chunk).first(static_cast<size_t>(std::min(kChunkElements, elements - begin)));
      if (tensor.values == ExportTensor::Values::kReader) {
        read_parameter_(tensor.parameter, begin, part);
      } else {
        read_elements(tensor.stored, begin, part);
      }
      check_finite(tensor.target.name, begin, part);
      append_converted(tensor.target, part, narrow, writer);
    }
  }

  // A diverged model must not be mistaken for a trained one.
  void check_finite(const std::string& name, int64_t begin, std::span<const float> values) const {
    if (allow_nonfinite_) return;
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i])) continue;
      throw DataError("export: tensor '" + printable(name) + "' holds " +
                      std::to_string(values[i]) + " (element " +
                      std::to_string(begin + static_cast<int64_t>(i)) +
                      "); longshore export with --allow-nonfinite writes it anyway");
    }
  }

  static void append_converted(const SafetensorsWriter::Tensor& target,
                               std::span<const float> values, std::vector<uint16_t>& narrow,
                               SafetensorsWriter& writer) {
    narrow.resize(target.dtype == TensorDType::kF32 ? 0 : values.size());
    if (target.dtype == TensorDType::kF32) {
      writer.append(std::as_bytes(values));
      return;
    }
    if (target.dtype == TensorDType::kBF16) {
      std::transform(values.begin(), values.end(), narrow.begin(), float_to_bf16_nearest);
    } else {
      std::transform(values.begin(), values.end(), narrow.begin(),
                     [&target](float value) { return checked_fp16(value, target.name); });
    }
    writer.append(std::as_bytes(std::span<const uint16_t>(narrow)));
  }

  // A finite value must not silently become infinite.
  static uint16_t checked_fp16(float value, const std::string& name) {
    const uint16_t bits = float_to_fp16_nearest(value);
    if ((bits & 0x7FFF) == 0x7C00 && std::isfinite(value)) {
      throw DataError("export: tensor '" + name + "' holds " + std::to_string(value) +
                      ", too large for F16; export it as fp32");
    }
    return bits;
  }

  // Returns the tensor's bytes.
  Bytes verify_tensor(const SafetensorsFile& written, const ExportFile& file,
                      const ExportTensor& tensor) const {
    const std::string where = file.name + ": tensor '" + tensor.target.name + "'";
    const TensorInfo* const found = written.find(tensor.target.name);
    if (found == nullptr || found->dtype != tensor.target.dtype ||
        found->shape != tensor.target.shape) {
      fail(where, "read back with another header");
    }
    if (written.hash(*found) != tensor_hashes_.at(tensor.target.name)) {
      fail(where, "read back with another checksum");
    }
    return found->bytes;
  }

  const ModelDirectory& source_;
  const ExportPlan& plan_;
  const ParameterReader& read_parameter_;
  const bool allow_nonfinite_;
  const std::string& directory_;
  std::map<std::string, uint64_t> tensor_hashes_;
  std::map<std::string, uint64_t> file_hashes_;  // every written file
  std::set<std::string> weight_files_;
  std::vector<PackedParameter> packed_;                   // in the order of the codes
  std::map<std::string, std::vector<std::byte>> scales_;  // to write, by parameter
  std::set<std::string> scales_written_;                  // whose codes are not written yet
};

void check_free_space(const std::string& directory, Bytes needed) {
  std::error_code error;
  const fs::space_info space = fs::space(directory, error);
  if (error) throw IoError("read the free space of", directory, error.value());
  const auto available = static_cast<Bytes>(space.available);
  if (needed <= available) return;
  throw IoError("export to " + directory + ": needs " + format_bytes(needed) + ", " +
                format_bytes(available) + " are free on its disk, " +
                format_bytes(needed - available) + " are missing");
}

Bytes bytes_to_write(const ModelDirectory& source, const ExportPlan& plan) {
  Bytes bytes = plan.tensor_bytes + static_cast<Bytes>(plan.card.size());
  for (const auto& [name, text] : plan.texts) bytes += static_cast<Bytes>(text.size());
  for (const std::string& name : copied_files(source, plan)) {
    const std::string* const text = source.companion_text(name);
    bytes += text != nullptr ? static_cast<Bytes>(text->size())
                             : file_bytes(source.open_companion(name));
  }
  return bytes;
}

}  // namespace

void check_export_place(const ModelDirectory& source, const std::string& destination) {
  place_of(destination, source.path());
}

void check_export_destination(const ModelDirectory& source, const ModelSpec& spec,
                              const std::string& destination, const ExportOptions& options) {
  const fs::path path = resolved(destination, source.path());
  try {
    contents_for(path, names_of(source, plan_export(source, spec, options)));
  } catch (const fs::filesystem_error& error) {
    throw IoError("read", path.string(), error.code().value());
  }
}

ExportResult export_model(const ModelDirectory& source, const ModelSpec& spec,
                          const std::string& destination, const ParameterReader& read_parameter,
                          const ExportOptions& options) {
  const fs::path target = resolved(destination, source.path());
  const ExportPlan plan = plan_export(source, spec, options);
  const std::vector<std::string> names = names_of(source, plan);
  ExportDirectory directory(target.string(), names);
  const ExportContents before = contents_for(target, names);
  check_free_space(directory.path(), bytes_to_write(source, plan));
  ExportJob job(source, plan, read_parameter, options.allow_nonfinite, directory.path());
  job.write(before.foreign);
  ExportResult result = job.verify();
  options.before_publish();
  directory.publish(job.list(), before);
  result.path = target.string();
  return result;
}

}  // namespace longshore
