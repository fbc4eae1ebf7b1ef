#include "offload/engine/probe/unit_probe.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "device/cuda_runtime.h"
#include "offload/engine/batch_stage.h"
#include "offload/engine/engine_device.h"
#include "offload/engine/unit_runner.h"
#include "offload/staging/prefetcher.h"

namespace longshore {
namespace {

// Returns the meter's limit, which must not interfere: the probe only counts.
Bytes limit_of(const ProbeDevice& device) {
  if (device.kind == DeviceKind::kCpu) return Bytes{1} << 50;
  return cuda_devices().at(static_cast<size_t>(device.gpu)).memory_bytes;
}

Bytes rounded(Bytes bytes) {
  return align_up(bytes, kDeviceBufferAlignment);
}

// Returns the larger of value and gradient bytes; the inputs of both units may share a buffer.
Bytes carry_bytes(const ModelSpec& spec, DType compute, int64_t positions) {
  Bytes most = 0;
  for (const UnitSpec& unit : spec.units) {
    most = std::max(most, unit.carry_bytes_per_position(compute, CarryUse::kGradient));
  }
  const SharedInputGroups runs(spec);
  for (const SharedInputGroup& run : runs.all()) {
    most = std::max(most, kept_bytes_per_position(spec, run, compute));
  }
  return rounded(positions * most);
}

// Every unit of a probe has its own slot.
Placed own_slot(UnitId unit) {
  return {unit, DeviceSlot(unit.value)};
}

std::vector<PlannedBuffer> buffers_of(const OneUnitModel& model, DType compute,
                                      int64_t most_positions) {
  const ModelSpec& spec = model.spec();
  const std::vector<FlatLayout> layouts = make_layouts(spec, 1, compute);
  std::vector<PlannedBuffer> buffers;
  const auto add = [&](BufferKey key, Bytes bytes) {
    buffers.push_back({key, name_of(key, spec), rounded(bytes)});
  };
  // The gradients of tied parameters belong to their owner, the stand-in before.
  const bool borrows = !spec.unit(model.probed()).tied.empty();
  Bytes gradient = 0, waiting = 0;
  for (const UnitSpec& unit : spec.units) {
    const FlatLayout& layout = layouts.at(static_cast<size_t>(unit.id.value));
    add(own_slot(unit.id).slot, layout.flat_bytes());
    Bytes& sums = borrows && unit.id.value == 0 ? waiting : gradient;
    sums = std::max(sums, layout.trainable_elements() * 4);
  }
  const Bytes carry = carry_bytes(spec, compute, most_positions);
  for (size_t i = 1; i < spec.units.size(); ++i) {
    add({BufferKind::kInput, spec.units[i].id}, carry);
  }
  add(BufferKind::kOutputGradient, carry);
  add(GradientBuffer(0), gradient);
  add({BufferKind::kWaitingGradient, UnitId(0)}, waiting);
  add(BufferKind::kBatch, BatchStage::bytes_for(1, most_positions, spec.has_dropout()));
  return buffers;
}

Bytes sum_of(const std::vector<PlannedBuffer>& buffers) {
  Bytes sum = 0;
  for (const PlannedBuffer& buffer : buffers) sum += buffer.bytes;
  return sum;
}

// Records the workspace's peak between each two steps of backward during its lifetime. LibTorch
// calls back on the thread that runs the step, which may be its own.
class Phases {
 public:
  explicit Phases(DeviceMemory& memory) : memory_(memory) {
    current() = this;
    memory_.reset_peak();
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&Phases::on_step).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  }
  Phases(const Phases&) = delete;
  Phases& operator=(const Phases&) = delete;
  ~Phases() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  void end_phase() {
    peaks_.push_back(memory_.usage().workspace.tensors_peak);
    memory_.reset_peak();
  }
  std::vector<Bytes> take() { return std::move(peaks_); }

 private:
  static Phases*& current() {
    static Phases* phases = nullptr;
    return phases;
  }
  static std::unique_ptr<at::ObserverContext> on_step(const at::RecordFunction&) {
    if (current() != nullptr) current()->end_phase();
    return nullptr;
  }

