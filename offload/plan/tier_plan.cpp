#include "offload/plan/tier_plan.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <numeric>

#include "base/errors.h"
#include "device/device_memory.h"
#include "offload/optimizer/update_traffic.h"
#include "offload/schedule/schedule_validator.h"
#include "offload/staging/grad_drain.h"
#include "offload/staging/grad_reducer.h"
#include "offload/staging/gradient_home.h"
#include "pinned/pinned_store.h"

namespace longshore {
namespace {

// The process itself: code of LibTorch, MKL's scratch, threads, file buffers. A small run was
// measured at 210 MiB; scratch and buffers grow with the model.
constexpr Bytes kProcessBytes = 512 * kMiB;
constexpr Bytes kTokenBytes = 8;  // LibTorch's indices are int64
constexpr Bytes kBatchRows = 3;   // tokens, positions, targets

// With updates in backward one gradient at home is updated with while the next one is drained. Over
// equal units more places were no faster in any simulation.
constexpr int32_t kGradientRing = 2;

// On a GPU, and not measured there yet: LibTorch's allocator rounds blocks and cannot join all of
// them, its kernels take scratch (cuBLAS 32 MiB for each thread that computes), and the driver
// keeps a context with the code of all kernels.
constexpr Bytes kGpuScratchBytes = 256 * kMiB;
constexpr Bytes kGpuRoundingShare = 4;  // a quarter of the temporaries
constexpr Bytes kGpuContextBytes = kGiB;

Bytes product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (int64_t factor : factors) {
    const auto next = checked_multiply(result, factor);
    if (!next)
      throw DoesNotFitError(
          "the plan's sizes are too large to count; lower "
          "data.max_tokens or train.micro_batch");
    result = *next;
  }
  return result;
}

Bytes rounded(Bytes bytes) {
  return align_up(bytes, kDeviceBufferAlignment);
}

bool lends(const ModelSpec& model, UnitId id) {
  for (const UnitSpec& unit : model.units) {
    for (ParamRef ref : unit.borrowed) {
      if (ref.unit == id) return true;
    }
  }
  return false;
}

class Draft {
 public:
  Draft(const PlanInputs& inputs, const Machine& machine)
      : inputs_(inputs),
        machine_(machine),
        model_(*inputs.model),
        layouts_(make_layouts(model_, inputs.topology.shard_ranks)) {}

  TierPlan make() {
    describe_run();
    add_slots();
    add_gradients();
    add_batches();
    add_carries();
    add_workspace();
    finish_device();
    add_schedules();
    add_host();
    add_step();
    return std::move(plan_);
  }

 private:
  void describe_run() {
    plan_.device = inputs_.device;
    plan_.state = inputs_.state;
    plan_.compute_threads = inputs_.compute_threads;
    plan_.optimizer_threads = inputs_.optimizer_threads;
    plan_.parameters = model_.parameter_elements();
    plan_.trainable = model_.trainable_elements();
    const auto before_loss = static_cast<int32_t>(model_.units.size()) - 1;
    plan_.kept_graphs =
        inputs_.recompute ? std::min(inputs_.kept_graphs, before_loss) : before_loss;
    plan_.topology = inputs_.topology;
    plan_.reduce = inputs_.reduce;
    plan_.positions = product({inputs_.micro_batch, inputs_.max_tokens});
    const int64_t at_once = product({inputs_.micro_batch, inputs_.topology.ranks});
    plan_.micro_batches = (inputs_.sequences_per_step + at_once - 1) / at_once;
    for (const UnitSpec& unit : model_.units) {
      for (const ParamSpec& parameter : unit.parameters) {
        plan_.checkpoint_bytes += checkpoint_bytes(parameter);
      }
    }
    plan_.overlap = inputs_.overlap;
    plan_.gather = inputs_.gather;
    // A unit's gradient is computed, summed over ranks and drained at the same time as its
    // neighbours'; without prefetch nothing overlaps.
    const int64_t stages = reduces() ? 3 : 2;
    plan_.gradient_buffers = static_cast<int32_t>(std::min(inputs_.prefetch + 1, stages));
    if (inputs_.offload_inputs) plan_.input_slots = inputs_.prefetch > 1 ? 3 : 2;
    // Of few or unequal units a ring may take more than a place for each.
    const bool ring =
        inputs_.overlap == UpdateOverlap::kBackward && home_bytes(kGradientRing) < home_bytes(0);
    plan_.gradient_ring = ring ? kGradientRing : 0;
    plan_.host_gradients = home_bytes(plan_.gradient_ring);
  }

