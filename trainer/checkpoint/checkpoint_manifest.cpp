#include "trainer/checkpoint/checkpoint_manifest.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/hash.h"
#include "shard/state_format.h"
#include "trainer/checkpoint/json_fields.h"

namespace longshore {
namespace {

constexpr const char* kRegions = "regions";
constexpr std::array<const char*, 2> kMoments = {"first", "second"};           // by Moment
constexpr std::array<const char*, 3> kUses = {"all", "elements", "matrices"};  // by RegionUse
constexpr const char* kUse = "use";
constexpr const char* kWholeMatrices = "whole_matrices";
constexpr std::string_view kFormatName = "longshore-checkpoint";
// The text of a manifest ends in "manifest_xxh3": "0123456789abcdef", a line break and "}".
constexpr std::string_view kHashDigits = "0000000000000000";
constexpr std::string_view kTail = "\"\n}\n";
constexpr JsonLimits kManifestLimits{.max_bytes = kGiB, .max_values = 100'000'000};

size_t hash_position(std::string_view text) {
  return text.size() - kTail.size() - kHashDigits.size();
}

Json parameters_json(const std::vector<CheckpointParameter>& parameters) {
  Json array = Json::array();
  for (const CheckpointParameter& parameter : parameters) {
    array.push_back({{"name", parameter.name}, {"shape", parameter.shape}});
    if (parameter.whole_matrices) array.back()[kWholeMatrices] = true;
  }
  return array;
}

std::vector<CheckpointParameter> parse_parameters(const JsonFields& fields,
                                                  const std::string& path) {
  std::vector<CheckpointParameter> parameters;
  for (const Json& value : fields.array("parameters")) {
    const JsonFields item(value, path + ": parameters");
    CheckpointParameter parameter{item.text("name"), {}, item.has(kWholeMatrices)};
    if (parameter.whole_matrices && item.member(kWholeMatrices) != true) {
      item.fail("'" + parameter.name + "' has another whole_matrices than true");
    }
    int64_t elements = 1;
    for (const Json& dimension : item.array("shape")) {
      const bool whole = is_whole_number(dimension, 1, std::numeric_limits<int64_t>::max());
      const auto product =
          whole ? checked_multiply(elements, dimension.get<int64_t>()) : std::nullopt;
      if (!product) item.fail("the shape of '" + parameter.name + "' is not one");
      elements = *product;
      parameter.shape.push_back(dimension.get<int64_t>());
    }
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

bool has_region(const std::vector<CheckpointRegion>& regions, std::string_view name) {
  return std::ranges::find(regions, name, &CheckpointRegion::name) != regions.end();
}

Json regions_json(const std::vector<CheckpointRegion>& regions) {
  Json array = Json::array();
  for (const CheckpointRegion& region : regions) {
    array.push_back(
        {{"name", region.name}, {"moment", kMoments.at(static_cast<size_t>(region.moment))}});
    if (region.use != RegionUse::kAll) {
      array.back()[kUse] = kUses.at(static_cast<size_t>(region.use));
    }
  }
  return array;
}

std::vector<CheckpointRegion> parse_regions(const JsonFields& fields, const std::string& path) {
  std::vector<CheckpointRegion> regions;
  for (const Json& value : fields.array(kRegions)) {
    const JsonFields item(value, path + ": " + kRegions);
    CheckpointRegion region{item.text("name"), Moment::kFirst};
    if (region.name == kMasterKind || has_region(regions, region.name))
      item.fail("'" + region.name + "' is listed twice");
    const auto moment = std::ranges::find(kMoments, item.text("moment"));
    if (moment == kMoments.end()) item.fail("'" + region.name + "' is of an unknown kind");
    region.moment = static_cast<Moment>(moment - kMoments.begin());
    if (item.has(kUse)) {
      const auto use = std::ranges::find(kUses, item.text(kUse));
      if (use == kUses.end()) item.fail("'" + region.name + "' has an unknown use");
      region.use = static_cast<RegionUse>(use - kUses.begin());
    }
    regions.push_back(std::move(region));
  }
  return regions;
}

// Listed holds the names that entries of files may refer to.
struct Listed {
  std::map<std::string, int64_t, std::less<>> elements;  // by parameter
  const std::vector<CheckpointRegion>* regions;
};

Listed listed_in(const CheckpointManifest& manifest, const std::string& path) {
  Listed listed{{}, &manifest.regions};
  for (const CheckpointParameter& parameter : manifest.parameters) {
    if (!listed.elements.emplace(parameter.name, parameter.elements()).second) {
      throw CheckpointError(path + ": parameter '" + parameter.name + "' is listed twice");
    }
  }
  return listed;
}

std::string parse_kind(const JsonFields& fields, const std::vector<CheckpointRegion>& regions) {
  std::string kind = fields.text("kind");
  const bool known = kind == kMasterKind || has_region(regions, kind);
  if (!known) fields.fail("unknown kind of state '" + kind + "'");
  return kind;
}

CheckpointTensor parse_tensor(const Json& value, const Listed& listed, const std::string& where) {
  const JsonFields fields(value, where);
  CheckpointTensor tensor;
  tensor.name = fields.text("name");
  tensor.parameter = fields.text("parameter");
  tensor.kind = parse_kind(fields, *listed.regions);
  tensor.range = {fields.count("begin"), fields.count("elements")};
  tensor.hash = fields.hash("xxh3");
  const auto parameter = listed.elements.find(tensor.parameter);
  if (parameter == listed.elements.end()) {
    fields.fail("tensor '" + tensor.name + "' is of no listed parameter");
  }
  const int64_t elements = parameter->second;
  if (tensor.range.elements < 1 || tensor.range.begin > elements ||
      tensor.range.elements > elements - tensor.range.begin) {
    fields.fail("tensor '" + tensor.name + "' is outside its parameter of " +
                std::to_string(elements) + " elements");
  }
  return tensor;
}

CheckpointFile parse_file(const Json& value, const Listed& listed, const std::string& path) {
  const JsonFields item(value, path + ": files");
  CheckpointFile file;
  file.name = item.text("name");
  const bool leaves = file.name.find('/') != std::string::npos ||
                      file.name.find('\0') != std::string::npos || file.name.starts_with('.');
  if (file.name.empty() || leaves) item.fail("'" + file.name + "' is not the name of a file");
  file.bytes = item.count("bytes");
  file.hash = item.hash("xxh3");
  for (const Json& tensor : item.array("tensors")) {
    file.tensors.push_back(parse_tensor(tensor, listed, path + ": " + file.name));
  }
  return file;
}

std::vector<CheckpointFile> parse_files(const JsonFields& fields, const Listed& listed,
                                        const std::string& path) {
  std::vector<CheckpointFile> files;
  std::set<std::string> names;
  for (const Json& value : fields.array("files")) {
    files.push_back(parse_file(value, listed, path));
    if (!names.insert(files.back().name).second) {
      fields.fail("file '" + files.back().name + "' is listed twice");
    }
  }
  return files;
}

RunProgress parse_progress(const JsonFields& fields, const std::string& path) {
  RunProgress progress;
  progress.step = Step(fields.count("step", kMostSteps));
  progress.adam_step = fields.count("adam_step", kMostSteps);
  const JsonFields skipped = fields.object("skipped");
  progress.skipped_total = skipped.count("total", kMostSteps);
  progress.skipped_in_row = skipped.count("in_row", kMostSteps);
  read_progress(fields, progress);
  progress.config_text = fields.text("config");
  if (fields.has("start")) {
    progress.start = parse_start_identity(fields.member("start"), path + ": start");
  }
  if (fields.has("router_corrections")) {
    progress.router_corrections =
        read_corrections(fields.text("router_corrections"), "router_corrections");
  }
  return progress;
}

void check_own_hash(const std::string& text, const std::string& path) {
  const bool has_tail = text.size() > kTail.size() + kHashDigits.size() && text.ends_with(kTail);
  if (!has_tail) throw CheckpointError(path + ": the text is cut off or damaged at its end");
  std::string blank = text;
  const size_t position = hash_position(text);
  blank.replace(position, kHashDigits.size(), kHashDigits);
  const auto stored = parse_hash(std::string_view(text).substr(position, kHashDigits.size()));
  if (!stored || *stored != hash64(blank)) {
    throw CheckpointError(path + ": the text does not match its own checksum");
  }
}

}  // namespace

std::vector<CheckpointRegion> checkpoint_regions(std::span<const StateRegion> regions) {
  std::vector<CheckpointRegion> named;
  for (const StateRegion& region : regions) {
    named.push_back({std::string(region.name), region.moment, region.use});
  }
  return named;
}

int64_t CheckpointParameter::elements() const {
  int64_t product = 1;
  for (const int64_t dimension : shape) product *= dimension;
  return product;
}

Bytes CheckpointManifest::file_bytes() const {
  Bytes sum = 0;
  for (const CheckpointFile& file : files) sum += file.bytes;
  return sum;
}

std::string state_tensor_name(const std::string& parameter, std::string_view kind,
                              ElementRange range, int64_t elements) {
  const std::string name = parameter + "." + std::string(kind);
  if (range == ElementRange{0, elements}) return name;
  return name + "[" + std::to_string(range.begin) + ":" + std::to_string(range.end()) + "]";
}

Json to_json(const CheckpointFile& file) {
  Json tensors = Json::array();
  for (const CheckpointTensor& tensor : file.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"parameter", tensor.parameter},
                       {"kind", tensor.kind},
                       {"begin", tensor.range.begin},
                       {"elements", tensor.range.elements},
                       {"xxh3", hash_text(tensor.hash)}});
  }
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"xxh3", hash_text(file.hash)},
          {"tensors", tensors}};
}

