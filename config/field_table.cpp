#include "config/field_table.h"

#include "base/errors.h"
#include "config/field_rows.h"
#include "shard/state_format.h"

namespace longshore {
namespace {

Section run_section() {
  Section section{"run", "the run itself", {}};
  Rows rows(&section, &RunConfig::run);
  rows.add("dir", KeyType::kPath, &RunSection::dir,
           {.description = "directory of everything the run writes", .example = "\"runs/tiny\""});
  rows.add("seed", KeyType::kInteger, &RunSection::seed,
           {.description = "seed of every random stream: order of samples, random weights",
            .bounds = at_least(0)});
  return section;
}

Section model_section() {
  Section section{"model", "the model that is trained", {}};
  Rows rows(&section, &RunConfig::model);
  rows.add("path", KeyType::kPath, &ModelSection::path,
           {.description =
                "a Hugging Face model directory, or the hub id of a model that is in the local "
                "Hugging Face cache (owner/name or owner/name@revision)",
            .example = "\"models/tiny-llama\""});
  rows.choice<ModelSection::Init>(
      "init", &ModelSection::init,
      {{"pretrained", ModelSection::Init::kPretrained}, {"random", ModelSection::Init::kRandom}},
      {.description =
           "start from the directory's weights, or from random ones made with run.seed"});
  rows.choice<ModelSection::Dropout>("dropout", &ModelSection::dropout,
                                     {{"off", ModelSection::Dropout::kOff}},
                                     {.description = "dropout, whatever the model's files say"});
  return section;
}

Section train_section() {
  Section section{"train", "how long, and in what portions", {}};
  Rows rows(&section, &RunConfig::train);
  rows.add("steps", KeyType::kInteger, &TrainSection::steps,
           {.description =
                "steps of the run; 0: as train.epochs says; exactly one of the two is above 0",
            .bounds = between(0, kMaxSteps),
            .unit = "steps"});
  rows.add("epochs", KeyType::kReal, &TrainSection::epochs,
           {.description = "passes over data.train; 0: as train.steps says",
            .bounds = between(0, 1e6),
            .unit = "epochs"});
  rows.add("sequences_per_step", KeyType::kInteger, &TrainSection::sequences_per_step,
           {.description = "sequences in one optimizer step, over all ranks and micro-batches",
            .bounds = between(1, 1 << 24),
            .unit = "sequences"});
  rows.add("micro_batch", KeyType::kInteger, &TrainSection::micro_batch,
           {.description =
                "sequences on one device at a time; the step's last micro-batch may be smaller",
            .bounds = between(1, 1 << 16),
            .unit = "sequences"});
  rows.add("max_grad_norm", KeyType::kReal, &TrainSection::max_grad_norm,
           {.description = "gradients are scaled down to this global norm; 0: no clipping",
            .bounds = at_least(0)});
  rows.add(
      "freeze", KeyType::kStrings, &TrainSection::freeze,
      {.description = "globs of parameter names that stay as they are: no gradient, no state"});
  rows.add("router_aux_loss", KeyType::kReal, &TrainSection::router_aux_loss,
           {.description = "coefficient of the loss that spreads tokens over experts, 0: none; "
                           "\"auto\": router_aux_loss_coef where the model's config.json has "
                           "output_router_logits = true",
            .bounds = at_least(0)});
  rows.add(
      "max_nonfinite_steps", KeyType::kInteger, &TrainSection::max_nonfinite_steps,
      {.description = "a step with a non-finite loss or gradient is skipped; so many in a row end "
                      "the run",
       .bounds = between(1, 1e9),
       .unit = "steps"});
  return section;
}

Section optimizer_section() {
  using Optimizer = OptimizerSection;
  Section section{"optimizer", "the update rule", {}};
  Rows rows(&section, &RunConfig::optimizer);
  rows.choice<Optimizer::Name>("name", &Optimizer::name, {{"adamw", Optimizer::Name::kAdamW}},
                               {.description = "AdamW with decoupled weight decay"});
  rows.add("lr", KeyType::kReal, &Optimizer::lr,
           {.description = "learning rate at the top of the schedule", .bounds = at_least(0)});
  rows.add("betas", KeyType::kRealPair, &Optimizer::betas,
           {.description = "how slowly the two moments forget",
            .bounds = {.min = 0, .max = 1, .max_excluded = true}});
  rows.add("eps", KeyType::kReal, &Optimizer::eps,
           {.description = "added to the root of the second moment", .bounds = above(0)});
  rows.add("weight_decay", KeyType::kReal, &Optimizer::weight_decay,
           {.description = "fraction of the weight, times the learning rate, taken off per step",
            .bounds = at_least(0)});
  rows.choice<DecayRule>(
      "decay", &Optimizer::decay, {{"matrices", DecayRule::kMatrices}, {"all", DecayRule::kAll}},
      {.description =
           "which parameters decay: matrices, an expert's too, but no norms and biases; or all"});
  rows.add(
      "groups", KeyType::kGroups, &Optimizer::groups,
      {.description = "parameters with an lr or a weight_decay of their own: [[optimizer.groups]] "
                      "with parameters = [globs of names]; the first group that matches counts, "
                      "and its weight_decay holds for all of its parameters"});
  rows.choice<UpdateOverlap>(
      "overlap", &Optimizer::overlap,
      {{"forward", UpdateOverlap::kForward},
       {"backward", UpdateOverlap::kBackward},
       {"none", UpdateOverlap::kNone}},
      {.description = "when units are updated: forward: in the next step's "
                      "forward, each just ahead of its use; backward: as soon as "
                      "its gradient is in host memory, which needs train.max_grad_norm = "
                      "0 and keeps two units' gradients on the host, not all; "
                      "none: all after backward. The numbers are the same"});
  return section;
}

Section schedule_section() {
  using Schedule = ScheduleSection;
  Section section{"schedule", "the learning rate over the run", {}};
  Rows rows(&section, &RunConfig::schedule);
  rows.choice<Schedule::Name>(
      "name", &Schedule::name,
      {{"constant", Schedule::Name::kConstant},
       {"linear", Schedule::Name::kLinear},
       {"cosine", Schedule::Name::kCosine},
       {"wsd", Schedule::Name::kWsd}},
      {.description = "shape after the warm-up; wsd stays at the top and falls at the end"});
  rows.add("warmup_steps", KeyType::kInteger, &Schedule::warmup_steps,
           {.description = "steps of linear rise, the first at a rate of 0 as in transformers",
            .bounds = between(0, kMaxSteps),
            .unit = "steps"});
  rows.add("min_lr_ratio", KeyType::kReal, &Schedule::min_lr_ratio,
           {.description = "last learning rate over optimizer.lr; not for constant",
            .bounds = between(0, 1)});
  rows.add("decay_steps", KeyType::kInteger, &Schedule::decay_steps,
           {.description = "steps of the fall at the end of wsd, which needs it",
            .bounds = between(0, kMaxSteps),
            .unit = "steps"});
  return section;
}

Section precision_section() {
  using Precision = PrecisionSection;
  using Drain = std::optional<DType>;
  Section section{"precision", "number formats", {}};
  Rows rows(&section, &RunConfig::precision);
  rows.choice<DType>("compute", &Precision::compute,
                     {{"bf16", DType::kBF16}, {"fp32", DType::kF32}},
                     {.description = "format of parameters and activations on the device"});
  rows.choice<DType>(
      "reduce", &Precision::reduce, {{"fp32", DType::kF32}, {"bf16", DType::kBF16}},
      {.description = "format in which gradients travel between ranks; sums are in fp32"});
  rows.choice<Drain>(
      "drain", &Precision::drain,
      {{"auto", Drain{}}, {"bf16", Drain{DType::kBF16}}, {"fp32", Drain{DType::kF32}}},
      {.description = "format of gradients on their way to the host; auto: as precision.compute"});
  return section;
}

Section fsdp_section() {
  using Fsdp = FsdpSection;
  using Gather = std::optional<GatherMode>;
  Section section{"fsdp", "how the model is cut into units and shards", {}};
  Rows rows(&section, &RunConfig::fsdp);
  rows.choice<ShardStrategy>("strategy", &Fsdp::strategy,
                             {{"full_shard", ShardStrategy::kFullShard},
                              {"shard_grad_op", ShardStrategy::kShardGradOp},
                              {"hybrid_shard", ShardStrategy::kHybridShard},
                              {"no_shard", ShardStrategy::kNoShard}},
                             {.description = "full_shard: every rank keeps its part of the model; "
                                             "shard_grad_op: and gathered units stay on the device "
                                             "from forward to backward; hybrid_shard: sharded in "
                                             "groups of fsdp.shard_ranks, the same in each group; "
                                             "no_shard: every rank keeps it all"});
  rows.add("shard_ranks", KeyType::kInteger, &Fsdp::shard_ranks,
           {.description = "ranks of a group of hybrid_shard; auto: the ranks of a node",
            .bounds = between(1, 1 << 20),
            .unit = "ranks"});
  rows.add(
      "units", KeyType::kUnits, &Fsdp::units,
      {.description =
           "what is gathered and freed together: \"block\": each transformer block, the "
           "embedding, the head; \"half\": attention and MLP, or experts, of each block are "
           "units of "
           "their own, for less on the device and twice the activation checkpoints; \"piece\": and "
           "experts in groups, the embedding and the head in pieces no larger; \"auto\": the "
           "first of these that fits, or what the drives hold; { rows = N }: as \"piece\", "
           "of that many rows; { classes = [...] }: units "
           "of these classes stay "
           "alone, others are merged; { min_parameters = N }: merged up to that size; "
           "{ groups = [[\"block.0\", \"block.1.attention\"]] }: by hand. The numbers are "
           "the same"});
  rows.add("prefetch", KeyType::kInteger, &Fsdp::prefetch,
           {.description =
                "units gathered ahead of the one that computes; each takes one more device slot",
            .bounds = between(0, 8),
            .unit = "units"});
  rows.choice<Fsdp::Recompute>(
      "recompute", &Fsdp::recompute,
      {{"unit", Fsdp::Recompute::kUnit},
       {"none", Fsdp::Recompute::kNone},
       {"auto", Fsdp::Recompute::kAuto}},
      {.description =
           "activation checkpointing: keep only each unit's input and run the unit again in "
           "backward; none: keep all activations, but those of blocks with experts, which always "
           "run again; auto: keep those of as many of the last "
           "units as the caps allow. The numbers are the same"});
  rows.choice<Gather>(
      "gather", &Fsdp::gather,
      {{"auto", Gather{}},
       {"collective", Gather{GatherMode::kCollective}},
       {"host", Gather{GatherMode::kHost}}},
      {.description =
           "how shards come together: collective: each rank copies its own to the device, "
           "then they are gathered; host: each copies all of them from the memory that the "
           "ranks of a machine share; auto: the faster of the two, measured at start"});
  return section;
}

Section offload_section() {
  using Offload = OffloadSection;
  Section section{"offload", "where model state lives, and the caps of the tiers", {}};
  Rows rows(&section, &RunConfig::offload);
  rows.choice<Offload::Parameters>(
      "parameters", &Offload::parameters,
      {{"host", Offload::Parameters::kHost}, {"nvme", Offload::Parameters::kNvme}},
      {.description = "where the parameters are kept that the device reads"});
  rows.choice<Offload::Optimizer>(
      "optimizer", &Offload::optimizer,
      {{"host", Offload::Optimizer::kHost}, {"nvme", Offload::Optimizer::kNvme}},
      {.description = "where the fp32 master and the moments are kept; nvme: "
                      "every step is a durable commit on the drives (nvme_versions)"});
  rows.choice<Offload::Activations>(
      "activations", &Offload::activations,
      {{"device", Offload::Activations::kDevice},
       {"host", Offload::Activations::kHost},
       {"nvme", Offload::Activations::kNvme}},
      {.description =
           "where activation checkpoints are kept between forward and backward; nvme: on the "
           "drives, wherever the state is"});
  std::vector<std::pair<std::string, StateFormat>> formats;
  for (const StateFormatTraits& traits : kStateFormats) {
    formats.emplace_back(traits.name, traits.format);
  }
  rows.choice<StateFormat>(
      "state_format", &Offload::state_format, formats,
      {.description =
           "split: the bf16 parameter is the upper half of the fp32 master, bit for bit "
           "the numbers of fp32 in fewer bytes; split-bf16 and split-int8: the moments of "
           "matrices in bf16 or 8 bits as well, rounded stochastically"});
  rows.add("nvme", KeyType::kPaths, &Offload::nvme,
           {.description = "one directory on each drive, for this run alone"});
  rows.add("nvme_versions", KeyType::kInteger, &Offload::nvme_versions,
           {.description = "versions of the state that the drives hold; 2: every step is a durable "
                           "commit; 1: half the space, and only checkpoints survive a kill",
            .bounds = between(1, 2),
            .unit = "versions"});
  rows.add(
      "nvme_tbw", KeyType::kBytes, &Offload::nvme_tbw,
      {.description = "what each drive may be written in its life as its maker says (TBW), for "
                      "the plan's forecast; auto: only what the drives say of their wear",
       .bounds = at_least(1)});
  rows.add("device_memory", KeyType::kBytes, &Offload::device_memory,
           {.description = "hard cap on device bytes; auto: on a GPU what is free there, on a CPU "
                           "what the plan needs",
            .bounds = at_least(1)});
  rows.add("host_memory", KeyType::kBytes, &Offload::host_memory,
           {.description = "hard cap on host bytes; auto: what the machine has free",
            .bounds = at_least(1)});
  rows.add("threads", KeyType::kInteger, &Offload::threads,
           {.description =
                "threads of the optimizer on the host; auto: on a GPU the hardware threads, but "
                "for three or half of them that feed it, on a CPU the cores; the numbers do not "
                "depend on them",
            .bounds = between(1, 1024),
            .unit = "threads"});
  return section;
}

Section checkpoint_section() {
  using Checkpoint = CheckpointSection;
  Section section{"checkpoint", "what is saved, and what a run starts from", {}};
  Rows rows(&section, &RunConfig::checkpoint);
  rows.add("every_steps", KeyType::kInteger, &Checkpoint::every_steps,
           {.description = "steps between checkpoints; 0: only at the end and on a signal",
            .bounds = between(0, kMaxSteps),
            .unit = "steps"});
  rows.add("keep", KeyType::kInteger, &Checkpoint::keep,
           {.description = "how many of the newest checkpoints are kept",
            .bounds = between(1, 1e6),
            .unit = "checkpoints"});
  rows.add(
      "resume", KeyType::kPath, &Checkpoint::resume,
      {.description = "\"auto\": the newest valid checkpoint of run.dir, if any; \"never\"; or a "
                      "checkpoint's directory"});
  rows.choice<Checkpoint::Export>(
      "export", &Checkpoint::export_model,
      {{"end", Checkpoint::Export::kEnd}, {"never", Checkpoint::Export::kNever}},
      {.description =
           "write a Hugging Face directory to hf in run.dir when the run is done, in the "
           "number formats of model.path (evaluations use precision.compute)"});
  return section;
}

Section device_section() {
  using Device = DeviceSection;
  Section section{"device", "what computes", {}};
  Rows rows(&section, &RunConfig::device);
  rows.choice<Device::Kind>(
      "kind", &Device::kind,
      {{"auto", Device::Kind::kAuto}, {"cpu", Device::Kind::kCpu}, {"cuda", Device::Kind::kCuda}},
      {.description =
           "what computes; auto: the GPU if there is one, but a run that began on the CPU "
           "stays there"});
  rows.add(
      "threads", KeyType::kInteger, &Device::threads,
      {.description =
           "compute threads of the CPU device; the same count gives the same bits in every run",
       .bounds = between(1, 256),
       .unit = "threads"});
  return section;
}

Section dist_section() {
  using Dist = DistSection;
  Section section{"dist", "several ranks", {}};
  Rows rows(&section, &RunConfig::dist);
  rows.add(
      "timeout", KeyType::kDuration, &Dist::timeout_ms,
      {.description = "a wait for another rank ends the run after this long; more than any time "
                      "between two operations, a checkpoint included",
       .bounds = between(1, 1000.0 * 24 * 3'600'000)});
  rows.choice<CommBackend>(
      "backend", &Dist::backend,
      {{"auto", CommBackend::kAuto}, {"gloo", CommBackend::kGloo}, {"nccl", CommBackend::kNccl}},
      {.description = "what carries collectives; auto: nccl between GPUs, else gloo"});
  rows.add("secret_file", KeyType::kPath, &Dist::secret_file,
           {.description =
                "a file of mode 0600, the same on all nodes, whose content ranks of torchrun, "
                "srun and mpirun prove to know when they meet (SECURITY.md); `longshore "
                "launch` makes a secret by itself, or has --secret-file"});
  return section;
}

Section log_section() {
  Section section{"log", "what the run prints and records", {}};
  Rows rows(&section, &RunConfig::log);
  rows.add("every_steps", KeyType::kInteger, &LogSection::every_steps,
           {.description = "steps between printed lines; metrics.jsonl has every step",
            .bounds = between(1, kMaxSteps),
            .unit = "steps"});
  rows.add(
      "tensorboard", KeyType::kBool, &LogSection::tensorboard,
      {.description = "also write <run.dir>/tensorboard, for `tensorboard --logdir <run.dir>`"});
  rows.add("router", KeyType::kBool, &LogSection::router,
           {.description = "figures of what the routers chose in every step: load of each expert, "
                           "idle ones, entropy"});
  return section;
}

}  // namespace

const std::vector<Section>& run_file_sections() {
  static const std::vector<Section> kSections = {
      run_section(),    model_section(),     tokenizer_section(),  data_section(),
      train_section(),  optimizer_section(), schedule_section(),   precision_section(),
      fsdp_section(),   offload_section(),   checkpoint_section(), eval_section(),
      device_section(), dist_section(),      log_section()};
  return kSections;
}

const Section* find_section(std::string_view name) {
  for (const Section& section : run_file_sections()) {
    if (section.name == name) return &section;
  }
  return nullptr;
}

const Key* find_key(std::string_view section, std::string_view name) {
  const Section* found = find_section(section);
  if (found == nullptr) return nullptr;
  for (const Key& key : found->keys) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

const Key& key_named(std::string_view full_name) {
  const size_t dot = full_name.find('.');
  const Key* key = dot == std::string_view::npos
                       ? nullptr
                       : find_key(full_name.substr(0, dot), full_name.substr(dot + 1));
  LONGSHORE_CHECK(key != nullptr) << full_name;
  return *key;
}

}  // namespace longshore
