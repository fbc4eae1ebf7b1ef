#include "trainer/checkpoint/checkpoint_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/texts.h"
#include "shard/shard_store.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_moments.h"

namespace longshore {
namespace {

constexpr Bytes kMaxManifestBytes = kGiB;
constexpr Bytes kElementBytes = sizeof(float);
constexpr int64_t kChunkElements = int64_t{1} << 20;  // 4 MiB
constexpr const char* kOtherOptimizer =
    "; set the optimizer that the checkpoint is of, or start over with checkpoint.resume = "
    "\"never\"";

void clear(const MomentSpan& moment) {
  std::ranges::fill(moment.values, std::byte{0});
  std::ranges::fill(moment.units, 0.0f);
}

void clear(const StateSpans& state) {
  std::ranges::fill(state.master, 0.0f);
  std::ranges::fill(state.high, uint16_t{0});
  std::ranges::fill(state.low, uint16_t{0});
  for (const MomentSpan& region : state.regions) clear(region);
}

bool overlap(ElementRange a, ElementRange b) {
  return a.begin < b.end() && b.begin < a.end();
}

// Returns the storage format of a tensor's elements. Masters are stored as fp32 moments are.
MomentFormat format_of(const TensorInfo& tensor) {
  return moment_format_of(tensor.dtype).value_or(MomentFormat::kF32);
}

// Calls use(elements before, elements, bytes) for chunks of the tensor's first `elements` elements
// in order. Memory is bounded and chunks start at block boundaries.
template <typename Use>
void for_each_chunk(const SafetensorsFile& file, const TensorInfo& tensor, int64_t elements,
                    Use use) {
  const MomentFormat format = format_of(tensor);
  std::vector<std::byte> chunk;
  for (int64_t done = 0; done < elements; done += kChunkElements) {
    const int64_t count = std::min(kChunkElements, elements - done);
    chunk.resize(static_cast<size_t>(stored_bytes(format, count)));
    file.read(tensor, stored_bytes(format, done), chunk);
    use(done, count, std::span<const std::byte>(chunk));
  }
}

CheckpointManifest read_manifest(const std::string& path) {
  const std::string manifest = path + "/" + kManifestName;
  try {
    return parse_manifest(read_whole_file(manifest, kMaxManifestBytes), manifest);
  } catch (const CheckpointError&) {
    throw;
  } catch (const Error& error) {
    throw CheckpointError(error.what());
  }
}

}  // namespace

Checkpoint Checkpoint::open(const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  checkpoint.manifest_ = read_manifest(path);
  const std::string name = std::filesystem::path(path).filename().string();
  const std::string own_name = checkpoint_name(checkpoint.manifest_.progress.step);
  if (name.starts_with("step-") && name != own_name) {
    checkpoint.fail(kManifestName, "it is the manifest of " + own_name);
  }
  for (const CheckpointParameter& parameter : checkpoint.manifest_.parameters) {
    checkpoint.shapes_.emplace(parameter.name, parameter.shape);
  }
  for (const CheckpointFile& file : checkpoint.manifest_.files) checkpoint.open_file(file);
  for (auto& [key, parts] : checkpoint.parts_) {
    std::ranges::sort(parts, {}, [](const Part& part) { return part.range.begin; });
  }
  checkpoint.check_coverage();
  return checkpoint;
}

void Checkpoint::open_file(const CheckpointFile& file) {
  const std::string path = path_ + "/" + file.name;
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    fail(file.name, errno == ENOENT ? "the file is missing" : std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) fail(file.name, "not a regular file");
  if (status.st_size != file.bytes) {
    fail(file.name, "the file has " + std::to_string(status.st_size) + " bytes, not " +
                        std::to_string(file.bytes) +
                        (status.st_size < file.bytes ? "; it was cut off" : ""));
  }
  try {
    files_.push_back(std::make_unique<SafetensorsFile>(SafetensorsFile::open(path)));
  } catch (const Error& error) {
    throw CheckpointError(error.what());
  }
  const SafetensorsFile& opened = *files_.back();
  if (opened.tensors().size() != file.tensors.size()) {
    fail(file.name, "the file has " + std::to_string(opened.tensors().size()) +
                        " tensors, the manifest lists " + std::to_string(file.tensors.size()));
  }
  for (size_t i = 0; i < file.tensors.size(); ++i) add_part(file, opened, i);
}

// Returns the shape of a stored tensor: the parameter's own shape if the tensor holds all of it.
std::vector<int64_t> Checkpoint::stored_shape(const CheckpointTensor& tensor,
                                              MomentFormat format) const {
  if (has_scales(format)) return {stored_bytes(format, tensor.range.elements)};
  const std::vector<int64_t>& shape = shapes_.at(tensor.parameter);
  int64_t elements = 1;
  for (const int64_t dimension : shape) elements *= dimension;
  if (tensor.range == ElementRange{0, elements}) return shape;
  return {tensor.range.elements};
}

void Checkpoint::add_part(const CheckpointFile& file, const SafetensorsFile& opened,
                          size_t tensor) {
  const CheckpointTensor& listed = file.tensors[tensor];
  const TensorInfo& stored = opened.tensors()[tensor];
  const std::optional<MomentFormat> format = moment_format_of(stored.dtype);
  const bool known = format && (listed.kind != kMasterKind || *format == MomentFormat::kF32) &&
                     (!has_scales(*format) || listed.range.begin % kMomentBlockElements == 0);
  const bool same = stored.name == listed.name && known &&
                    stored.bytes == stored_bytes(*format, listed.range.elements) &&
                    stored.shape == stored_shape(listed, *format);
  if (!same) {
    fail(file.name, "tensor '" + listed.name + "' is not as the manifest lists it");
  }
  parts_[{listed.parameter, listed.kind}].push_back({listed.range, &opened, &stored, listed.hash});
}

void Checkpoint::check_coverage() const {
  for (const CheckpointParameter& parameter : manifest_.parameters) {
    const int64_t elements = parameter.elements();
    std::vector<std::string> kinds = {kMasterKind};
    for (const CheckpointRegion& region : manifest_.regions) {
      if (is_kept(region.use, parameter.whole_matrices)) kinds.push_back(region.name);
    }
    for (const std::string& kind : kinds) {
      int64_t covered = 0;
      for (const Part& part : parts(parameter.name, kind)) {
        if (part.range.begin != covered) break;
        covered = part.range.end();
      }
      const Parts& all = parts(parameter.name, kind);
      const bool tiles = covered == elements && all.back().range.end() == elements;
      if (!tiles) {
        fail(kManifestName, "'" + state_tensor_name(parameter.name, kind, {0, elements}, elements) +
                                "' is not covered exactly once from element " +
                                std::to_string(covered));
      }
    }
  }
}

void Checkpoint::verify(int32_t part, int32_t parts) const {
  try {
    for (size_t i = static_cast<size_t>(part); i < files_.size(); i += static_cast<size_t>(parts)) {
      verify_file(manifest_.files[i], *files_[i]);
    }
  } catch (const IoError& error) {
    // An unreadable file counts as damaged, because an older checkpoint may be readable.
    throw CheckpointError(error.what());
  }
}

// Reads the file once and checks each tensor's checksum, to name a damaged one, and the file's.
void Checkpoint::verify_file(const CheckpointFile& file, const SafetensorsFile& opened) const {
  const std::vector<TensorInfo>& tensors = opened.tensors();
  const Bytes header_bytes = tensors.empty() ? opened.file_bytes() : tensors.front().file_begin;
  std::vector<std::byte> header(static_cast<size_t>(header_bytes));
  read_exact_at(open_for_reading(opened.path()), 0, header);
  Progress progress("checking " + path_ + "/" + file.name, opened.file_bytes());
  Hasher whole;
  whole.update(header);
  for (size_t i = 0; i < tensors.size(); ++i) {
    Hasher own;
    const int64_t elements = file.tensors[i].range.elements;
    for_each_chunk(opened, tensors[i], elements,
                   [&](int64_t, int64_t, std::span<const std::byte> bytes) {
                     own.update(bytes);
                     whole.update(bytes);
                     progress.add(static_cast<Bytes>(bytes.size()));
                   });
    if (own.digest() != file.tensors[i].hash) {
      fail(file.name, "tensor '" + tensors[i].name + "' does not match its checksum");
    }
  }
  if (whole.digest() != file.hash) fail(file.name, "the header does not match its checksum");
}

namespace {

// The ranks of an adapter's matrix, now and stored.
struct Ranks {
  int64_t now = 0, stored = 0;
};

// Returns the ranks if the matrix differs from the stored one in nothing else.
std::optional<Ranks> differ_in_rank(const ParamSpec& parameter, std::vector<int64_t> stored) {
  if (!parameter.adapter || stored.size() < 2 || stored.size() != parameter.shape.size()) return {};
  const bool is_a = parameter.name.ends_with(".lora_A.weight");
  const size_t rank = stored.size() - (is_a ? 2 : 1);
  const Ranks ranks{parameter.shape[rank], stored[rank]};
  stored[rank] = ranks.now;
  return stored == parameter.shape ? std::optional(ranks) : std::nullopt;
}

}  // namespace

std::vector<std::string> Checkpoint::mismatches(const ModelSpec& spec) const {
  std::map<std::string, std::vector<int64_t>> stored;
  for (const CheckpointParameter& parameter : manifest_.parameters) {
    stored[parameter.name] = parameter.shape;
  }
  std::vector<std::string> lines;
  std::optional<Ranks> ranks;  // all matrices of adapters have the same
  for (const ParamSpec& parameter : spec.whole_parameters()) {
    if (parameter.frozen) continue;
    const auto found = stored.find(parameter.name);
    if (found == stored.end()) {
      lines.push_back("'" + parameter.name + "' is trained now and not in the checkpoint");
      continue;
    }
    const auto other = differ_in_rank(parameter, found->second);
    if (found->second != parameter.shape && other) {
      ranks = other;
    } else if (found->second != parameter.shape) {
      lines.push_back("'" + parameter.name + "' has shape " + format_shape(parameter.shape) +
                      ", in the checkpoint " + format_shape(found->second));
    }
    stored.erase(found);
  }
  for (const auto& [name, shape] : stored) {
    lines.push_back("'" + name + "' is in the checkpoint and not trained now");
  }
  if (ranks) {
    lines.insert(lines.begin(), "adapter.r is " + std::to_string(ranks->now) +
                                    ", the checkpoint has " + std::to_string(ranks->stored));
  }
  return lines;
}

void Checkpoint::restore(const ShardedModel& model, const StateSweep& sweep) const {
  const std::vector<std::string> problems = mismatches(model.spec);
  if (!problems.empty()) {
    constexpr size_t kShown = 3;
    const size_t shown = std::min(kShown, problems.size());
    const size_t more = problems.size() - shown;
    throw CheckpointError(path_ + ": the checkpoint is not of this model:\n  " +
                          joined(std::span(problems).first(shown), "\n  ") +
                          (more > 0 ? "\n  and " + std::to_string(more) + " more" : ""));
  }
  check_regions(sweep.options.regions);
  check_matrices(model.spec);
  Progress progress("restoring the checkpoint", model.fp32_bytes(false));
  sweep.each_trained([&](UnitId unit, ShardStore::StateLease& lease) {
    restore_unit(model, model.spec.unit(unit), lease);
    progress.add(model.fp32_bytes(unit, false));
  });
}

void Checkpoint::check_regions(std::span<const StateRegion> regions) const {
  const std::vector<CheckpointRegion> wanted = checkpoint_regions(regions);
  if (manifest_.regions == wanted) return;
  const auto names = [](const std::vector<CheckpointRegion>& of) {
    return joined(of, ", ", [](const CheckpointRegion& region) { return region.name; });
  };
  throw CheckpointError(path_ + ": the checkpoint is of another optimizer: it has " +
                        names(manifest_.regions) + "; this run keeps " + names(wanted) +
                        kOtherOptimizer);
}

void Checkpoint::check_matrices(const ModelSpec& spec) const {
  std::map<std::string_view, bool> whole;
  for (const CheckpointParameter& stored : manifest_.parameters) {
    whole[stored.name] = stored.whole_matrices;
  }
  for (const ParamSpec& parameter : spec.whole_parameters()) {
    if (parameter.frozen || whole.at(parameter.name) == parameter.whole_matrices) continue;
    const auto text = [](bool matrices) { return matrices ? "as whole matrices" : "by elements"; };
    throw CheckpointError(path_ + ": the checkpoint is of another optimizer: '" + parameter.name +
                          "' is updated " + text(!parameter.whole_matrices) + " there, and " +
                          text(parameter.whole_matrices) + " in this run" + kOtherOptimizer);
  }
}

void Checkpoint::restore_unit(const ShardedModel& model, const UnitSpec& unit,
                              ShardStore::StateLease& lease) const {
  for (const Segment segment : kSegments) {
    if (segment != Segment::kFrozen) clear(lease.segment(segment));
  }
  for (const ShardPiece& piece : model.layout(unit.id).trained_pieces(model.rank)) {
    const StateSpans state = lease.segment(piece.segment);
    const ParamSpec& parameter = unit.parameters.at(static_cast<size_t>(piece.parameter));
    const ElementRange wanted{piece.parameter_begin, piece.elements};
    for (const Part& part : parts(parameter.name, kMasterKind)) {
      if (overlap(part.range, wanted)) restore_part(part, {}, piece, state);
    }
    for (size_t region = 0; region < manifest_.regions.size(); ++region) {
      if (state.regions[region].empty()) continue;
      for (const Part& part : parts(parameter.name, manifest_.regions[region].name)) {
        if (overlap(part.range, wanted)) restore_part(part, region, piece, state);
      }
    }
  }
}

// Reads the whole stored part even for a partial overlap, so that the checksum covers the bytes
// that this call applies.
void Checkpoint::restore_part(const Part& part, std::optional<size_t> region,
                              const ShardPiece& piece, const StateSpans& state) const {
  const int64_t piece_end = piece.parameter_begin + piece.elements;
  Hasher hasher;
  for_each_chunk(*part.file, *part.tensor, part.range.elements,
                 [&](int64_t done, int64_t count, std::span<const std::byte> bytes) {
                   hasher.update(bytes);
                   const int64_t first = part.range.begin + done;
                   const ElementRange stored{first, count};
                   const int64_t begin = std::max(first, piece.parameter_begin);
                   const int64_t end = std::min(stored.end(), piece_end);
                   if (begin >= end) return;
                   restore_elements(part, region, stored, bytes, {begin, end - begin}, piece,
                                    state);
                 });
  if (hasher.digest() != part.hash) {
    throw CheckpointError(part.file->path() + ": tensor '" + part.tensor->name +
                          "' changed after it was verified");
  }
}

// `bytes` hold the elements `stored`; `wanted` is their overlap with the piece.
void Checkpoint::restore_elements(const Part& part, std::optional<size_t> region,
                                  ElementRange stored, std::span<const std::byte> bytes,
                                  ElementRange wanted, const ShardPiece& piece,
                                  const StateSpans& state) const {
  const int64_t from = wanted.begin - stored.begin;
  const int64_t to = piece.shard_begin + wanted.begin - piece.parameter_begin;
  if (!region) {
    write_values(state, to,
                 as_span<float>(bytes).subspan(static_cast<size_t>(from),
                                               static_cast<size_t>(wanted.elements)));
    return;
  }
  const StoredMoments moments(format_of(*part.tensor), stored.elements, bytes);
  const MomentSpan& home = state.regions.at(*region);
  // A block of 8-bit moments is quantized as a whole, so all of its elements must be present.
  const bool cut = has_scales(home.format) && wanted.end() % kMomentBlockElements != 0 &&
                   wanted.end() != piece.parameter_begin + piece.elements;
  if (cut || !moments.copy_to(manifest_.regions[*region].moment, from, wanted.elements, home, to)) {
    throw CheckpointError(part.file->path() + ": tensor '" + part.tensor->name +
                          "' ends inside a block of 8-bit moments; resume with another "
                          "offload.state_format");
  }
}

void Checkpoint::read(const std::string& parameter, const std::string& kind, int64_t begin,
                      std::span<float> values) const {
  const auto region = std::ranges::find(manifest_.regions, kind, &CheckpointRegion::name);
  const Moment moment = region == manifest_.regions.end() ? Moment::kFirst : region->moment;
  const int64_t end = begin + static_cast<int64_t>(values.size());
  int64_t done = begin;
  for (const Part& part : parts(parameter, kind)) {
    if (part.range.end() <= done || part.range.begin >= end) continue;
    const int64_t part_end = std::min(part.range.end(), end);
    const auto out =
        values.subspan(static_cast<size_t>(done - begin), static_cast<size_t>(part_end - done));
    read_part(part, moment, done - part.range.begin, out);
    done = part_end;
  }
  LONGSHORE_CHECK(done == end) << parameter << " has no elements " << done << " to " << end;
}

void Checkpoint::read_part(const Part& part, Moment moment, int64_t begin,
                           std::span<float> values) {
  const MomentFormat format = format_of(*part.tensor);
  if (format == MomentFormat::kF32) {
    part.file->read(*part.tensor, begin * kElementBytes, std::as_writable_bytes(values));
    return;
  }
  // Blocks are read whole.
  const int64_t first = begin / kMomentBlockElements * kMomentBlockElements;
  const int64_t last =
      std::min(part.range.elements,
               align_up(begin + static_cast<int64_t>(values.size()), kMomentBlockElements));
  const Bytes from = stored_bytes(format, first);
  std::vector<std::byte> bytes(static_cast<size_t>(stored_bytes(format, last) - from));
  part.file->read(*part.tensor, from, bytes);
  StoredMoments(format, last - first, bytes).read(moment, begin - first, values);
}

const Checkpoint::Parts& Checkpoint::parts(const std::string& parameter,
                                           const std::string& kind) const {
  const auto found = parts_.find({parameter, kind});
  static const Parts kNone;
  return found == parts_.end() ? kNone : found->second;
}

void Checkpoint::fail(const std::string& file, const std::string& what) const {
  throw CheckpointError(path_ + "/" + file + ": " + what);
}

}  // namespace longshore