  bool gathers() const {
    return inputs_.topology.shard_ranks > 1 && inputs_.gather == GatherMode::kCollective;
  }

  // A fetch brings this part of a unit.
  int64_t fetched_part() const { return gathers() ? inputs_.topology.shard_ranks : 1; }

  bool reduces() const {
    return inputs_.topology.shard_ranks > 1 || inputs_.topology.replicas() > 1;
  }

  Bytes gathered_bytes(size_t unit) const {
    return product({layouts_[unit].flat_elements(), width_of(inputs_.state.compute)});
  }

  // Read and written by the update of the rank's shard.
  Bytes update_bytes(size_t unit) const {
    Bytes sum = 0;
    for (Segment segment : {Segment::kQuantisedMoments, Segment::kFullMoments}) {
      sum += update_traffic(inputs_.state, segment, layouts_[unit].shard_elements(segment)).total();
    }
    return sum;
  }

  // The fp32 master, and moments as the state has them.
  Bytes checkpoint_bytes(const ParamSpec& parameter) const {
    if (parameter.frozen) return 0;
    Bytes sum = product({parameter.elements(), width_of(DType::kF32)});
    for (Region region :
         {Region::kExpAvg, Region::kExpAvgSq, Region::kExpAvgUnits, Region::kExpAvgSqUnits}) {
      sum += region_bytes(inputs_.state, segment_of(parameter), region, parameter.elements());
    }
    return sum;
  }

  // Of gradients at home.
  Bytes home_bytes(int32_t ring) const {
    return GradientHome::planned_bytes(layouts_, {.dtype = inputs_.state.drain, .ring = ring});
  }

  Bytes gradient_bytes(size_t unit) const {
    return product({layouts_[unit].trainable_elements(), width_of(DType::kF32)});
  }

  // The carry out of a unit for one micro-batch, or its gradient.
  Bytes carry_bytes(const UnitSpec& unit, CarryUse use = CarryUse::kValue) const {
    return rounded(
        product({plan_.positions, unit.carry_bytes_per_position(inputs_.state.compute, use)}));
  }

  void add_buffer(const std::string& name, Bytes bytes) {
    if (bytes == 0) return;
    plan_.device_buffers.push_back({name, rounded(bytes)});
    plan_.device_owned += rounded(bytes);
  }

  // Sums the buffers added since `first` into one line.
  void add_device_line(const std::string& name, const std::string& detail, size_t first) {
    Bytes sum = 0;
    for (size_t i = first; i < plan_.device_buffers.size(); ++i) {
      sum += plan_.device_buffers[i].bytes;
    }
    if (sum > 0) plan_.device_lines.push_back({name, detail, sum, true});
  }

  void add_slots() {
    PassInputs inputs;
    inputs.prefetch = inputs_.prefetch;
    size_t slots = static_cast<size_t>(inputs_.prefetch) + 1;
    Bytes largest = 0;
    for (size_t i = 0; i < model_.units.size(); ++i) {
      slots = std::max(slots, units_leased_for(model_.units[i]).size());
      inputs.unit_bytes.push_back(gathered_bytes(i));
      largest = std::max(largest, gathered_bytes(i));
    }
    std::string detail;
    if (inputs_.topology.keeps_gathered()) {
      inputs.slot_bytes = inputs.unit_bytes;
      detail = "every unit, from forward to backward";
    } else {
      inputs.slot_bytes.assign(slots, largest);
      detail = std::to_string(slots) + " x " + format_bytes(rounded(largest));
    }
    plan_.slots = static_cast<int32_t>(inputs.slot_bytes.size());
    for (size_t i = 0; i < inputs.slot_bytes.size(); ++i) {
      add_buffer("slot." + std::to_string(i), inputs.slot_bytes[i]);
    }
    add_device_line("slots", detail, 0);
    train_visits_ = plan_pass(model_, Pass::kTrain, inputs);
    forward_visits_ = plan_pass(model_, Pass::kForward, inputs);
  }

