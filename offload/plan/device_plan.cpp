#include "offload/plan/device_plan.h"

#include <algorithm>

#include "offload/staging/gradient_drain.h"

namespace longshore {
namespace {

// An allowance, not yet measured on a GPU: LibTorch's allocator holds more than tensors fill,
// because segments grow by 20 MiB and freed blocks fragment.
constexpr Bytes kGpuScratchBytes = 256 * kMiB;
constexpr Bytes kGpuRoundingShare = 4;  // a quarter of the temporaries
// An estimate: a collective uses at most 16 blocks of threads per communicator, and NCCL takes
// about 9 MiB for each of them and each ring neighbour.
constexpr Bytes kNcclGroupBytes = 160 * kMiB;
// Scores of the next tokens that are there at the same time: the last ones, which the caller may
// still read, the new ones, and a temporary of them.
constexpr int64_t kScoresAtOnce = 3;

bool owns_tied(const ModelSpec& model, UnitId id) {
  for (const UnitSpec& unit : model.units) {
    for (ParamRef ref : unit.tied) {
      if (ref.unit == id) return true;
    }
  }
  return false;
}

class Draft {
 public:
  explicit Draft(const PlanSizes& sizes)
      : sizes_(sizes), inputs_(sizes.inputs()), model_(sizes.model()) {
    plan_.kind = inputs_.device;
    plan_.gradient_buffers = sizes.gradient_buffers();
    plan_.input_slots = sizes.input_slots();
  }

  DevicePlan make(const Machine& machine) {
    add_slots();
    const Bytes gradients = plan_.owned;
    if (sizes_.trains()) add_gradients();
    add_states(gradients);
    add_batches();
    add_carries();
    add_workspace();
    plan_.total = plan_.owned + plan_.workspace;
    add_limit(machine);
    return std::move(plan_);
  }

 private:
  void add_buffer(BufferKey key, Bytes bytes) {
    if (bytes == 0) return;
    plan_.buffers.push_back({key, name_of(key, model_), buffer_bytes(bytes)});
    plan_.owned += buffer_bytes(bytes);
  }

  // Sums the buffers added since `first` into one line, without the bytes of another line.
  void add_line(const std::string& name, const std::string& detail, size_t first,
                Bytes others = 0) {
    Bytes sum = -others;
    for (size_t i = first; i < plan_.buffers.size(); ++i) sum += plan_.buffers[i].bytes;
    if (sum > 0) plan_.lines.push_back({name, detail, sum, true});
  }

  void add_slots() {
    const std::vector<Bytes> slots = sizes_.slots().slot_bytes;
    plan_.slots = static_cast<int32_t>(slots.size());
    for (int32_t i = 0; i < plan_.slots; ++i) {
      add_buffer(DeviceSlot(i), slots[static_cast<size_t>(i)]);
    }
    std::string detail =
        std::to_string(slots.size()) + " x " + format_bytes(buffer_bytes(slots.front()));
    if (inputs_.topology.keeps_gathered()) detail = "every unit, from forward to backward";
    if (inputs_.decode.weights_stay) detail = "every unit, from one token to the next";
    add_line("slots", detail, 0);
  }

  // Plans the states of sequences over the buffers of gradients, which begin at `begin`, and adds
  // what these lack.
  void add_states(Bytes begin) {
    const DecodeUse& decode = inputs_.decode;
    plan_.states = {begin, decode.state_bytes()};
    const size_t first = plan_.buffers.size();
    const Bytes shared = std::min(plan_.owned - begin, buffer_bytes(plan_.states.bytes));
    add_buffer(BufferKind::kSequenceStates, buffer_bytes(plan_.states.bytes) - shared);
    std::string detail = std::to_string(decode.sequences) + " sequences of " +
                         std::to_string(decode.longest) + " tokens";
    if (shared > 0) detail += ", " + format_bytes(shared) + " more in the place of gradients";
    add_line("decoding states", detail, first);
  }