  DeviceMemory& memory_;
  at::CallbackHandle handle_ = 0;
  std::vector<Bytes> peaks_;
};

// A micro-batch of these documents; every token is the first of the vocabulary.
struct ZeroBatch {
  ZeroBatch(const std::vector<int64_t>& documents, int64_t trained) {
    for (const int64_t length : documents) {
      for (int64_t i = 0; i < length; ++i) positions.push_back(i);
      starts.push_back(static_cast<int64_t>(positions.size()));
    }
    tokens.assign(positions.size(), 0);
    targets.assign(positions.size(), -100);
    std::fill_n(targets.begin(), std::min<int64_t>(trained, std::ssize(targets)), 0);
  }
  std::vector<int64_t> tokens, positions, targets, starts{0};
};

constexpr JsonLimits kLimits{.max_bytes = kMiB, .max_depth = 8, .max_values = 100'000};
// No measurement is larger.
constexpr int64_t kMost = int64_t{1} << 50;

int64_t number(const Json& json) {
  const auto value = json.get<int64_t>();
  if (value < 0 || value > kMost) throw DataError("a figure out of bounds");
  return value;
}

Json json_of(const ProbeSample& sample) {
  const ProbeInput& input = sample.input;
  return {{"kind", input.kind},
          {"positions", input.positions},
          {"document", input.document},
          {"trained", input.trained},
          {"forward", sample.trace.forward},
          {"saved", sample.trace.saved},
          {"backward", sample.trace.backward},
          {"too_large", sample.trace.too_large}};
}

ProbeSample sample_of(const Json& json) {
  ProbeSample sample;
  sample.input = {.kind = static_cast<int32_t>(number(json.at("kind"))),
                  .positions = number(json.at("positions")),
                  .document = number(json.at("document")),
                  .trained = number(json.at("trained"))};
  sample.trace.forward = number(json.at("forward"));
  sample.trace.saved = number(json.at("saved"));
  sample.trace.too_large = json.at("too_large").get<bool>();
  for (const Json& phase : json.at("backward")) sample.trace.backward.push_back(number(phase));
  return sample;
}

}  // namespace

// The engine's parts that a unit needs.
class UnitProbe::Bench {
 public:
  Bench(const OneUnitModel* model, const ProbeDevice& device, int64_t most_positions)
      : model_(*model),
        buffers_(buffers_of(*model, device.compute, most_positions)),
        device_({.kind = device.kind,
                 .gpu = device.gpu,
                 .collective = false,
                 .cap = limit_of(device),
                 .owned = sum_of(buffers_)},
                std::make_unique<CpuCopyEngine>(LinkSpeeds{})),
        layouts_(make_layouts(model->spec(), 1, device.compute)),
        ring_(make_ring()),
        runner_(make_runner(device.compute)),
        batches_(carve(BufferKind::kBatch), 1, most_positions, {}, &device_.copies(),
                 device_.torch()) {
    device_.memory().check_carved();
    device_.adopt_lane(false);
    for (const UnitSpec& unit : model_.spec().units) {
      const auto& layout = layouts_.at(static_cast<size_t>(unit.id.value));
      ring_.begin_fill(own_slot(unit.id), StateVersion(0), layout.flat_bytes());
      ring_.end_fill(own_slot(unit.id), StateVersion(0));
    }
  }

  ProbeTrace run(const std::vector<int64_t>& documents, int64_t trained) {
    const ZeroBatch zero(documents, trained);
    Batch host(zero.tokens, zero.positions, zero.targets, zero.starts);
    host.trained_tokens = std::min<int64_t>(trained, std::ssize(zero.targets));
    // Keys of zeros take the memory and the time of any others.
    if (model_.spec().has_dropout()) host.columns.get<kDropoutKeyColumn>() = zero.tokens;
    // Weights are always set, because a GPU has a copy of them beside the logits.
    ColumnValues& columns = host.columns;
    columns[kWeightColumn].assign(static_cast<size_t>(host.trained_tokens), 1.0f);
    const UnitTraits traits = model_.code_of(model_.probed()).traits({});
    columns.teacher_tokens = static_cast<size_t>(traits.teacher_tokens);
    for (const ColumnId column : {kTeacherIdColumn, kTeacherLogpColumn}) {
      columns[column].resize(columns.teacher_tokens * columns[kWeightColumn].size());
    }
    const std::span<const MicroBatch> batch = batches_.load({&host, 1});
    const UnitId unit = model_.probed();
    std::vector<UnitLease> leases;
    for (const UnitId needed : units_leased_for(model_.spec().unit(unit))) {
      leases.push_back(ring_.lease(own_slot(needed), StateVersion(0)));
    }
    if (unit.value > 0) {
      runner_.carry().loaded_bytes(unit, 0);
      Carry in = runner_.carry().input(unit, 0, batch.front().position_count());
      for (const UnitTraits::Column& worst : traits.worst_input) {
        in.at(worst.tensor).select(1, worst.column).fill_(worst.value);
      }
    }
    DeviceMemory& memory = device_.memory();
    ProbeTrace trace;
    if (!model_.probes_loss()) {
      runner_.begin_evaluation(batch);
      memory.reset_peak();
      runner_.forward(unit, leases);
      trace.forward = memory.usage().workspace.tensors_peak;
    }
    if (!model_.has_backward()) return trace;
    runner_.begin_step(batch, 1.0);
    Phases phases(memory);
    if (!model_.probes_loss()) {
      const Bytes before = memory.usage().workspace.tensors;
      runner_.forward(unit, leases);
      trace.saved = memory.usage().workspace.tensors - before;
      phases.end_phase();
    }
    const auto& spec = model_.spec().unit(unit);
    runner_.backward(unit, leases,
                     spec.has_trainable() ? std::optional(GradientBuffer(0)) : std::nullopt);
    phases.end_phase();
    device_.finish("a probe of " + spec.name);
    trace.backward = phases.take();
    return trace;
  }

