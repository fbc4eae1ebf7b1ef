#include "config/field_table.h"

#include "base/columns.h"
#include "base/errors.h"
#include "config/field_rows.h"
#include "shard/state_format.h"

namespace longshore {
namespace {

Section run_section() {
  Section section{"run", "directory and seed of the run", {}};
  Rows rows(&section, &RunConfig::run);
  rows.add(
      "dir", KeyType::kPath, &RunSection::dir,
      {.description = "directory for all files that the run writes", .example = "\"runs/tiny\""});
  rows.add("seed", KeyType::kInteger, &RunSection::seed,
           {.description = "seed of all random numbers: order of samples, random initial weights",
            .bounds = at_least(0)});
  rows.add("on_end", KeyType::kStrings, &RunSection::on_end,
           {.description = "command at the end of the run, without a shell: [\"./notify.sh\", "
                           "\"me\"]; it gets three more arguments: run.dir, the exit code, and the "
                           "directory of the export or an empty text"});
  rows.add("on_end_limit", KeyType::kDuration, &RunSection::on_end_limit_ms,
           {.description = "maximum time of run.on_end, after which it is killed",
            .bounds = between(1, 1000.0 * 24 * 3'600'000)});
  return section;
}

Section model_section() {
  Section section{"model", "the model to train", {}};
  Rows rows(&section, &RunConfig::model);
  rows.add("path", KeyType::kPath, &ModelSection::path,
           {.description = "Hugging Face model directory, or hub id of a model in the local "
                           "Hugging Face cache (owner/name or owner/name@revision)",
            .example = "\"models/tiny-llama\""});
  rows.choice<ModelSection::Init>(
      "init", &ModelSection::init,
      {{"pretrained", ModelSection::Init::kPretrained}, {"random", ModelSection::Init::kRandom}},
      {.description =
           "initial weights: pretrained: read from model.path; random: initialized with run.seed"});
  return section;
}

Section adapter_section() {
  using Adapter = AdapterSection;
  Section section{
      "adapter", "LoRA and DoRA: low-rank adapters are trained, the model is frozen", {}};
  Rows rows(&section, &RunConfig::adapter);
  rows.choice<Adapter::Kind>(
      "kind", &Adapter::kind,
      {{"none", Adapter::Kind::kNone},
       {"lora", Adapter::Kind::kLora},
       {"dora", Adapter::Kind::kDora}},
      {.description = "none: all parameters are trained (see train.freeze); lora: only adapters, "
                      "and what adapter.train names; the export is an adapter of PEFT; dora: the "
                      "same, with a trained magnitude for each output"});
  rows.choice<Adapter::Base>(
      "base", &Adapter::base,
      {{"published", Adapter::Base::kPublished},
       {"nf4", Adapter::Base::kNf4},
       {"fp8", Adapter::Base::kFp8}},
      {.description =
           "the frozen matrices of the blocks: published: as in the model's files; nf4, fp8: "
           "packed "
           "to 4.13 or 8 bits a value while they are loaded (nf4: QLoRA), in host memory"});
  rows.add("r", KeyType::kInteger, &Adapter::r,
           {.description = "rank of the adapters", .bounds = between(1, 4096)});
  rows.add("alpha", KeyType::kReal, &Adapter::alpha,
           {.description = "the product of an adapter is scaled by alpha / r", .bounds = above(0)});
  rows.add("rslora", KeyType::kBool, &Adapter::rslora,
           {.description = "scale by alpha / sqrt(r) instead (rank-stabilised LoRA)"});
  rows.add("dropout", KeyType::kReal, &Adapter::dropout,
           {.description = "the share of an adapter's inputs that training drops",
            .bounds = {.min = 0, .max = 1, .max_excluded = true}});
  rows.add("targets", KeyType::kStrings, &Adapter::targets,
           {.description =
                "matrices that get an adapter: \"all-linear\", \"attention\", \"mlp\", names of "
                "modules (\"q_proj\"), globs of whole names (\"model.layers.[0-3].*\"), or \"re:\" "
                "with a regular expression for whole names"});
  rows.add("exclude", KeyType::kStrings, &Adapter::exclude,
           {.description = "matrices among the targets that get none, in the same words"});
  rows.add("layers", KeyType::kIntegers, &Adapter::layers,
           {.description = "the only layers with adapters, counted from 0; []: all",
            .bounds = between(0, 1e6)});
  rows.add("rank_pattern", KeyType::kPatterns, &Adapter::rank_pattern,
           {.description = "other ranks, by regular expressions for a module's name or for what "
                           "follows a dot in it; the first that matches counts "
                           "({ \"q_proj\" = 16, \"layers.0.mlp.up_proj\" = 4 })",
            .bounds = between(1, 4096)});
  rows.add("alpha_pattern", KeyType::kPatterns, &Adapter::alpha_pattern,
           {.description = "other alphas, in the same way", .bounds = above(0)});
  rows.add("train", KeyType::kStrings, &Adapter::train,
           {.description = "other modules to train in full: the ends of their names "
                           "(\"input_layernorm\") or globs of whole names"});
  std::vector<std::pair<std::string, AdapterBias>> biases(kAdapterBiases.begin(),
                                                          kAdapterBiases.end());
  rows.choice<AdapterBias>("bias", &Adapter::bias, std::move(biases),
                           {.description = "biases of the model that are trained: none; lora_only: "
                                           "those of modules with an adapter; all: every bias"});
  rows.add(
      "path", KeyType::kPath, &Adapter::path,
      {.description = "new: new adapters; or the directory of an adapter to start from, as PEFT "
                      "writes it: its adapter_config.json then replaces kind and other keys"});
  rows.add("any_base", KeyType::kBool, &Adapter::any_base,
           {.description = "take the adapter of adapter.path over another model than it was "
                           "trained over; --any-base sets it"});
  return section;
}

std::vector<std::pair<std::string, LossKind>> losses_by_name() {
  std::vector<std::pair<std::string, LossKind>> losses;
  for (const LossTraits& loss : kLossTable) losses.emplace_back(loss.name, loss.kind);
  return losses;
}

Section train_section() {
  Section section{"train", "length, batch size and clipping", {}};
  Rows rows(&section, &RunConfig::train);
  rows.add("steps", KeyType::kInteger, &TrainSection::steps,
           {.description = "number of optimizer steps; 0: train.epochs sets the length; exactly "
                           "one of the two must be above 0",
            .bounds = between(0, kMaxSteps),
            .unit = "steps"});
  rows.add("epochs", KeyType::kReal, &TrainSection::epochs,
           {.description = "number of passes over data.train; 0: train.steps sets the length",
            .bounds = between(0, 1e6),
            .unit = "epochs"});
  rows.add("sequences_per_step", KeyType::kInteger, &TrainSection::sequences_per_step,
           {.description =
                "global batch size: sequences per optimizer step, over all ranks and micro-batches",
            .bounds = between(1, 1 << 24),
            .unit = "sequences"});
  rows.add("micro_batch", KeyType::kInteger, &TrainSection::micro_batch,
           {.description =
                "sequences on one device at a time; the last micro-batch of a step may be smaller; "
                "\"auto\": the fastest that fits, chosen at the run's first start and kept in its "
                "config.toml",
            .bounds = between(1, 1 << 16),
            .unit = "sequences"});
  rows.add(
      "max_grad_norm", KeyType::kReal, &TrainSection::max_grad_norm,
      {.description = "gradient clipping: maximum global norm of the gradients; 0: no clipping",
       .bounds = at_least(0)});
  rows.add("freeze", KeyType::kStrings, &TrainSection::freeze,
           {.description =
                "globs of parameter names to freeze: no gradient, no optimizer state. A glob after "
                "! is trained all the same: [\"*\", \"!model.layers.3?.*\"] trains layers 30 to "
                "39 alone"});
  rows.add("router_aux_loss", KeyType::kReal, &TrainSection::router_aux_loss,
           {.description =
                "coefficient of the loss that balances tokens over experts; 0: none; \"auto\": "
                "router_aux_loss_coef if the model's config.json has output_router_logits = true",
            .bounds = at_least(0)});
  rows.add("router_correction_rate", KeyType::kReal, &TrainSection::router_correction_rate,
           {.description =
                "after each step, how far the corrections of routers' choices "
                "(e_score_correction_bias) move toward experts with fewer tokens than the mean; "
                "0: they stay; DeepSeek V3 was trained with 0.001",
            .bounds = at_least(0)});
  rows.add(
      "max_nonfinite_steps", KeyType::kInteger, &TrainSection::max_nonfinite_steps,
      {.description = "a step with a non-finite loss or gradient is skipped; the run ends after "
                      "this number of skipped steps in a row",
       .bounds = between(1, 1e9),
       .unit = "steps"});
  rows.choice<LossKind>(
      "loss", &TrainSection::loss, losses_by_name(),
      {.description =
           "sft: the weighted mean over trained tokens; policy: the clipped loss of "
           "tokens with advantages and old log-probabilities; distill: the divergence "
           "from a teacher whose log-probabilities the rows have; kto: the mean over "
           "answers with a label; the others are means over pairs of a chosen and a "
           "rejected answer, which the rows of data.train must have; dpo, dpo-robust, "
           "ipo and kto compare with preference.reference, orpo and simpo with no model"});
  return section;
}

Section preference_section() {
  using Preference = PreferenceSection;
  Section section{"preference", "settings of train.loss for judged answers", {}};
  Rows rows(&section, &RunConfig::preference);
  rows.add("beta", KeyType::kReal, &Preference::beta,
           {.description = "factor of rewards; with orpo the weight of the odds ratio; ipo: 1 / (2 "
                           "beta) is the aim for the difference of the answers' rewards",
            .bounds = above(0)});
  rows.add("label_smoothing", KeyType::kReal, &Preference::label_smoothing,
           {.description = "dpo, dpo-robust and simpo: the share of pairs that are assumed to have "
                           "their answers the wrong way round",
            .bounds = {.min = 0, .max = 0.5, .max_excluded = true}});
  rows.add("desirable_weight", KeyType::kReal, &Preference::desirable_weight,
           {.description = "kto: weight of the rows with label true", .bounds = at_least(0)});
  rows.add("undesirable_weight", KeyType::kReal, &Preference::undesirable_weight,
           {.description = "kto: weight of the rows with label false", .bounds = at_least(0)});
  rows.add("gamma", KeyType::kReal, &Preference::gamma,
           {.description = "simpo: the margin that the chosen answer's reward should have",
            .bounds = at_least(0)});
  rows.add(
      "sft_weight", KeyType::kReal, &Preference::sft_weight,
      {.description = "dpo, dpo-robust, ipo and simpo: the weight of an SFT loss that is added, "
                      "the mean cross entropy of the tokens of the step's chosen answers; 0: "
                      "none",
       .bounds = at_least(0)});
  rows.add("reference", KeyType::kPath, &Preference::reference,
           {.description = "model that dpo, dpo-robust, ipo and kto compare with: start: the one "
                           "that the run starts from; adapter-off: the one below the adapters; or "
                           "the directory of a model with the same tokenizer"});
  return section;
}

Section policy_section() {
  Section section{"policy", "settings of train.loss = \"policy\"", {}};
  Rows rows(&section, &RunConfig::policy);
  rows.add("clip_low", KeyType::kReal, &PolicyOptions::clip_low,
           {.description = "a token with a negative advantage gives no gradient once its "
                           "probability is below 1 - clip_low times the old one",
            .bounds = between(0, 1)});
  rows.add("clip_high", KeyType::kReal, &PolicyOptions::clip_high,
           {.description = "a token with a positive advantage gives no gradient once its "
                           "probability is above 1 + clip_high times the old one",
            .bounds = at_least(0)});
  return section;
}

Section distill_section() {
  Section section{"distill", "settings of train.loss = \"distill\"", {}};
  Rows rows(&section, &RunConfig::distill);
  rows.add("top_k", KeyType::kInteger, &DistillOptions::top_k,
           {.description = "the most tokens of the teacher for each token of a row; device memory "
                           "is planned for them, and a row with more is a bad row",
            .bounds = between(1, kMostTeacherTokens),
            .unit = "tokens"});
  rows.add("temperature", KeyType::kReal, &DistillOptions::temperature,
           {.description = "divides the student's logits; the rows' log-probabilities are those of "
                           "the teacher at the same temperature",
            .bounds = between(0.01, 100)});
  rows.add(
      "ce_weight", KeyType::kReal, &DistillOptions::ce_weight,
      {.description = "the share of the cross entropy of the rows' own tokens in the loss; the "
                      "divergence has the rest",
       .bounds = between(0, 1)});
  return section;
}

Section optimizer_section() {
  using Optimizer = OptimizerSection;
  Section section{"optimizer", "optimizer and weight decay", {}};
  Rows rows(&section, &RunConfig::optimizer);
  rows.choice<Optimizer::Name>("name", &Optimizer::name, {{"adamw", Optimizer::Name::kAdamW}},
                               {.description = "adamw: AdamW with decoupled weight decay"});
  rows.add(
      "lr", KeyType::kReal, &Optimizer::lr,
      {.description = "peak learning rate of the schedule, at most 1e38", .bounds = at_least(0)});
  rows.add("betas", KeyType::kRealPair, &Optimizer::betas,
           {.description = "decay rates of the first and the second moment",
            .bounds = {.min = 0, .max = 1, .max_excluded = true}});
  rows.add(
      "eps", KeyType::kReal, &Optimizer::eps,
      {.description = "term added to the square root of the second moment", .bounds = above(0)});
  rows.add("weight_decay", KeyType::kReal, &Optimizer::weight_decay,
           {.description = "weight decay: each step subtracts this fraction of the weight, times "
                           "the learning rate; the product of the two is at most 1e38",
            .bounds = at_least(0)});
  rows.choice<DecayRule>(
      "decay", &Optimizer::decay, {{"matrices", DecayRule::kMatrices}, {"all", DecayRule::kAll}},
      {.description = "parameters with weight decay: matrices: all matrices, also of experts, but "
                      "no norms and biases; all: all parameters"});
  rows.add(
      "groups", KeyType::kGroups, &Optimizer::groups,
      {.description = "parameter groups with their own lr or weight_decay: [[optimizer.groups]] "
                      "with parameters = [globs of names]; the first group that matches applies, "
                      "and its weight_decay applies to all of its parameters"});
  rows.choice<UpdateOverlap>(
      "overlap", &Optimizer::overlap,
      {{"forward", UpdateOverlap::kForward},
       {"backward", UpdateOverlap::kBackward},
       {"none", UpdateOverlap::kNone}},
      {.description =
           "when units are updated: forward: in the forward pass of the next step, each just "
           "before its use; backward: as soon as the unit's gradient is in host memory, which "
           "requires train.max_grad_norm = 0 and keeps the gradients of only two units on the "
           "host; none: all units after backward. The numbers are the same"});
  return section;
}

Section precision_section() {
  using Precision = PrecisionSection;
  using Drain = std::optional<DType>;
  Section section{"precision", "number formats", {}};
  Rows rows(&section, &RunConfig::precision);
  rows.choice<DType>("compute", &Precision::compute,
                     {{"bf16", DType::kBF16}, {"fp32", DType::kF32}},
                     {.description = "number format of parameters and activations on the device: "
                                     "bf16, or fp32 with twice the bytes"});
  rows.choice<DType>("reduce", &Precision::reduce, {{"fp32", DType::kF32}, {"bf16", DType::kBF16}},
                     {.description = "number format of gradients sent between ranks: fp32, or bf16 "
                                     "with half the bytes; sums are in fp32"});
  rows.choice<Drain>(
      "drain", &Precision::drain,
      {{"auto", Drain{}}, {"bf16", Drain{DType::kBF16}}, {"fp32", Drain{DType::kF32}}},
      {.description = "number format of gradients copied from the device to the host: fp32, or "
                      "bf16 with half the bytes; auto: the same as precision.compute"});
  return section;
}

Section fsdp_section() {
  using Fsdp = FsdpSection;
  using Gather = std::optional<GatherMode>;
  Section section{"fsdp", "FSDP units, sharding and prefetch", {}};
  Rows rows(&section, &RunConfig::fsdp);
  rows.choice<ShardStrategy>(
      "strategy", &Fsdp::strategy,
      {{"full_shard", ShardStrategy::kFullShard},
       {"shard_grad_op", ShardStrategy::kShardGradOp},
       {"hybrid_shard", ShardStrategy::kHybridShard},
       {"no_shard", ShardStrategy::kNoShard}},
      {.description = "full_shard: the model state is sharded over all ranks; "
                      "shard_grad_op: the same, but gathered units stay on the device "
                      "from forward to backward; hybrid_shard: sharded within groups "
                      "of fsdp.shard_ranks ranks and replicated across groups; "
                      "no_shard: every rank keeps the full model state"});
  rows.add("shard_ranks", KeyType::kInteger, &Fsdp::shard_ranks,
           {.description = "number of ranks in a group of hybrid_shard; auto: the ranks of a node",
            .bounds = between(1, 1 << 20),
            .unit = "ranks"});
  rows.add(
      "units", KeyType::kUnits, &Fsdp::units,
      {.description =
           "parameters that are gathered and freed together: \"block\": each transformer block, "
           "the embedding and the head; \"half\": attention and MLP (or experts) of each block are "
           "separate units: less device memory, but twice the activation checkpoints; \"piece\": "
           "also experts in groups, and the embedding and the head in pieces no larger; \"auto\": "
           "the first of these that fits, or the cut of the state on the drives; { rows = N }: as "
           "\"piece\", with N rows per piece; { classes = [...] }: units of these classes stay "
           "separate, others are merged; { min_parameters = N }: units are merged up to that size; "
           "{ groups = [[\"block.0\", \"block.1.attention\"]] }: explicit groups. Results differ "
           "only by the order of sums: the gradient norm is summed by unit, the loss and the "
           "gradients of a head in pieces by piece, and the gradient of a tied table in one unit "
           "with the head by micro-batch"});
  rows.add("prefetch", KeyType::kInteger, &Fsdp::prefetch,
           {.description = "number of units gathered ahead of the unit that computes; each takes "
                           "one more device slot",
            .bounds = between(0, 8),
            .unit = "units"});
  rows.choice<Fsdp::Recompute>(
      "recompute", &Fsdp::recompute,
      {{"unit", Fsdp::Recompute::kUnit},
       {"except-attention", Fsdp::Recompute::kExceptAttention},
       {"except-heads", Fsdp::Recompute::kExceptHeads},
       {"except-middle", Fsdp::Recompute::kExceptMiddle},
       {"except-mlp", Fsdp::Recompute::kExceptMlp},
       {"none", Fsdp::Recompute::kNone},
       {"auto", Fsdp::Recompute::kAuto}},
      {.description =
           "activation checkpointing: unit: keep only the input of each unit and recompute the "
           "unit in backward; except-attention: as unit, but attention's result and its "
           "log-sum-exp are kept beside the input, wherever offload.activations keeps that; "
           "except-heads: also queries, keys and values; except-middle: also the sum between the "
           "halves of a block; except-mlp: also what the MLP's activation reads (gate and up); "
           "none: keep all activations, except those of blocks with experts, which are always "
           "recomputed; auto: "
           "keep the activations of the last units, as many as fit under the memory limits. The "
           "numbers are the same"});
  rows.choice<Gather>(
      "gather", &Fsdp::gather,
      {{"auto", Gather{}},
       {"collective", Gather{GatherMode::kCollective}},
       {"host", Gather{GatherMode::kHost}}},
      {.description =
           "how shards are gathered: collective: each rank copies its own shard to the device, "
           "then an all-gather; host: each rank copies all shards from the shared memory of the "
           "machine's ranks; auto: the faster of the two, measured at start"});
  return section;
}

Section offload_section() {
  using Offload = OffloadSection;
  Section section{"offload", "tiers of the model state, and memory limits", {}};
  Rows rows(&section, &RunConfig::offload);
  rows.choice<Offload::Parameters>(
      "parameters", &Offload::parameters,
      {{"host", Offload::Parameters::kHost},
       {"nvme", Offload::Parameters::kNvme},
       {"files", Offload::Parameters::kFiles}},
      {.description = "tier of the parameters that the device reads: host: host memory; nvme: the "
                      "drives of offload.nvme; files: frozen parameters stay in the model's own "
                      "files, and those that do not fit in host memory are read in every step"});
  rows.choice<Offload::Optimizer>(
      "optimizer", &Offload::optimizer,
      {{"host", Offload::Optimizer::kHost}, {"nvme", Offload::Optimizer::kNvme}},
      {.description =
           "tier of the fp32 master weights and the moments: host: host memory; nvme: the drives "
           "of offload.nvme, where every step is a durable commit (see nvme_versions)"});
  rows.choice<Offload::Activations>(
      "activations", &Offload::activations,
      {{"device", Offload::Activations::kDevice},
       {"host", Offload::Activations::kHost},
       {"nvme", Offload::Activations::kNvme}},
      {.description =
           "tier of the activation checkpoints between forward and backward: device: its memory; "
           "host: host memory; nvme: the drives of offload.nvme, whichever tier keeps the state"});
  std::vector<std::pair<std::string, StateFormat>> formats;
  for (const StateFormatTraits& traits : kStateFormats) {
    formats.emplace_back(traits.name, traits.format);
  }
  rows.choice<StateFormat>(
      "state_format", &Offload::state_format, formats,
      {.description =
           "format of the model state: split: the bf16 parameter is the upper half of the fp32 "
           "master, with the same bits as fp32 in fewer bytes; split-bf16 and split-int8: also the "
           "moments of matrices in bf16 or 8 bits, rounded stochastically"});
  rows.add("nvme", KeyType::kPaths, &Offload::nvme,
           {.description = "one directory on each drive, used by this run alone"});
  rows.add("nvme_versions", KeyType::kInteger, &Offload::nvme_versions,
           {.description = "number of versions of the state on the drives; 2: every step is a "
                           "durable commit; 1: half the space, but only checkpoints survive a kill",
            .bounds = between(1, 2),
            .unit = "versions"});
  rows.add(
      "nvme_tbw", KeyType::kBytes, &Offload::nvme_tbw,
      {.description = "rated write endurance of each drive (TBW), for the wear forecast of the "
                      "plan; auto: only the wear that the drives report",
       .bounds = at_least(1)});
  rows.add("device_memory", KeyType::kBytes, &Offload::device_memory,
           {.description = "hard limit of device memory; auto: on a GPU its free memory, on a CPU "
                           "what the plan needs",
            .bounds = at_least(1)});
  rows.add("host_memory", KeyType::kBytes, &Offload::host_memory,
           {.description = "hard limit of host memory; auto: the free memory of the machine",
            .bounds = at_least(1)});
  rows.add("pinned_memory", KeyType::kBytes, &Offload::pinned_memory,
           {.description = "hard limit of the host memory that a rank registers with its GPU; the "
                           "rest is copied through small buffers, more slowly, with the same bits; "
                           "auto: all, as far as the system allows",
            .bounds = at_least(0)});
  rows.add(
      "threads", KeyType::kInteger, &Offload::threads,
      {.description = "host threads of the optimizer; auto: all cores, with a GPU all hardware "
                      "threads but three, at least half; the numbers do not depend on it",
       .bounds = between(1, 1024),
       .unit = "threads"});
  return section;
}

Section checkpoint_section() {
  using Checkpoint = CheckpointSection;
  Section section{"checkpoint", "checkpoints, resume and export", {}};
  Rows rows(&section, &RunConfig::checkpoint);
  rows.add("every_steps", KeyType::kInteger, &Checkpoint::every_steps,
           {.description = "steps between checkpoints; 0: only at the end and on a signal",
            .bounds = between(0, kMaxSteps),
            .unit = "steps"});
  rows.add("keep", KeyType::kInteger, &Checkpoint::keep,
           {.description = "number of newest checkpoints to keep",
            .bounds = between(1, 1e6),
            .unit = "checkpoints"});
  rows.add(
      "resume", KeyType::kPath, &Checkpoint::resume,
      {.description = "\"auto\": resume from the newest valid checkpoint of run.dir, if there is "
                      "one; \"never\": do not resume; or the directory of a checkpoint"});
  rows.choice<Checkpoint::Export>(
      "export", &Checkpoint::export_model,
      {{"end", Checkpoint::Export::kEnd},
       {"merged", Checkpoint::Export::kMerged},
       {"never", Checkpoint::Export::kNever}},
      {.description = "end: write a Hugging Face directory to <run.dir>/hf at the end of the run, "
                      "in the number formats of model.path (evaluations use precision.compute); "
                      "with adapters: the adapter alone; merged: the model with the adapters' "
                      "products added to its weights; never: write none"});
  rows.choice<Checkpoint::ExportFormat>(
      "export_format", &Checkpoint::export_format,
      {{"bf16", Checkpoint::ExportFormat::kBF16},
       {"published", Checkpoint::ExportFormat::kPublished}},
      {.description = "of a model that was published in MXFP4 or block-scaled fp8: bf16: exports "
                      "hold its packed matrices as bf16; published: they are packed again as the "
                      "files of model.path hold them; an adapter alone is always fp32"});
  return section;
}

Section device_section() {
  using Device = DeviceSection;
  Section section{"device", "compute device", {}};
  Rows rows(&section, &RunConfig::device);
  rows.choice<Device::Kind>(
      "kind", &Device::kind,
      {{"auto", Device::Kind::kAuto}, {"cpu", Device::Kind::kCpu}, {"cuda", Device::Kind::kCuda}},
      {.description = "compute device: cpu; cuda: an NVIDIA GPU; auto: the GPU if there is one; a "
                      "run that started on the CPU stays on the CPU"});
  rows.add(
      "threads", KeyType::kInteger, &Device::threads,
      {.description =
           "compute threads of the CPU device; the same number gives the same bits in every run",
       .bounds = between(1, 256),
       .unit = "threads"});
  return section;
}

Section dist_section() {
  using Dist = DistSection;
  Section section{"dist", "communication between ranks", {}};
  Rows rows(&section, &RunConfig::dist);
  rows.add(
      "timeout", KeyType::kDuration, &Dist::timeout_ms,
      {.description = "maximum wait for another rank, after which the run ends; must exceed the "
                      "longest time between two operations, including a checkpoint",
       .bounds = between(1, 1000.0 * 24 * 3'600'000)});
  rows.choice<CommBackend>(
      "backend", &Dist::backend,
      {{"auto", CommBackend::kAuto}, {"gloo", CommBackend::kGloo}, {"nccl", CommBackend::kNccl}},
      {.description = "library for collectives; auto: nccl between GPUs, else gloo"});
  rows.add("secret_file", KeyType::kPath, &Dist::secret_file,
           {.description =
                "file of mode 0600 with a shared secret, the same on all nodes; ranks started by "
                "torchrun, srun or mpirun prove that they know it when they connect (SECURITY.md); "
                "longshore launch makes a secret itself, or takes --secret-file"});
  return section;
}

Section log_section() {
  Section section{"log", "progress output and metrics", {}};
  Rows rows(&section, &RunConfig::log);
  rows.add("every_steps", KeyType::kInteger, &LogSection::every_steps,
           {.description = "steps between printed progress lines; metrics.jsonl has every step",
            .bounds = between(1, kMaxSteps),
            .unit = "steps"});
  rows.add(
      "tensorboard", KeyType::kBool, &LogSection::tensorboard,
      {.description = "also write TensorBoard files to <run.dir>/tensorboard, for `tensorboard "
                      "--logdir <run.dir>`"});
  rows.add("wandb", KeyType::kString, &LogSection::wandb,
           {.description = "W&B project to which scripts/follow_metrics sends the record while the "
                           "run goes on; it needs Python 3.11 and the package wandb; \"none\": to "
                           "none"});
  rows.add("router", KeyType::kBool, &LogSection::router,
           {.description = "record statistics of the routers in every step: load of each expert, "
                           "idle experts, entropy"});
  return section;
}

}  // namespace

const std::vector<Section>& run_file_sections() {
  static const std::vector<Section> kSections = {
      run_section(),     model_section(),     adapter_section(),    tokenizer_section(),
      data_section(),    train_section(),     preference_section(), policy_section(),
      distill_section(), optimizer_section(), schedule_section(),   precision_section(),
      fsdp_section(),    offload_section(),   checkpoint_section(), eval_section(),
      device_section(),  dist_section(),      log_section()};
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