  void add_gradients() {
    const size_t first = plan_.buffers.size();
    Bytes largest = 0;
    for (size_t i = 0; i < model_.units.size(); ++i) {
      if (owns_tied(model_, model_.units[i].id)) continue;
      largest = std::max(largest, sizes_.gradient_bytes(i));
    }
    for (int32_t i = 0; i < plan_.gradient_buffers; ++i) {
      add_buffer(GradientBuffer(i), largest);
    }
    add_line("gradients",
             std::to_string(plan_.gradient_buffers) + " x " + format_bytes(buffer_bytes(largest)) +
                 ", fp32, the largest unit",
             first);
    const size_t waiting = plan_.buffers.size();
    for (size_t i = 0; i < model_.units.size(); ++i) {
      if (!owns_tied(model_, model_.units[i].id)) continue;
      add_buffer({BufferKind::kWaitingGradient, model_.units[i].id}, sizes_.gradient_bytes(i));
    }
    add_line("waiting gradients", "fp32, of owners of tied parameters", waiting);
    const std::vector<FlatLayout>& layouts = sizes_.layouts();
    const size_t scratch = plan_.buffers.size();
    add_buffer(BufferKind::kReduceScratch,
               GradientReducer::planned_scratch_bytes(layouts, inputs_.topology, inputs_.reduce));
    add_line("reduce scratch", "for sums over ranks", scratch);
    const size_t staging = plan_.buffers.size();
    add_buffer(BufferKind::kDrainStaging,
               GradientDrain::planned_staging_bytes(layouts, inputs_.state.drain, inputs_.device));
    add_line("drain staging", "gradients cast for the copy", staging);
  }

  void add_batches() {
    const size_t first = plan_.buffers.size();
    add_buffer(BufferKind::kBatch, sizes_.batch_bytes());
    add_line("batch",
             std::to_string(sizes_.micro_batches()) + " micro-batches of " +
                 std::to_string(sizes_.positions()) + " positions",
             first);
  }

  void add_carries() {
    const size_t first = plan_.buffers.size();
    const int64_t micro_batches = sizes_.micro_batches();
    Bytes largest = 0, largest_inputs = 0, largest_gradient = 0, results = 0;
    for (const UnitSpec& unit : model_.units) {
      largest_gradient = std::max(largest_gradient, sizes_.carry_gradient_bytes(unit));
    }
    const std::vector<SharedInputGroup>& runs = sizes_.runs().all();
    const bool offloaded = plan_.input_slots > 0;
    for (const SharedInputGroup& run : runs) {
      const Bytes bytes = sizes_.run_bytes(run), inputs = sizes_.run_bytes_of_inputs(run);
      largest = std::max(largest, bytes);
      largest_inputs = std::max(largest_inputs, inputs);
      if (offloaded) continue;
      add_buffer({BufferKind::kInput, run.first}, bytes);
      results += buffer_bytes(bytes) - buffer_bytes(inputs);
    }
    for (int32_t i = 0; i < plan_.input_slots; ++i) add_buffer(InputSlot(i), largest);
    results += plan_.input_slots * (buffer_bytes(largest) - buffer_bytes(largest_inputs));
    add_buffer(BufferKind::kResidentInputs, sizes_.resident_bytes());
    const size_t places = offloaded ? static_cast<size_t>(plan_.input_slots) : runs.size();
    const std::string batches = std::to_string(micro_batches) + " micro-batches";
    add_line("activation checkpoints",
             std::to_string(places) + (offloaded ? " slots x " : " units x ") + batches, first,
             results);
    if (results > 0) {
      plan_.lines.push_back(
          {"kept results", "beside activation checkpoints (fsdp.recompute)", results, true});
    }
    const size_t gradient = plan_.buffers.size();
    add_buffer(BufferKind::kOutputGradient, plan_product({micro_batches, largest_gradient}));
    add_line("output gradients", batches, gradient);
  }

  // Returns a bound of what a forward pass takes that decodes: no unit takes more than for whole
  // texts of as many rows, and beside it are the scores of the next token.
  Bytes decoding_workspace(const std::vector<UnitCost>& costs) const {
    const int64_t sequences = inputs_.decode.sequences;
    if (sequences == 0) return 0;
    const int64_t vocabulary = model_.units.front().parameters.front().whole().shape.front();
    const Bytes most = std::ranges::max(costs, {}, &UnitCost::forward).forward;
    return most + plan_product({kScoresAtOnce, sequences, vocabulary, width_of(DType::kF32)});
  }

