// RunConfig: what a run may say, checked: one struct per section of the run file, one member per
// key. The defaults here are the defaults of the run file; config/field_table.cpp binds each member
// to its key. Plain values; made once at the start of a command, then only read.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/comm_backend.h"
#include "base/dtype.h"
#include "shard/policy.h"

namespace longshore {

struct RunSection {
  std::string dir;  // everything the run writes
  int64_t seed = 42;
  bool operator==(const RunSection&) const = default;
};

struct ModelSection {
  enum class Init : uint8_t { kPretrained, kRandom };
  enum class Dropout : uint8_t { kOff };
  std::string path;  // a Hugging Face directory
  Init init = Init::kPretrained;
  Dropout dropout = Dropout::kOff;
  bool operator==(const ModelSection&) const = default;
};

struct TokenizerSection {
  std::string path = "auto";  // auto = model.path, or a directory
  bool operator==(const TokenizerSection&) const = default;
};

struct DataSection {
  enum class Format : uint8_t { kAuto, kText, kTokens, kPromptCompletion, kMessages };
  enum class Mask : uint8_t { kAuto, kAssistant, kCompletion, kLast, kAll };
  enum class Overlength : uint8_t { kError, kTruncate, kDrop, kSplit };
  enum class BadRows : uint8_t { kError, kSkip };
  std::vector<std::string> train;
  std::vector<std::string> eval;
  Format format = Format::kAuto;
  Mask mask = Mask::kAuto;
  std::vector<double> weights;           // one for each of `train`, or empty
  std::vector<std::string> keys;         // "prompt = \"question\"", as KeyType::kTable has it
  std::string prompt_template = "auto";  // auto, plain, alpaca, or a text
  std::string chat_template = "auto";    // auto, training, or a file
  std::vector<std::string> template_arguments;
  std::string date = "2024-07-26";
  int64_t max_tokens = 1024;  // per sequence
  bool packing = true;
  bool shuffle = true;
  Overlength overlength = Overlength::kError;
  BadRows bad_rows = BadRows::kError;
  bool add_eos = true;
  std::string cache = "auto";  // auto, or a directory
  Bytes cache_limit = 100 * kGiB;
  std::optional<int64_t> threads;  // nullopt = auto
  bool operator==(const DataSection&) const = default;
};

struct TrainSection {
  int64_t steps = 0;    // 0 = as many as `epochs` says; exactly one of the two is above 0
  double epochs = 0.0;  // 0 = as long as `steps` says
  int64_t sequences_per_step = 8;         // over all ranks and micro-batches
  int64_t micro_batch = 1;                // sequences on one device at a time
  double max_grad_norm = 1.0;             // 0 = no clipping
  std::vector<std::string> freeze;        // globs of parameter names
  std::optional<double> router_aux_loss;  // its coefficient; nullopt = auto: as config.json says
  int64_t max_nonfinite_steps = 10;       // in a row; the run then ends with exit code 7
  bool operator==(const TrainSection&) const = default;
};

// Parameters with a learning rate or a weight decay of their own.
struct ParameterGroup {
  std::vector<std::string> parameters;  // globs of names; the first group that matches counts
  std::optional<double> lr;             // at the top of the schedule; nullopt = optimizer.lr
  std::optional<double> weight_decay;   // of all its parameters; nullopt = as the others
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
  enum class Name : uint8_t { kConstant, kLinear, kCosine, kWsd };
  Name name = Name::kCosine;
  int64_t warmup_steps = 0;
  double min_lr_ratio = 0.1;
  int64_t decay_steps = 0;  // of wsd: length of the fall at the end
  bool operator==(const ScheduleSection&) const = default;
};

struct PrecisionSection {
  DType compute = DType::kBF16;  // kBF16 or kF32
  DType reduce = DType::kF32;
  std::optional<DType> drain;  // nullopt = auto: as `compute`
  DType drain_dtype() const { return drain.value_or(compute); }
  bool operator==(const PrecisionSection&) const = default;
};

// What is gathered and freed together.
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
  std::vector<std::string> classes;              // of kClasses
  int64_t min_parameters = 0;                    // of kMinParameters
  int64_t rows = 0;                              // of kRows
  std::vector<std::vector<std::string>> groups;  // of kGroups: names of units
  bool operator==(const UnitsChoice&) const = default;
};