CheckpointFile parse_checkpoint_file(const std::string& text, const CheckpointManifest& manifest,
                                     const std::string& where) {
  return parse_file(parse_json(text, kManifestLimits, where), listed_in(manifest, where), where);
}

std::string format_manifest(const CheckpointManifest& manifest) {
  const RunProgress& progress = manifest.progress;
  Json object = {{"format", kFormatName},
                 {"version", kCheckpointVersion},
                 {"step", progress.step.value},
                 {"adam_step", progress.adam_step}};
  object["skipped"] = {{"total", progress.skipped_total}, {"in_row", progress.skipped_in_row}};
  object["seed"] = progress.seed;
  object["sampler"] = sampler_json(progress.data);
  object["model_fingerprint"] = progress.model_fingerprint;
  object["state_format"] = manifest.state_format;
  if (manifest.regions != checkpoint_regions(kDefaultRegions)) {
    object[kRegions] = regions_json(manifest.regions);
  }
  object["config"] = progress.config_text;
  object["start"] = to_json(progress.start);
  if (!progress.router_corrections.empty()) {
    object["router_corrections"] = corrections_text(progress.router_corrections);
  }
  object["parameters"] = parameters_json(manifest.parameters);
  object["files"] = Json::array();
  for (const CheckpointFile& file : manifest.files) object["files"].push_back(to_json(file));
  object["manifest_xxh3"] = kHashDigits;
  std::string text = object.dump(1) + "\n";
  LONGSHORE_CHECK(text.ends_with(kTail));
  return text.replace(hash_position(text), kHashDigits.size(), hash_text(hash64(text)));
}

CheckpointManifest parse_manifest(const std::string& text, const std::string& path) {
  check_own_hash(text, path);
  Json object;
  try {
    object = parse_json(text, kManifestLimits, path);
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
  const JsonFields fields(object, path);
  if (fields.text("format") != kFormatName) fields.fail("this is not a checkpoint's manifest");
  const int64_t version = fields.count("version");
  if (version != kCheckpointVersion) {
    fields.fail("checkpoint version " + std::to_string(version) + "; this program reads version " +
                std::to_string(kCheckpointVersion));
  }
  CheckpointManifest manifest;
  manifest.progress = parse_progress(fields, path);
  manifest.state_format = fields.text("state_format");
  if (!parse_state_format(manifest.state_format)) {
    fields.fail("unknown state format '" + manifest.state_format + "'");
  }
  if (fields.has(kRegions)) manifest.regions = parse_regions(fields, path);
  manifest.parameters = parse_parameters(fields, path);
  manifest.files = parse_files(fields, listed_in(manifest, path), path);
  return manifest;
}

}  // namespace longshore