  void add_workspace() {
    const std::vector<UnitCost> costs = inputs_.costs(sizes_.positions(), inputs_.max_tokens);
    const Workspace workspace = workspace_of(model_, costs, sizes_.kept_graphs());
    const Bytes worst = buffer_bytes(std::max(workspace.worst, decoding_workspace(costs)));
    const Bytes saved = buffer_bytes(plan_product({sizes_.micro_batches(), workspace.saved}));
    plan_.workspace_unit = workspace.unit;
    plan_.workspace_source = workspace.source;
    plan_.workspace = worst + saved;
    if (plan_.kind == DeviceKind::kCuda) {
      const Bytes allowance = buffer_bytes(kGpuScratchBytes + plan_.workspace / kGpuRoundingShare);
      plan_.workspace += allowance;
      plan_.lines.push_back(
          {"allocator", "allowance: the GPU's scratch and rounding", allowance, false});
    }
    const std::string source(name_of(plan_.workspace_source));
    const std::string bound = sizes_.trains() ? ", " : ", as in training: ";
    plan_.lines.push_back({"workspace", source + bound + plan_.workspace_unit, worst, false});
    if (saved > 0) {
      plan_.lines.push_back(
          {"saved graphs",
           source + ", of " + std::to_string(sizes_.kept_graphs()) + " units (fsdp.recompute)",
           saved, false});
    }
  }

  void add_limit(const Machine& machine) {
    plan_.limit_auto = !inputs_.device_cap.has_value();
    Bytes automatic = plan_.total;
    // Without a local GPU the limit is the memory that the plan needs.
    if (plan_.kind == DeviceKind::kCuda && !machine.gpus.empty()) {
      const Bytes memory = machine.gpus.front().memory_bytes;
      automatic = machine.gpu_room.value_or(gpu_room(memory, memory));
      plan_.memory = memory;
    }
    plan_.limit = inputs_.device_cap.value_or(automatic);
  }

  const PlanSizes& sizes_;
  const PlanInputs& inputs_;
  const ModelSpec& model_;
  DevicePlan plan_;
};

}  // namespace

std::vector<OutsideCap> outside_cap(DeviceKind device, const ShardTopology& topology) {
  if (device == DeviceKind::kCpu) return {};
  std::vector<OutsideCap> parts = {{"CUDA's context and loaded kernels", kGpuProcessBytes}};
  const int groups = (topology.shard_ranks > 1 ? 1 : 0) + (topology.replicas() > 1 ? 1 : 0);
  if (groups > 0) parts.push_back({"NCCL's buffers", groups * kNcclGroupBytes});
  return parts;
}

std::string name_of(BufferKey key, const ModelSpec& model) {
  const auto number = [key] { return std::to_string(key.index); };
  const auto unit = [&] { return model.unit(UnitId(key.index)).name; };
  switch (key.kind) {
    case BufferKind::kSlot:
      return "slot." + number();
    case BufferKind::kGradient:
      return "gradient." + number();
    case BufferKind::kWaitingGradient:
      return "waiting_gradient." + unit();
    case BufferKind::kReduceScratch:
      return "reduce_scratch";
    case BufferKind::kDrainStaging:
      return "drain_staging";
    case BufferKind::kBatch:
      return "batch";
    case BufferKind::kInput:
      return "input." + unit();
    case BufferKind::kInputSlot:
      return "input_slot." + number();
    case BufferKind::kResidentInputs:
      return "resident_inputs";
    case BufferKind::kSequenceStates:
      return "sequence_states";
    case BufferKind::kOutputGradient:
      return "output_gradient";
  }
  return "";
}

const PlannedBuffer* DevicePlan::buffer(BufferKey key) const {
  const auto found = std::ranges::find(buffers, key, &PlannedBuffer::key);
  return found == buffers.end() ? nullptr : &*found;
}

DevicePlan plan_device(const PlanSizes& sizes, const Machine& machine) {
  return Draft(sizes).make(machine);
}

}  // namespace longshore