  void add_gradients() {
    const size_t first = plan_.device_buffers.size();
    Bytes largest = 0;
    for (size_t i = 0; i < model_.units.size(); ++i) {
      if (!lends(model_, model_.units[i].id)) largest = std::max(largest, gradient_bytes(i));
    }
    for (int32_t i = 0; i < plan_.gradient_buffers; ++i) {
      add_buffer("gradient." + std::to_string(i), largest);
    }
    add_device_line("gradients",
                    std::to_string(plan_.gradient_buffers) + " x " +
                        format_bytes(rounded(largest)) + ", fp32, the largest unit",
                    first);
    const size_t waiting = plan_.device_buffers.size();
    for (size_t i = 0; i < model_.units.size(); ++i) {
      if (!lends(model_, model_.units[i].id)) continue;
      add_buffer("waiting_gradient." + model_.units[i].name, gradient_bytes(i));
    }
    add_device_line("waiting gradients", "fp32, of units that lend parameters", waiting);
    const size_t scratch = plan_.device_buffers.size();
    add_buffer("reduce_scratch",
               GradReducer::planned_scratch_bytes(layouts_, inputs_.topology, inputs_.reduce));
    add_device_line("reduce scratch", "for sums over ranks", scratch);
    const size_t staging = plan_.device_buffers.size();
    add_buffer("drain_staging", GradDrain::planned_staging_bytes(layouts_, inputs_.state.drain));
    add_device_line("drain staging", "gradients cast for the copy", staging);
  }

  void add_batches() {
    const size_t first = plan_.device_buffers.size();
    add_buffer("batch", batch_bytes());
    add_device_line("batch",
                    std::to_string(plan_.micro_batches) + " micro-batches of " +
                        std::to_string(plan_.positions) + " positions",
                    first);
  }

  Bytes batch_bytes() const {
    return product({kBatchRows, plan_.micro_batches, plan_.positions, kTokenBytes});
  }

  void add_carries() {
    const size_t first = plan_.device_buffers.size();
    Bytes largest = 0, largest_gradient = 0;
    for (size_t i = 1; i < model_.units.size(); ++i) {
      const UnitSpec& before = model_.units[i - 1];
      const Bytes carry = carry_bytes(before);
      largest = std::max(largest, carry);
      largest_gradient = std::max(largest_gradient, carry_bytes(before, CarryUse::kGradient));
      if (plan_.input_slots > 0) continue;
      add_buffer("input." + model_.units[i].name, product({plan_.micro_batches, carry}));
    }
    for (int32_t i = 0; i < plan_.input_slots; ++i) {
      add_buffer("input_slot." + std::to_string(i), product({plan_.micro_batches, largest}));
    }
    const auto places =
        plan_.input_slots > 0 ? static_cast<size_t>(plan_.input_slots) : model_.units.size() - 1;
    add_device_line("kept inputs",
                    std::to_string(places) + (plan_.input_slots > 0 ? " slots x " : " units x ") +
                        std::to_string(plan_.micro_batches) + " micro-batches",
                    first);
    const size_t gradient = plan_.device_buffers.size();
    add_buffer("output_gradient", product({plan_.micro_batches, largest_gradient}));
    add_device_line("output gradients", std::to_string(plan_.micro_batches) + " micro-batches",
                    gradient);
  }

  void add_workspace() {
    const Workspace workspace =
        workspace_of(model_, inputs_.costs(plan_.positions, inputs_.max_tokens), plan_.kept_graphs);
    const Bytes worst = workspace.worst;
    const Bytes saved = product({plan_.micro_batches, workspace.saved});
    plan_.workspace_unit = workspace.unit;
    plan_.workspace_source = workspace.source;
    plan_.device_workspace = rounded(worst) + rounded(saved);
    if (inputs_.device == DeviceKind::kCuda) {
      const Bytes allowance =
          rounded(kGpuScratchBytes + plan_.device_workspace / kGpuRoundingShare);
      plan_.device_workspace += allowance;
      plan_.device_lines.push_back(
          {"allocator", "allowance: the GPU's scratch and rounding", allowance, false});
    }
    const std::string source(name_of(plan_.workspace_source));
    plan_.device_lines.push_back(
        {"workspace", source + ", " + plan_.workspace_unit, rounded(worst), false});
    if (saved > 0) {
      plan_.device_lines.push_back(
          {"saved graphs",
           source + ", of " + std::to_string(plan_.kept_graphs) + " units (fsdp.recompute)",
           rounded(saved), false});
    }
  }

  void finish_device() {
    plan_.device_total = plan_.device_owned + plan_.device_workspace;
    plan_.device_cap_auto = !inputs_.device_cap.has_value();
    Bytes automatic = plan_.device_total;
    if (inputs_.device == DeviceKind::kCuda) {
      // Without a GPU the plan is for one elsewhere: what is needed is what it must have.
      automatic = machine_.gpus.empty()
                      ? plan_.device_total
                      : std::max<Bytes>(machine_.gpus.front().memory_bytes - kGpuContextBytes, 0);
    }
    plan_.device_cap = inputs_.device_cap.value_or(automatic);
  }

