#include "tests/nvme/store_fixture.h"

#include "base/number_formats.h"
#include "nvme/drive/drive.h"
#include "shard/shard_store.h"
#include "tests/fakes/segment_values.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

float value_at(int32_t unit, Segment segment, int64_t step, size_t i) {
  const auto mixed = static_cast<uint32_t>((i + 1) * 2654435761u + 97u * unit +
                                           31u * static_cast<uint32_t>(segment));
  return static_cast<float>(mixed % 100003u) * 1.0009765625f / 7.0f + static_cast<float>(step);
}

std::vector<float> values_at(int32_t unit, Segment segment, int64_t step, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  const int64_t of_step = segment == Segment::kFrozen ? 0 : step;
  for (size_t i = 0; i < values.size(); ++i) values[i] = value_at(unit, segment, of_step, i);
  return values;
}

}  // namespace

ModelSpec model_with_frozen() {
  ModelSpec model = fakes::make_small_model(2, true);
  model.units[1].parameters[1].frozen = true;
  for (ParamSpec& parameter : model.units[2].parameters) parameter.frozen = true;
  return model;
}

ModelSpec tiny_model() {
  ModelSpec model;
  for (int i = 0; i < 2; ++i) {
    UnitSpec unit;
    unit.id = UnitId(i);
    unit.name = "unit." + std::to_string(i);
    unit.parameters = {fakes::make_parameter(unit.name + ".norm", {16}),
                       fakes::make_parameter(unit.name + ".weight", {300, 16})};
    if (i == 0) unit.carry_out = {{16}};
    model.units.push_back(std::move(unit));
  }
  validate_model_spec(model);
  return model;
}

std::vector<StateOptions> all_state_options() {
  std::vector<StateOptions> all;
  for (const StateFormat format : {StateFormat::kFp32, StateFormat::kSplit}) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      all.push_back({format, compute, compute});
    }
  }
  return all;
}

DriveTraffic planned_update(const std::vector<FlatLayout>& layouts,
                            const NvmeStoreOptions& options) {
  DriveTraffic sum;
  for (const FlatLayout& layout : layouts) {
    const NvmeStore::UnitTraffic unit = NvmeStore::traffic_of(layout, options);
    sum += {.read = unit.state_read, .written = unit.state_written};
  }
  return sum;
}

void write_step(ShardStore& store, const std::vector<FlatLayout>& layouts, int32_t unit,
                int64_t step) {
  const auto state = store.state(UnitId(unit));
  for (const Segment segment : kSegments) {
    const FlatLayout& layout = layouts[static_cast<size_t>(unit)];
    const int64_t count = fakes::values_in_shard(layout, segment);
    if (count == 0 || (segment == Segment::kFrozen && step > 0)) continue;
    const StateSpans spans = state->segment(segment);
    fakes::write_segment(spans, layout.compute(), 0, values_at(unit, segment, step, count));
    for (size_t i = 0; i < spans.regions[0].f32().size(); ++i) {
      spans.regions[0].f32()[i] = static_cast<float>(step) + static_cast<float>(i % 13);
      spans.regions[1].f32()[i] = static_cast<float>(step) * 2.0f + static_cast<float>(i % 17);
    }
  }
}

void write_step(ShardStore& store, const std::vector<FlatLayout>& layouts, int64_t step) {
  for (size_t u = 0; u < layouts.size(); ++u) {
    write_step(store, layouts, static_cast<int32_t>(u), step);
  }
}

std::string difference(ShardStore& store, const std::vector<FlatLayout>& layouts, int64_t step) {
  for (size_t u = 0; u < layouts.size(); ++u) {
    const auto unit = static_cast<int32_t>(u);
    const std::string where = "unit " + std::to_string(u) + " at step " + std::to_string(step);
    {
      const auto state = store.state(UnitId(unit));
      for (const Segment segment : kSegments) {
        const int64_t count = fakes::values_in_shard(layouts[u], segment);
        if (count == 0) continue;
        const StateSpans spans = state->segment(segment);
        std::vector<float> expected = values_at(unit, segment, step, count);
        std::vector<float> found(static_cast<size_t>(count));
        fakes::read_segment(spans, layouts[u].compute(), 0, found);
        const bool rounded = segment == Segment::kFrozen && layouts[u].compute() == DType::kBF16;
        for (size_t i = 0; i < found.size(); ++i) {
          if (rounded) expected[i] = bf16_to_float(master_high(expected[i]));
          if (found[i] != expected[i]) return where + ": value " + std::to_string(i);
        }
        for (size_t i = 0; i < spans.regions[0].f32().size(); ++i) {
          if (spans.regions[0].f32()[i] != static_cast<float>(step) + static_cast<float>(i % 13) ||
              spans.regions[1].f32()[i] !=
                  static_cast<float>(step) * 2.0f + static_cast<float>(i % 17)) {
            return where + ": moment " + std::to_string(i);
          }
        }
      }
    }
    const auto lease = store.parameters(UnitId(unit));
    const std::span<const std::byte> bytes = lease->bytes();
    size_t at = 0;
    for (const Segment segment : kSegments) {
      const int64_t count = fakes::values_in_shard(layouts[u], segment);
      for (const float value : values_at(unit, segment, step, count)) {
        const bool same =
            store.options().compute == DType::kF32
                ? reinterpret_cast<const float*>(bytes.data())[at] == value
                : reinterpret_cast<const uint16_t*>(bytes.data())[at] == master_high(value);
        if (!same) return where + ": parameter " + std::to_string(at);
        ++at;
      }
    }
    if (at * static_cast<size_t>(width_of(store.options().compute)) != bytes.size()) {
      return where + ": parameter bytes";
    }
  }
  return {};
}

MakeDrives SimDrives::maker(Work work) {
  return [this, work](const StripeMap& map, std::span<std::byte>) {
    std::vector<std::unique_ptr<Drive>> drives;
    for (int i = 0; i < map.drives(); ++i) {
      const auto index = static_cast<size_t>(i);
      if (media.size() <= index) {
        media.push_back(std::make_unique<SimMedium>(map.file_bytes(i)));
      }
      SimOptions options{.seed = seed + index};
      if (index < injectors.size()) options.inject = injectors[index];
      const auto make_file = [medium = media[index].get(), i, options] {
        return std::make_unique<SimFile>(medium, "sim" + std::to_string(i), options);
      };
      const Bytes chunk_bytes = map.geometry().chunk_bytes;
      if (work == Work::kThreads) {
        drives.push_back(std::make_unique<ThreadDrive>(make_file, chunk_bytes));
      } else {
        drives.push_back(std::make_unique<InlineDrive>(make_file(), chunk_bytes));
      }
    }
    return drives;
  };
}

void SimDrives::lose_power(SimRandom& random) {
  for (auto& medium : media) medium = std::make_unique<SimMedium>(medium->crash(random));
}

NvmeStoreOptions small_store(const StateOptions& state, bool parameters_on_drives, int drives) {
  NvmeStoreOptions options;
  options.state = state;
  options.parameters_on_drives = parameters_on_drives;
  options.run = {{5, 6}};
  options.geometry.chunk_bytes = 4 * kBlockBytes;
  options.geometry.weights = {2, 1, 3};
  options.drives = drives;
  return options;
}

}  // namespace longshore
