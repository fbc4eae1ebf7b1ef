#include "trainer/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <exception>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "base/texts.h"
#include "hf/safetensors_writer.h"
#include "shard/shard_store.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_moments.h"

namespace longshore {
namespace {

// Elements that are converted together: 4 MiB of fp32.
constexpr int64_t kChunkElements = int64_t{1} << 20;

std::string state_file_name(Rank rank, int32_t ranks) {
  return formatted("state-%05d-of-%05d.safetensors", rank.value, ranks);
}

// Returns the tensors of the rank's file in their write order.
std::vector<CheckpointTensor> state_tensors(const ShardedModel& model,
                                            const StateOptions& options) {
  std::vector<CheckpointTensor> tensors;
  for (const UnitSpec& unit : model.spec.units) {
    const FlatLayout& layout = model.layout(unit.id);
    for (const ShardPiece& piece : layout.trained_pieces(model.rank)) {
      const ParamSpec& parameter = unit.parameters.at(static_cast<size_t>(piece.parameter));
      const ElementRange range{piece.parameter_begin, piece.elements};
      const auto add = [&](std::string_view kind) {
        tensors.push_back(
            {state_tensor_name(parameter.name, kind, range, parameter.whole().elements()),
             parameter.name, std::string(kind), range, 0});
      };
      add(kMasterKind);
      for (const StateRegion& region : options.regions) {
        if (is_kept(region, piece.segment)) add(region.name);
      }
    }
  }
  return tensors;
}

std::vector<SafetensorsWriter::Tensor> declarations(const ShardedModel& model,
                                                    const StateOptions& options,
                                                    const std::vector<CheckpointTensor>& tensors) {
  std::map<std::string, ParamSpec> parameters;
  for (const ParamSpec& parameter : model.spec.whole_parameters()) {
    parameters[parameter.name] = parameter;
  }
  std::vector<SafetensorsWriter::Tensor> declared;
  for (const CheckpointTensor& tensor : tensors) {
    const ParamSpec& parameter = parameters.at(tensor.parameter);
    const bool whole = tensor.range == ElementRange{0, parameter.elements()};
    const std::vector<int64_t> piece_shape = {tensor.range.elements};
    const auto region = std::ranges::find(options.regions, tensor.kind, &StateRegion::name);
    const MomentFormat format =
        region == options.regions.end()
            ? MomentFormat::kF32
            : moment_format(options, segment_of(parameter),
                            static_cast<size_t>(region - options.regions.begin()));
    const std::vector<int64_t> packed_shape = {stored_bytes(format, tensor.range.elements)};
    declared.push_back({tensor.name, stored_dtype(format),
                        has_scales(format) ? packed_shape
                        : whole            ? parameter.shape
                                           : piece_shape});
  }
  return declared;
}

void append_masters(const StateSpans& state, const ShardPiece& piece, SafetensorsWriter& writer,
                    std::vector<float>& chunk) {
  for (int64_t done = 0; done < piece.elements; done += kChunkElements) {
    const int64_t elements = std::min(kChunkElements, piece.elements - done);
    chunk.resize(static_cast<size_t>(elements));
    read_values(state, piece.shard_begin + done, chunk);
    writer.append(bytes_of(std::span<const float>(chunk)));
  }
}

void append_moments(const MomentSpan& moments, const ShardPiece& piece, SafetensorsWriter& writer) {
  std::vector<std::byte> chunk;
  for (int64_t done = 0; done < piece.elements; done += kChunkElements) {
    chunk.clear();
    append_stored(moments, piece.shard_begin + done,
                  std::min(kChunkElements, piece.elements - done), chunk);
    writer.append(chunk);
  }
}

void append_units(const ShardedModel& model, const StateSweep& sweep, SafetensorsWriter& writer) {
  std::vector<float> chunk;
  sweep.each_trained([&](UnitId unit, ShardStore::StateLease& lease) {
    for (const ShardPiece& piece : model.layout(unit).trained_pieces(model.rank)) {
      const StateSpans state = lease.segment(piece.segment);
      append_masters(state, piece, writer, chunk);
      for (const MomentSpan& region : state.regions) {
        if (!region.empty()) append_moments(region, piece, writer);
      }
    }
  });
}

}  // namespace

std::vector<CheckpointParameter> trainable_parameters(const ModelSpec& spec) {
  std::vector<CheckpointParameter> parameters;
  for (const ParamSpec& parameter : spec.whole_parameters()) {
    if (parameter.frozen) continue;
    parameters.push_back({parameter.name, parameter.shape, parameter.whole_matrices});
  }
  return parameters;
}

CheckpointFile write_state_file(const std::string& directory, const ShardedModel& model,
                                const StateSweep& sweep) {
  CheckpointFile file;
  file.name = state_file_name(model.rank, model.layouts.at(0).shard_factor());
  file.tensors = state_tensors(model, sweep.options);
  SafetensorsWriter writer(directory + "/" + file.name,
                           declarations(model, sweep.options, file.tensors),
                           {{"format", "longshore-checkpoint"}});
  append_units(model, sweep, writer);
  const SafetensorsWriter::Result result = writer.finish();
  LONGSHORE_CHECK(result.tensor_hashes.size() == file.tensors.size());
  for (size_t i = 0; i < file.tensors.size(); ++i) file.tensors[i].hash = result.tensor_hashes[i];
  file.bytes = result.file_bytes;
  file.hash = result.file_hash;
  return file;
}

CheckpointWriter::CheckpointWriter(const std::string& folder, Step step)
    : path_(folder + "/" + checkpoint_name(step)), temporary_(path_ + std::string(kWritingSuffix)) {
  make_own_directory(folder);
  remove_tree(temporary_);
  make_own_directory(temporary_);
}

CheckpointWriter::~CheckpointWriter() {
  if (committed_) return;
  try {
    remove_tree(temporary_);
  } catch (const std::exception& error) {
    log_warning(std::string("an unfinished checkpoint stays: ") + error.what());
  }
}

std::string CheckpointWriter::commit(const CheckpointManifest& manifest) {
  LONGSHORE_CHECK(!committed_);
  // The writers synced the files' bytes. Their names must be durable before the manifest.
  sync_directory(temporary_);
  write_file_durably(temporary_ + "/" + kManifestName, format_manifest(manifest));
  move_into_place(temporary_, path_);
  committed_ = true;
  return path_;
}

}  // namespace longshore