// In the run file's words; empty for the kinds that are tables there.
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
  enum class Recompute : uint8_t { kUnit, kNone, kAuto };
  ShardStrategy strategy = ShardStrategy::kFullShard;
  std::optional<int64_t> shard_ranks;  // of hybrid_shard; nullopt = auto: the ranks of a node
  UnitsChoice units;
  int64_t prefetch = 1;  // units ahead; slots = prefetch + 1
  Recompute recompute = Recompute::kUnit;
  std::optional<GatherMode> gather;  // nullopt = auto: the faster, measured
  bool operator==(const FsdpSection&) const = default;
};

struct OffloadSection {
  enum class Parameters : uint8_t { kHost, kNvme };
  enum class Optimizer : uint8_t { kHost, kNvme };
  enum class Activations : uint8_t { kDevice, kHost, kNvme };
  Parameters parameters = Parameters::kHost;
  Optimizer optimizer = Optimizer::kHost;
  Activations activations = Activations::kDevice;
  StateFormat state_format = StateFormat::kSplitBf16;
  std::vector<std::string> nvme;       // one directory per drive
  int64_t nvme_versions = 2;           // of the state on them; 1: no step is durable
  std::optional<Bytes> nvme_tbw;       // a drive's rated life; nullopt = auto: what drives say
  std::optional<Bytes> device_memory;  // nullopt = auto
  std::optional<Bytes> host_memory;    // nullopt = auto
  std::optional<int64_t> threads;      // of the optimizer; nullopt = auto
  bool operator==(const OffloadSection&) const = default;
};

struct CheckpointSection {
  enum class Export : uint8_t { kEnd, kNever };
  int64_t every_steps = 500;  // 0 = only at the end and on a signal
  int64_t keep = 2;
  std::string resume = "auto";         // auto, never, or a directory
  Export export_model = Export::kEnd;  // the key `export`, a reserved word of C++
  bool operator==(const CheckpointSection&) const = default;
};

struct EvalSection {
  int64_t every_steps = 0;  // 0 = only at the end
  int64_t sequences = 0;    // at most so many per evaluation; 0 = all
  double split = 0.0;       // fraction of data.train that is held out
  bool keep_best = false;
  int64_t patience = 0;  // evaluations without a lower loss; 0 = the run goes on
  std::vector<std::string> prompts;
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
  bool router = false;
  bool operator==(const LogSection&) const = default;
};

struct RunConfig {
  RunSection run;
  ModelSection model;
  TokenizerSection tokenizer;
  DataSection data;
  TrainSection train;
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

// `--section.key=value` of the command line.
struct Override {
  std::string key;    // "section.key"
  std::string value;  // read as TOML, else as a string
};

struct LoadOptions {
  // False: keys that a run needs may be missing, and keys are not checked against each other.
  bool complete = true;
  // False: the length of the run may be missing, for commands that look at data alone.
  bool length = true;
};

// What could be read, with every problem found; keys with a problem have their defaults.
struct CheckedConfig {
  RunConfig config;
  std::vector<std::string> problems;
};
CheckedConfig check_run_config(const std::vector<std::string>& files,
                               const std::vector<Override>& overrides,
                               const LoadOptions& options = {});

// Reads run files ("-" is standard input) and overrides over the defaults: a later file wins key by
// key, the command line wins over files. Throws ConfigError with every problem found, each with
// file:line:column or the argument. Expands "~"; relative paths stay relative.
RunConfig load_run_config(const std::vector<std::string>& files,
                          const std::vector<Override>& overrides, const LoadOptions& options = {});

// The whole configuration as a run file; loading it gives an equal RunConfig.
std::string to_toml(const RunConfig& config);
// Only the keys that differ from their defaults.
std::string changed_keys(const RunConfig& config);

}  // namespace longshore