 private:
  std::span<std::byte> carve(BufferKey key) {
    const auto found = std::ranges::find(buffers_, key, &PlannedBuffer::key);
    LONGSHORE_CHECK(found != buffers_.end()) << name_of(key, model_.spec());
    return device_.memory().carve(found->name, found->bytes).bytes;
  }
  StageRing make_ring() {
    std::vector<std::span<std::byte>> slots;
    for (const UnitSpec& unit : model_.spec().units) {
      slots.push_back(carve(own_slot(unit.id).slot));
    }
    return StageRing(std::move(slots));
  }
  UnitRunner make_runner(DType compute) {
    const ModelSpec& spec = model_.spec();
    UnitRunner::Memory memory;
    memory.device = device_.torch();
    for (size_t i = 1; i < spec.units.size(); ++i) {
      memory.carry.inputs.push_back({carve({BufferKind::kInput, spec.units[i].id})});
    }
    memory.carry.gradients = {carve(BufferKind::kOutputGradient)};
    memory.gradients = {carve(GradientBuffer(0))};
    memory.waiting_gradients.assign(spec.units.size(),
                                    carve({BufferKind::kWaitingGradient, UnitId(0)}));
    // All possible graphs are kept: backward's peak is the same, and the graphs' bytes show.
    return UnitRunner(&model_, &layouts_, compute, static_cast<int32_t>(spec.units.size()) - 1,
                      std::move(memory));
  }

  const OneUnitModel& model_;
  std::vector<PlannedBuffer> buffers_;
  EngineDevice device_;
  std::vector<FlatLayout> layouts_;
  StageRing ring_;
  UnitRunner runner_;
  BatchStage batches_;
};

Bytes probe_bytes(const OneUnitModel& model, DType compute, int64_t most_positions) {
  return sum_of(buffers_of(model, compute, most_positions));
}

UnitProbe::UnitProbe(const OneUnitModel* model, const ProbeDevice& device, int64_t most_positions)
    : bench_(std::make_unique<Bench>(model, device, most_positions)),
      keeps_workspaces_(device.kind == DeviceKind::kCpu) {}

UnitProbe::~UnitProbe() = default;

ProbeTrace UnitProbe::run(const std::vector<int64_t>& documents, int64_t trained) {
  if (!std::exchange(keeps_workspaces_, true)) bench_->run(documents, trained);
  return bench_->run(documents, trained);
}

ProbeTrace UnitProbe::run(const ProbeInput& input) {
  std::vector<int64_t> documents(static_cast<size_t>(input.positions / input.document),
                                 input.document);
  const int64_t rest = input.positions % input.document;
  if (rest > 0) documents.push_back(rest);
  return run(documents, input.trained);
}

std::string samples_to_text(const std::string& key, const std::vector<ProbeSample>& samples) {
  Json list = Json::array();
  for (const ProbeSample& sample : samples) list.push_back(json_of(sample));
  const std::string text = list.dump();
  const Json json = {{"key", key}, {"hash", hash_text(hash64(text))}, {"samples", list}};
  return json.dump() + "\n";
}

std::optional<std::vector<ProbeSample>> samples_of_text(const std::string& text,
                                                        const std::string& key) {
  try {
    const Json json = parse_json(text, kLimits, "measured workspace");
    const Json& list = json.at("samples");
    if (json.at("key").get<std::string>() != key || !list.is_array()) return std::nullopt;
    if (json.at("hash").get<std::string>() != hash_text(hash64(list.dump()))) return std::nullopt;
    std::vector<ProbeSample> samples;
    for (const Json& one : list) samples.push_back(sample_of(one));
    return samples;
  } catch (const Error&) {
  } catch (const Json::exception&) {
  }
  return std::nullopt;
}

std::string SampleCache::path_of(const std::string& key) const {
  return directory_ + "/" + hash_text(hash64(key)) + ".json";
}

std::optional<std::vector<ProbeSample>> SampleCache::find(const std::string& key) const {
  if (directory_.empty()) return std::nullopt;
  try {
    return samples_of_text(read_whole_file(path_of(key), kLimits.max_bytes), key);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void SampleCache::keep(const std::string& key, const std::vector<ProbeSample>& samples) const {
  if (directory_.empty()) return;
  try {
    make_own_directory(directory_);  // no link, behind which the files would be another's
    write_file_durably(path_of(key), samples_to_text(key, samples));
  } catch (const Error&) {
    // A full or read-only disk only costs a new probe at the next start.
  }
}

}  // namespace longshore