  void add_schedules() {
    ScheduleInputs inputs;
    inputs.model = &model_;
    inputs.visits = train_visits_;
    inputs.gathers = gathers();
    inputs.reduces = reduces();
    inputs.gradient_buffers = plan_.gradient_buffers;
    inputs.input_slots = plan_.input_slots;
    if (inputs_.nvme.inputs && plan_.input_slots > 0) {
      inputs.input_staging = kInputStagingSlots;
    }
    inputs.overlap = inputs_.overlap;
    inputs.gradient_ring = plan_.gradient_ring;
    for (size_t i = 0; i < model_.units.size(); ++i) {
      const int64_t ranks = inputs_.topology.shard_ranks;
      const int64_t trainable = layouts_[i].trainable_elements();
      inputs.gather_bytes.push_back(gathered_bytes(i));
      inputs.fetch_bytes.push_back(gathered_bytes(i) / fetched_part());
      inputs.reduce_bytes.push_back(product({trainable, width_of(inputs_.reduce)}));
      inputs.drain_bytes.push_back(product({trainable / ranks, width_of(inputs_.state.drain)}));
      inputs.input_bytes.push_back(
          i == 0 ? 0 : product({plan_.micro_batches, carry_bytes(model_.units[i - 1])}));
      inputs.staged_input_bytes.push_back(
          NvmeInputs::staged_bytes(inputs.input_bytes.back(), plan_.micro_batches));
      inputs.update_bytes.push_back(update_bytes(i));
    }
    if (inputs_.nvme.state) add_drive_operations(inputs);
    plan_.schedules.train = build_schedule(inputs);
    check_step_schedule(plan_.schedules.train, inputs);
    if (inputs.overlap == UpdateOverlap::kForward) {
      inputs.overlap = UpdateOverlap::kNone;
      plan_.schedules.first = build_schedule(inputs);
      check_step_schedule(plan_.schedules.first, inputs);
    }
    inputs.pass = Pass::kForward;
    inputs.visits = forward_visits_;
    plan_.schedules.forward = build_schedule(inputs);
    check_step_schedule(plan_.schedules.forward, inputs);
    inputs.pass = Pass::kUpdates;
    inputs.visits = {};
    inputs.gradient_ring = 0;
    plan_.schedules.flush = build_schedule(inputs);
    check_step_schedule(plan_.schedules.flush, inputs);
    inputs.pass = Pass::kWalk;
    plan_.schedules.walk = build_schedule(inputs);
    check_step_schedule(plan_.schedules.walk, inputs);
    plan_.offloaded_inputs.assign(model_.units.size(), 0);
    for (const Op& op : plan_.schedules.train.ops) {
      if (op.kind != OpKind::kSaveInput) continue;
      plan_.offloaded_inputs[static_cast<size_t>(op.unit.value)] = op.bytes;
    }
  }

  void add_drive_operations(ScheduleInputs& inputs) const {
    const NvmeStoreOptions options =
        nvme_options(inputs_.nvme, inputs_.state, inputs_.topology, Rank(0), {});
    inputs.state_slots = options.state_slots;
    if (options.parameters_on_drives) inputs.parameter_slots = options.parameter_slots;
    for (const FlatLayout& layout : layouts_) {
      const NvmeStore::UnitTraffic traffic = NvmeStore::traffic_of(layout, options);
      inputs.state_read_bytes.push_back(traffic.state_read);
      inputs.state_written_bytes.push_back(traffic.state_written);
      inputs.parameter_read_bytes.push_back(traffic.parameters_read);
    }
  }

  void add_host_line(const char* name, const std::string& detail, Bytes bytes, bool exact) {
    if (bytes == 0) return;
    plan_.host_lines.push_back({name, detail, bytes, exact});
    plan_.host_total += bytes;
  }

  void add_host() {
    plan_.nvme = inputs_.nvme;
    plan_.steps = inputs_.steps;
    if (inputs_.nvme.state) {
      add_nvme_state();
    } else {
      add_pinned();
    }
    add_host_gradients();
    add_offloaded_inputs();
    if (inputs_.device == DeviceKind::kCpu) {
      add_host_line("cpu device", "all of the device's bytes", plan_.device_total, false);
    }
    add_host_line("data", "estimate", inputs_.data_bytes, false);
    add_host_line("process", "estimate: libraries, scratch, threads", kProcessBytes, false);
    plan_.host_limit_auto = !inputs_.host_cap.has_value();
    plan_.host_limit =
        inputs_.host_cap.value_or(machine_.host_available() / inputs_.ranks_per_node);
    plan_.host_machine = machine_.host_installed() / inputs_.ranks_per_node;
    plan_.drives_short = drives_short();
  }

