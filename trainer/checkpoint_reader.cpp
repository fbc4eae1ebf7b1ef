#include "trainer/checkpoint_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "shard/state_values.h"
#include "trainer/checkpoint_directory.h"

namespace longshore {
namespace {

constexpr Bytes kMaxManifestBytes = kGiB;
constexpr Bytes kElementBytes = sizeof(float);
constexpr int64_t kChunkElements = int64_t{1} << 20;  // 4 MiB

// Where values go: the part of `kind` of a segment's state that begins at `begin`.
void store_values(const StateSpans& state, StateKind kind, int64_t begin,
                  std::span<const float> values) {
  if (kind == StateKind::kMaster) {
    write_values(state, begin, values);
    return;
  }
  const std::span<float> moments = kind == StateKind::kExpAvg ? state.exp_avg : state.exp_avg_sq;
  std::ranges::copy(values, moments.subspan(static_cast<size_t>(begin)).begin());
}

void clear(const StateSpans& state) {
  std::ranges::fill(state.master, 0.0f);
  std::ranges::fill(state.high, uint16_t{0});
  std::ranges::fill(state.low, uint16_t{0});
  std::ranges::fill(state.exp_avg, 0.0f);
  std::ranges::fill(state.exp_avg_sq, 0.0f);
  std::ranges::fill(state.gradient, std::byte{0});
}

bool overlap(ElementRange a, ElementRange b) {
  return a.begin < b.end() && b.begin < a.end();
}

// Calls use(elements before, values) for an F32 tensor, front to back, in bounded memory.
template <typename Use>
void for_each_chunk(const SafetensorsFile& file, const TensorInfo& tensor, Use use) {
  const int64_t elements = tensor.elements();
  std::vector<float> chunk;
  for (int64_t done = 0; done < elements; done += kChunkElements) {
    chunk.resize(static_cast<size_t>(std::min(kChunkElements, elements - done)));
    file.read(tensor, done * kElementBytes, std::as_writable_bytes(std::span(chunk)));
    use(done, std::span<const float>(chunk));
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

std::string indented(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
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

void Checkpoint::add_part(const CheckpointFile& file, const SafetensorsFile& opened,
                          size_t tensor) {
  const CheckpointTensor& listed = file.tensors[tensor];
  const TensorInfo& stored = opened.tensors()[tensor];
  const bool same = stored.name == listed.name && stored.dtype == TensorDType::kF32 &&
                    stored.elements() == listed.range.elements;
  if (!same) {
    fail(file.name, "tensor '" + listed.name + "' is not as the manifest lists it");
  }
  parts_[{listed.parameter, listed.kind}].push_back({listed.range, &opened, &stored, listed.hash});
}

void Checkpoint::check_coverage() const {
  for (const CheckpointParameter& parameter : manifest_.parameters) {
    const int64_t elements = parameter.elements();
    for (const StateKind kind : kStateKinds) {
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
    // A file that cannot be read is damaged too: an older checkpoint may be readable.
    throw CheckpointError(error.what());
  }
}

// One pass over the file: each tensor by itself, so that the damaged one can be named, and all.
void Checkpoint::verify_file(const CheckpointFile& file, const SafetensorsFile& opened) const {
  const std::vector<TensorInfo>& tensors = opened.tensors();
  const Bytes header_bytes = tensors.empty() ? opened.file_bytes() : tensors.front().file_begin;
  std::vector<std::byte> header(static_cast<size_t>(header_bytes));
  read_exact_at(open_for_reading(opened.path()), 0, header);
  Hasher whole;
  whole.update(header);
  for (size_t i = 0; i < tensors.size(); ++i) {
    Hasher own;
    for_each_chunk(opened, tensors[i], [&](int64_t, std::span<const float> values) {
      own.update(bytes_of(values));
      whole.update(bytes_of(values));
    });
    if (own.digest() != file.tensors[i].hash) {
      fail(file.name, "tensor '" + tensors[i].name + "' does not match its checksum");
    }
  }
  if (whole.digest() != file.hash) fail(file.name, "the header does not match its checksum");
}

std::vector<std::string> Checkpoint::mismatches(const ModelSpec& spec) const {
  std::map<std::string, std::vector<int64_t>> stored;
  for (const CheckpointParameter& parameter : manifest_.parameters) {
    stored[parameter.name] = parameter.shape;
  }
  std::vector<std::string> lines;
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (parameter.frozen) continue;
      const auto found = stored.find(parameter.name);
      if (found == stored.end()) {
        lines.push_back("'" + parameter.name + "' is trained now and not in the checkpoint");
        continue;
      }
      if (found->second != parameter.shape) {
        lines.push_back("'" + parameter.name + "' has shape " + format_shape(parameter.shape) +
                        ", in the checkpoint " + format_shape(found->second));
      }
      stored.erase(found);
    }
  }
  for (const auto& [name, shape] : stored) {
    lines.push_back("'" + name + "' is in the checkpoint and not trained now");
  }
  return lines;
}

void Checkpoint::restore(const ShardedModel& model, ShardStore& store) const {
  const std::vector<std::string> problems = mismatches(model.spec);
  if (!problems.empty()) {
    throw CheckpointError(path_ + ": the checkpoint is not of this model:" + indented(problems));
  }
  for (const UnitSpec& unit : model.spec.units) {
    if (unit.has_trainable()) restore_unit(model, unit, store);
  }
}

void Checkpoint::restore_unit(const ShardedModel& model, const UnitSpec& unit,
                              ShardStore& store) const {
  const auto lease = store.state(unit.id);
  for (const Segment segment : kSegments) {
    if (segment != Segment::kFrozen) clear(lease->segment(segment));
  }
  for (const ShardPiece& piece : model.layout(unit.id).pieces(model.rank)) {
    if (piece.segment == Segment::kFrozen) continue;
    const StateSpans state = lease->segment(piece.segment);
    const ParamSpec& parameter = unit.parameters.at(static_cast<size_t>(piece.parameter));
    const ElementRange wanted{piece.parameter_begin, piece.elements};
    for (const StateKind kind : kStateKinds) {
      for (const Part& part : parts(parameter.name, kind)) {
        if (overlap(part.range, wanted)) restore_part(part, kind, piece, state);
      }
    }
  }
}

// Reads the whole stored part, although only an overlap may be wanted: so each byte that is
// applied was checksummed in this very reading.
void Checkpoint::restore_part(const Part& part, StateKind kind, const ShardPiece& piece,
                              const StateSpans& state) const {
  const int64_t piece_end = piece.parameter_begin + piece.elements;
  Hasher hasher;
  for_each_chunk(*part.file, *part.tensor, [&](int64_t done, std::span<const float> values) {
    hasher.update(bytes_of(values));
    const int64_t first = part.range.begin + done;
    const int64_t begin = std::max(first, piece.parameter_begin);
    const int64_t end = std::min(first + static_cast<int64_t>(values.size()), piece_end);
    if (begin >= end) return;
    store_values(
        state, kind, piece.shard_begin + begin - piece.parameter_begin,
        values.subspan(static_cast<size_t>(begin - first), static_cast<size_t>(end - begin)));
  });
  if (hasher.digest() != part.hash) {
    throw CheckpointError(part.file->path() + ": tensor '" + part.tensor->name +
                          "' changed after it was verified");
  }
}

void Checkpoint::read(const std::string& parameter, StateKind kind, int64_t begin,
                      std::span<float> values) const {
  const int64_t end = begin + static_cast<int64_t>(values.size());
  int64_t done = begin;
  for (const Part& part : parts(parameter, kind)) {
    if (part.range.end() <= done || part.range.begin >= end) continue;
    const int64_t part_end = std::min(part.range.end(), end);
    const auto out =
        values.subspan(static_cast<size_t>(done - begin), static_cast<size_t>(part_end - done));
    part.file->read(*part.tensor, (done - part.range.begin) * kElementBytes,
                    std::as_writable_bytes(out));
    done = part_end;
  }
  LONGSHORE_CHECK(done == end) << parameter << " has no elements " << done << " to " << end;
}

const Checkpoint::Parts& Checkpoint::parts(const std::string& parameter, StateKind kind) const {
  const auto found = parts_.find({parameter, kind});
  static const Parts kNone;
  return found == parts_.end() ? kNone : found->second;
}

void Checkpoint::fail(const std::string& file, const std::string& what) const {
  throw CheckpointError(path_ + "/" + file + ": " + what);
}

}  // namespace longshore
