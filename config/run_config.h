// RunConfig: the checked contents of a run file: one struct per section, one member per key. The
// defaults here are the run file's defaults; config/field_table.cpp binds each member to its key.
// Plain values, constructed at the start of a command, then read-only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/adapter_values.h"
#include "base/bytes.h"
#include "base/comm_backend.h"
#include "base/dtype.h"
#include "base/loss_kind.h"
#include "shard/policy.h"

namespace longshore {

struct RunSection {
  std::string dir;  // output directory of the run
  int64_t seed = 42;
  std::vector<std::string> on_end = {};        // a command and its arguments; empty: none
  int64_t on_end_limit_ms = int64_t{600'000};  // the key `on_end_limit`, a duration
  bool operator==(const RunSection&) const = default;
};

struct ModelSection {
  enum class Init : uint8_t { kPretrained, kRandom };
  std::string path;  // a Hugging Face directory
  Init init = Init::kPretrained;
  bool operator==(const ModelSection&) const = default;
};

// A key of [adapter] that is set together with adapter.path. The adapter's own settings take its
// place; ModelSource compares the two.
struct KeyBesidePath {
  std::string name;       // "adapter.r"
  std::string value;      // TOML
  std::string place;      // "run.toml:3:5"
  bool replaced = false;  // set in a file, adapter.path on the command line
  bool operator==(const KeyBesidePath&) const = default;
};

// Low-rank adapters over a frozen model.
struct AdapterSection {
  enum class Kind : uint8_t { kNone, kLora, kDora };
  enum class Base : uint8_t { kPublished, kNf4, kFp8 };
  Kind kind = Kind::kNone;
  Base base = Base::kPublished;
  int64_t r = 8;
  double alpha = 8.0;
  bool rslora = false;
  double dropout = 0.0;
  std::vector<std::string> targets = {"all-linear"};
  std::vector<std::string> exclude;  // what is no target
  std::vector<int64_t> layers;       // the only layers with targets; empty: all
  std::vector<PatternNumber> rank_pattern, alpha_pattern;  // PEFT's, in the order of the text
  std::vector<std::string> train;  // modules and globs of parameters that are trained in full
  AdapterBias bias = AdapterBias::kNone;
  std::string path = "new";                // new, or the directory of an adapter to start from
  bool any_base = false;                   // the adapter of `path` may belong to another model
  std::vector<KeyBesidePath> beside_path;  // the members of these keys keep their defaults here
  // With kNone the adapter of `path` says which kind it is (take_adapter_kind).
  bool on() const { return kind != Kind::kNone || !is_new(); }
  bool is_new() const { return path == "new"; }
  // Returns whether matrices are packed in a format that may differ from that of the model's files.
  bool packs() const { return on() && base != Base::kPublished; }
  bool operator==(const AdapterSection&) const = default;
};

struct TokenizerSection {
  std::string path = "auto";  // auto = model.path, or a directory
  std::vector<std::string> add_tokens;
  std::vector<std::string> add_special_tokens;
  bool adds() const { return !add_tokens.empty() || !add_special_tokens.empty(); }
  bool operator==(const TokenizerSection&) const = default;
};

struct DataSection {
  enum class Format : uint8_t {
    kAuto,
    kText,
    kTokens,
    kPromptCompletion,
    kMessages,
    kPreference,
    kUnpaired,
    kPolicy,
    kDistill
  };
  enum class Mask : uint8_t { kAuto, kAssistant, kCompletion, kLast, kAll };
  enum class Overlength : uint8_t { kError, kTruncate, kDrop, kSplit };
  enum class BadRows : uint8_t { kError, kSkip };
  enum class SpecialTokens : uint8_t { kKeep, kText, kError };
  enum class Mix : uint8_t { kConcat, kExhaust, kRestart };
  std::vector<std::string> train;
  std::vector<std::string> eval;
  Format format = Format::kAuto;
  Mask mask = Mask::kAuto;
  std::vector<double> weights;  // one per entry of `train`, or empty
  Mix mix = Mix::kConcat;
  std::vector<double> probabilities;     // one per entry of `train`; empty = equal ones
  int64_t max_rows = 0;                  // of each file; 0 = all
  std::vector<std::string> keys;         // "prompt = \"question\""; see KeyType::kTable
  std::string prompt_template = "auto";  // auto, plain, alpaca, chat, or a text
  std::string chat_template = "auto";    // auto, training, or a file
  std::vector<std::string> template_arguments;
  std::string date = "2024-07-26";
  int64_t max_tokens = 1024;  // per sequence
  bool packing = true;
  bool shuffle = true;
  Overlength overlength = Overlength::kError;
  BadRows bad_rows = BadRows::kError;
  SpecialTokens special_tokens = SpecialTokens::kKeep;
  bool add_eos = true;
  std::string cache = "auto";  // auto, or a directory
  Bytes cache_limit = 100 * kGiB;
  std::optional<int64_t> threads;  // nullopt = auto
  bool operator==(const DataSection&) const = default;
};

struct TrainSection {
  int64_t steps = 0;               // 0 = set by `epochs`; exactly one of the two is above 0
  double epochs = 0.0;             // 0 = set by `steps`
  int64_t sequences_per_step = 8;  // over all ranks and micro-batches
  // Sequences on one device at a time; nullopt = auto: MeasuredRun chooses a number.
  std::optional<int64_t> micro_batch = 1;
  double max_grad_norm = 1.0;             // 0 = no clipping
  std::vector<std::string> freeze;        // globs of parameter names
  std::optional<double> router_aux_loss;  // coefficient; nullopt = auto: from config.json
  double router_correction_rate = 0.0;    // 0 = corrections stay as in the model
  int64_t max_nonfinite_steps = 10;       // in a row; at this count the run ends with exit code 7
  LossKind loss = LossKind::kSft;
  bool operator==(const TrainSection&) const = default;
};

// The settings of a loss over pairs; its `loss` is train.loss, which `preference_options` sets.
struct PreferenceSection : PreferenceOptions {
  std::string reference = "start";  // start, adapter-off, or the directory of a model
  bool is_start() const { return reference == "start"; }
  bool is_adapter_off() const { return reference == "adapter-off"; }
  bool operator==(const PreferenceSection&) const = default;
};

// ParameterGroup selects parameters with their own learning rate or weight decay.
struct ParameterGroup {
  std::vector<std::string> parameters;  // globs of names; the first matching group applies
  std::optional<double> lr;             // peak rate of the schedule; nullopt = optimizer.lr
  std::optional<double> weight_decay;   // for all its parameters; nullopt = the default rule
  bool operator==(const ParameterGroup&) const = default;
};

struct OptimizerSection {
  enum class Name : uint8_t { kAdamW };
  Name name = Name::kAdamW;
  double lr = 2e-5;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.0;
  DecayRule decay = DecayRule::kMatrices;
  std::vector<ParameterGroup> groups;
  UpdateOverlap overlap = UpdateOverlap::kForward;
  bool operator==(const OptimizerSection&) const = default;
};

struct ScheduleSection {
  // config/schedule_table.cpp has their formulas.
  enum class Name : uint8_t {
    kConstant,
    kLinear,
    kCosine,
    kCosineWithRestarts,
    kPolynomial,
    kInverseSqrt,
    kWsd
  };
  enum class Decay : uint8_t { kLinear, kCosine, kOneMinusSqrt };
  Name name = Name::kCosine;
  int64_t warmup_steps = 0;
  double warmup_ratio = 0.0;  // the warm-up as a share of the run; 0: warmup_steps counts
  double min_lr_ratio = 0.1;
  int64_t cycles = 1;                 // cosine_with_restarts only
  double power = 1.0;                 // polynomial only
  int64_t timescale = 0;              // inverse_sqrt only: steps; 0 = the warm-up's, or 10 000
  int64_t decay_steps = 0;            // wsd only: length of the final decay
  Decay decay_type = Decay::kLinear;  // wsd only: shape of the final decay
  // Returns the steps of the warm-up in a run of this length: at most all of them.
  int64_t warmup_in(int64_t total_steps) const;
  bool operator==(const ScheduleSection&) const = default;
};

struct PrecisionSection {
  DType compute = DType::kBF16;  // kBF16 or kF32
  DType reduce = DType::kF32;
  std::optional<DType> drain;  // nullopt = auto: equals `compute`
  DType drain_dtype() const { return drain.value_or(compute); }
  bool operator==(const PrecisionSection&) const = default;
};

// UnitsChoice selects the parameters that are gathered and freed together.
struct UnitsChoice {
  enum class Kind : uint8_t {
    kBlock,
    kHalf,
    kPiece,
    kAuto,
    kRows,
    kClasses,
    kMinParameters,
    kGroups
  };
  Kind kind = Kind::kBlock;
  std::vector<std::string> classes;              // kClasses only
  int64_t min_parameters = 0;                    // kMinParameters only
  int64_t rows = 0;                              // kRows only
  std::vector<std::vector<std::string>> groups;  // kGroups only: names of units
  bool operator==(const UnitsChoice&) const = default;
};

// Returns the run file's name of the kind; empty for kinds that are tables there.
constexpr std::string_view name_of(UnitsChoice::Kind kind) {
  switch (kind) {
    case UnitsChoice::Kind::kBlock:
      return "block";
    case UnitsChoice::Kind::kHalf:
      return "half";
    case UnitsChoice::Kind::kPiece:
      return "piece";
    case UnitsChoice::Kind::kAuto:
      return "auto";
    default:
      return "";
  }
}

struct FsdpSection {
  enum class Recompute : uint8_t {
    kUnit,
    kExceptAttention,
    kNone,
    kAuto,
    kExceptHeads,
    kExceptMiddle,
    kExceptMlp,
  };
  ShardStrategy strategy = ShardStrategy::kFullShard;
  std::optional<int64_t> shard_ranks;  // hybrid_shard only; nullopt = auto: the ranks of a node
  UnitsChoice units;
  int64_t prefetch = 1;  // units ahead; slots = prefetch + 1
  Recompute recompute = Recompute::kUnit;
  std::optional<GatherMode> gather;  // nullopt = auto: the faster one by measurement
  bool operator==(const FsdpSection&) const = default;
};

struct OffloadSection {
  // kFiles: frozen parameters stay in the model's files, the others are in host memory.
  enum class Parameters : uint8_t { kHost, kNvme, kFiles };
  enum class Optimizer : uint8_t { kHost, kNvme };
  enum class Activations : uint8_t { kDevice, kHost, kNvme };
  Parameters parameters = Parameters::kHost;
  Optimizer optimizer = Optimizer::kHost;
  Activations activations = Activations::kDevice;
  StateFormat state_format = StateFormat::kSplitBf16;
  std::vector<std::string> nvme;       // one directory per drive
  int64_t nvme_versions = 2;           // versions of the state on drives; 1: steps are not durable
  std::optional<Bytes> nvme_tbw;       // a drive's rated TBW; nullopt = auto: from the drive
  std::optional<Bytes> device_memory;  // nullopt = auto
  std::optional<Bytes> host_memory;    // nullopt = auto
  std::optional<Bytes> pinned_memory;  // nullopt = auto
  std::optional<int64_t> threads;      // optimizer threads; nullopt = auto
  bool operator==(const OffloadSection&) const = default;
};

struct CheckpointSection {
  enum class Export : uint8_t { kEnd, kMerged, kNever };
  enum class ExportFormat : uint8_t { kBF16, kPublished };
  int64_t every_steps = 500;  // 0 = only at the end and on a signal
  int64_t keep = 2;
  std::string resume = "auto";         // auto, never, or a directory
  Export export_model = Export::kEnd;  // the key `export`, which is a C++ keyword
  ExportFormat export_format = ExportFormat::kBF16;
  bool operator==(const CheckpointSection&) const = default;
};

struct EvalSection {
  enum class PromptFormat : uint8_t { kAuto, kText, kMessages };
  std::vector<std::string> sets;  // "math = [\"math.jsonl\"]"; see KeyType::kTable
  int64_t every_steps = 0;        // 0 = only at the end
  int64_t sequences = 0;          // maximum per evaluation; 0 = all
  double split = 0.0;             // fraction of data.train that is held out
  bool keep_best = false;
  int64_t patience = 0;  // evaluations without a lower loss; 0 = never stop early
  std::vector<std::string> prompts;
  PromptFormat prompt_format = PromptFormat::kAuto;
  int64_t max_new_tokens = 64;
  bool operator==(const EvalSection&) const = default;
};

struct DeviceSection {
  enum class Kind : uint8_t { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;
  std::optional<int64_t> threads;  // LibTorch's compute threads; nullopt = auto
  bool operator==(const DeviceSection&) const = default;
};

struct DistSection {
  int64_t timeout_ms = 10 * 60 * 1000;  // the key `timeout`, a duration
  CommBackend backend = CommBackend::kAuto;
  std::string secret_file = "none";  // none, or a file
  bool operator==(const DistSection&) const = default;
};

struct LogSection {
  int64_t every_steps = 1;
  bool tensorboard = false;
  std::string wandb = "none";  // none, or a project
  bool sends_wandb() const { return wandb != "none" && !wandb.empty(); }
  bool router = false;
  bool operator==(const LogSection&) const = default;
};

struct RunConfig {
  RunSection run;
  ModelSection model;
  AdapterSection adapter;
  TokenizerSection tokenizer;
  DataSection data;
  TrainSection train;
  PreferenceSection preference;
  PolicyOptions policy;
  DistillOptions distill;
  OptimizerSection optimizer;
  ScheduleSection schedule;
  PrecisionSection precision;
  FsdpSection fsdp;
  OffloadSection offload;
  CheckpointSection checkpoint;
  EvalSection eval;
  DeviceSection device;
  DistSection dist;
  LogSection log;
  bool operator==(const RunConfig&) const = default;
};

// Override is a `--section.key=value` of the command line.
struct Override {
  std::string key;    // "section.key"
  std::string value;  // parsed as TOML, otherwise a string
};

struct LoadOptions {
  // false: required keys may be missing, and rules between keys are not checked.
  bool complete = true;
  // false: the run's length may be missing, for commands that only read data.
  bool length = true;
};

// CheckedConfig is the configuration with every problem; keys with a problem have their defaults.
struct CheckedConfig {
  RunConfig config;
  std::vector<std::string> problems;
};
CheckedConfig check_run_config(const std::vector<std::string>& files,
                               const std::vector<Override>& overrides,
                               const LoadOptions& options = {});

// Returns the key that this one excludes, "train.steps" for "train.epochs"; "" if there is none. A
// key of the command line removes the one that it excludes from the files.
std::string_view rival_of(std::string_view key);

// Returns advice for an unknown option that is the last part of a key (`--lr` of `--optimizer.lr`)
// or a name of Axolotl, TRL, LLaMA-Factory, PEFT or DeepSpeed: the key, or the reason why there is
// none. Returns "" for other names.
std::string advice_for_option(const std::string& name);

// Reads run files ("-" is standard input; the directory of a run is its config.toml) and overrides
// over the defaults: a later file overrides earlier ones key by key, and the command line overrides
// files. Throws ConfigError with every problem, each with file:line:column or the argument. Expands
// "~"; relative paths stay relative.
RunConfig load_run_config(const std::vector<std::string>& files,
                          const std::vector<Override>& overrides, const LoadOptions& options = {});

// Formats the whole configuration as a run file that loads to an equal RunConfig.
std::string to_toml(const RunConfig& config);
// Formats only the keys that differ from their defaults.
std::string changed_keys(const RunConfig& config);

}  // namespace longshore