  // Directories on one file system share what is free there.
  Bytes drives_short() const {
    std::map<uint64_t, Bytes> left;
    for (size_t i = 0; i < plan_.nvme_files.size() && i < inputs_.nvme.rooms.size(); ++i) {
      const std::optional<DriveRoom>& room = inputs_.nvme.rooms[i];
      if (!room) continue;
      Bytes& bytes = left.try_emplace(room->file_system, room->free).first->second;
      bytes += room->held - product({inputs_.ranks_per_node, plan_.nvme_files[i]});
    }
    Bytes missing = 0;
    for (const auto& [file_system, bytes] : left) missing += std::max<Bytes>(0, -bytes);
    return missing;
  }

  void add_host_gradients() {
    const int32_t ring = plan_.gradient_ring;
    const std::string dtype = inputs_.state.drain == DType::kF32 ? "fp32" : "bf16";
    std::string detail = dtype + ", every unit";
    if (ring > 0) {
      detail = "ring of " + std::to_string(ring) + " x " +
               format_bytes(plan_.host_gradients / ring) + ", " + dtype + ", the largest unit";
    }
    add_host_line("gradients", detail, plan_.host_gradients, true);
  }

  void add_nvme_state() {
    const NvmeStoreOptions options =
        nvme_options(inputs_.nvme, inputs_.state, inputs_.topology, Rank(0), {});
    plan_.host_arena = NvmeStore::planned_bytes(layouts_, options);
    add_host_line("I/O window",
                  inputs_.nvme.parameters ? "state on its way to and from the drives"
                                          : "state on its way, and the parameters",
                  plan_.host_arena, true);
    add_drive_files(
        NvmeStore::make_map(layouts_, options),
        {.read = scheduled_bytes(OpKind::kReadState) + scheduled_bytes(OpKind::kReadParameters),
         .written = scheduled_bytes(OpKind::kWriteState)});
  }

  void add_offloaded_inputs() {
    plan_.host_inputs = plan_.offloaded_inputs_total();
    if (plan_.host_inputs == 0) return;
    if (!inputs_.nvme.inputs) {
      add_host_line("kept inputs", "offload.activations = host", plan_.host_inputs, true);
      return;
    }
    const NvmeInputOptions options =
        nvme_input_options(inputs_.nvme, plan_.schedules.train, plan_.micro_batches, Rank(0));
    plan_.host_inputs = NvmeInputs::planned_bytes(options);
    add_host_line("kept inputs", "on their way to the drives and back", plan_.host_inputs, true);
    add_drive_files(NvmeInputs::make_map(options),
                    {.read = scheduled_bytes(OpKind::kReadInput),
                     .written = scheduled_bytes(OpKind::kWriteInput)});
  }

  void add_drive_files(const StripeMap& map, const DriveTraffic& traffic) {
    const auto drives = static_cast<size_t>(map.drives());
    plan_.nvme_files.resize(drives);
    plan_.nvme_drive_writes.resize(drives);
    plan_.step.nvme_read += traffic.read;
    plan_.step.nvme_written += traffic.written;
    Bytes files = 0;
    for (int i = 0; i < map.drives(); ++i) files += map.file_bytes(i);
    for (size_t i = 0; i < drives; ++i) {
      const Bytes file = map.file_bytes(static_cast<int>(i));
      plan_.nvme_files[i] += file;
      // Stripes share what is written as they share the space.
      const double share = static_cast<double>(file) / static_cast<double>(files);
      plan_.nvme_drive_writes[i] +=
          static_cast<Bytes>(share * static_cast<double>(traffic.written) * inputs_.ranks_per_node);
    }
  }

  void add_pinned() {
    const Bytes join = PinnedStore::planned_join_bytes(layouts_, inputs_.state);
    plan_.host_arena = PinnedStore::planned_bytes(layouts_, inputs_.state);
    add_host_line("shards and optimizer state",
                  "state_format " + std::string(name_of(inputs_.state.format)) +
                      (is_exact(inputs_.state.format) ? "" : ", approximate moments"),
                  plan_.host_arena - join, true);
    add_host_line("join region", "split masters made whole for fp32 compute", join, true);
  }

  // What a step moves by operations of a kind.
  Bytes scheduled_bytes(OpKind kind) const {
    Bytes sum = 0;
    for (const Op& op : plan_.schedules.train.ops) sum += op.kind == kind ? op.bytes : 0;
    if (inputs_.overlap != UpdateOverlap::kNone) return sum;
    for (const Op& op : plan_.schedules.flush.ops) sum += op.kind == kind ? op.bytes : 0;
    return sum;
  }

  void add_step() {
    const ShardTopology& topology = inputs_.topology;
    const Bytes fetched = scheduled_bytes(OpKind::kFetch);
    const Bytes reduced = scheduled_bytes(OpKind::kReduce);
    plan_.step.h2d = fetched + scheduled_bytes(OpKind::kLoadInput) + batch_bytes();
    plan_.step.d2h = scheduled_bytes(OpKind::kDrain) + scheduled_bytes(OpKind::kSaveInput);
    plan_.step.all_gather = scheduled_bytes(OpKind::kGather);
    if (topology.shard_ranks > 1) plan_.step.reduce_scatter = reduced;
    if (topology.replicas() > 1) plan_.step.all_reduce = reduced / topology.shard_ranks;
    for (size_t i = 0; i < layouts_.size(); ++i) plan_.step.update_dram += update_bytes(i);
    const double before_loss = std::max<double>(static_cast<double>(model_.units.size()) - 1, 1);
    plan_.step.flops_per_token =
        (8.0 - 2.0 * plan_.kept_graphs / before_loss) * static_cast<double>(plan_.parameters);
  }

  const PlanInputs& inputs_;
  const Machine& machine_;
  const ModelSpec& model_;
  std::vector<FlatLayout> layouts_;
  PassPlan train_visits_, forward_visits_;
  TierPlan plan_;
};

}  // namespace

const PlannedBuffer* TierPlan::buffer(const std::string& name) const {
  for (const PlannedBuffer& buffer : device_buffers) {
    if (buffer.name == name) return &buffer;
  }
  return nullptr;
}

Bytes TierPlan::offloaded_inputs_total() const {
  return std::accumulate(offloaded_inputs.begin(), offloaded_inputs.end(), Bytes{0});
}

std::string why_not_on_host(const PlanInputs& inputs) {
  if (inputs.topology.shard_ranks == 1) return "a rank holds whole units";
  if (inputs.topology.shard_ranks > inputs.ranks_per_node ||
      inputs.ranks_per_node % inputs.topology.shard_ranks != 0) {
    return "ranks that share a copy of the model are not all on one machine (fsdp.strategy)";
  }
  if (inputs.nvme.state) return "state is on drives (offload.optimizer)";
  if (needs_join(inputs.state)) {
    return "with precision.compute = \"fp32\" split masters are joined for the device "
           "(offload.state_format = \"fp32\" would do)";
  }
  return "";
}

namespace {

// As many graphs as fit: more of them never take less.
TierPlan plan_with_most_graphs(const PlanInputs& inputs, const Machine& machine) {
  PlanInputs tried = inputs;
  tried.keep_what_fits = false;
  int32_t fits = 0;
  auto beyond = static_cast<int32_t>(inputs.model->units.size());
  while (beyond - fits > 1) {
    tried.kept_graphs = (fits + beyond) / 2;
    (draft_tier_plan(tried, machine).fits() ? fits : beyond) = tried.kept_graphs;
  }
  tried.kept_graphs = fits;
  return draft_tier_plan(tried, machine);
}

}  // namespace

TierPlan draft_tier_plan(const PlanInputs& inputs, const Machine& machine) {
  LONGSHORE_CHECK(inputs.model != nullptr && inputs.costs != nullptr);
  LONGSHORE_CHECK(inputs.sequences_per_step >= 1 && inputs.micro_batch >= 1 &&
                  inputs.max_tokens >= 1 && inputs.prefetch >= 0 && inputs.topology.ranks >= 1 &&
                  inputs.ranks_per_node >= 1);
  LONGSHORE_CHECK(inputs.gather == GatherMode::kCollective || why_not_on_host(inputs).empty());
  if (inputs.recompute && inputs.keep_what_fits) return plan_with_most_graphs(inputs, machine);
  return Draft(inputs, machine).make();
}

TierPlan make_tier_plan(const PlanInputs& inputs, const Machine& machine) {
  TierPlan plan = draft_tier_plan(inputs, machine);
  if (!plan.fits()) throw DoesNotFitError(explain_misfit(inputs, machine));
  return plan;
}

}  // namespace longshore
