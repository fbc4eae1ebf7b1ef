// The `init-model` command writes a model directory with random weights.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <span>
#include <thread>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/texts.h"
#include "hf/safetensors_writer.h"
#include "model/families/families.h"
#include "model/families/random_init.h"
#include "model/parameters/model_spec.h"
#include "pinned/worker_pool.h"
#include "trainer/commands/command.h"
#include "trainer/commands/new_tokenizer.h"

namespace longshore {
namespace {

// One thread fills a chunk of 1 MiB. kChunks chunks are filled in parallel and then written.
constexpr int64_t kChunkElements = int64_t{1} << 18;
constexpr int64_t kChunks = 64;

struct InitModelOptions {
  std::string directory;
  std::string preset = "tiny-llama";
  std::vector<std::string> text_files;  // training text of the tokenizer; empty: byte tokens
  int64_t vocabulary = 0;               // 0: the tokenizer's smallest size
  uint64_t seed = 42;
  bool json = false;
};

void write_random_weights(const ModelSpec& spec, uint64_t seed, const std::string& path) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      tensors.push_back({parameter.name, TensorDType::kF32, parameter.shape});
    }
  }
  SafetensorsWriter writer(path, tensors, {{"format", "pt"}});
  WorkerPool pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  std::vector<float> values(static_cast<size_t>(kChunks * kChunkElements));
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      for (int64_t begin = 0; begin < parameter.elements(); begin += kChunks * kChunkElements) {
        const int64_t elements = std::min(kChunks * kChunkElements, parameter.elements() - begin);
        const auto part = std::span(values).first(static_cast<size_t>(elements));
        pool.for_each_block((elements + kChunkElements - 1) / kChunkElements, [&](int64_t block) {
          const int64_t done = block * kChunkElements;
          const int64_t count = std::min(kChunkElements, elements - done);
          fill_random(parameter.name, parameter.init, seed, begin + done,
                      part.subspan(static_cast<size_t>(done), static_cast<size_t>(count)));
        });
        writer.append(std::as_bytes(part));
      }
    }
  }
  writer.finish();
}

int run_init_model(const InitModelOptions& options) {
  if (std::filesystem::exists(options.directory) && !std::filesystem::is_empty(options.directory)) {
    throw ConfigError(options.directory + ": exists and is not empty; give a new directory");
  }
  const TrainedTokenizer tokenizer = make_tokenizer(options.text_files, options.vocabulary);
  const int64_t vocabulary = std::max(options.vocabulary, id_limit_of(tokenizer));
  const std::string config_text =
      init_preset_config(options.preset, {.vocabulary = vocabulary, .eos_token = 0});
  const std::string config_path = options.directory + "/config.json";
  const ArchSpec arch =
      read_arch_spec(parse_json(config_text, JsonLimits{}, config_path), config_path);
  const ModelSpec spec = make_model_spec(arch, {});

  make_directories(options.directory);
  write_file_durably(config_path, config_text);
  write_file_durably(options.directory + "/tokenizer.json", tokenizer.tokenizer_json);
  write_file_durably(options.directory + "/tokenizer_config.json", tokenizer.tokenizer_config_json);
  write_random_weights(spec, options.seed, options.directory + "/model.safetensors");
  if (options.json) {
    print_json({{"path", options.directory},
                {"preset", options.preset},
                {"parameters", spec.parameter_elements()},
                {"tokens", vocabulary}});
    return 0;
  }
  print_out("%s: %s, %s parameters, %s tokens\n", options.directory.c_str(), options.preset.c_str(),
            format_count(spec.parameter_elements()).c_str(), format_count(vocabulary).c_str());
  return 0;
}

void add_init_model(CommandArguments command, CommandLine& line) {
  InitModelOptions& options = call_with_options(command, line, run_init_model);
  command.add_option("directory", options.directory, "directory to create").required();
  std::string presets = "architecture and sizes:";
  for (const InitPreset& preset : init_presets()) presets += " " + std::string(preset.name);
  command.add_option("--preset", options.preset, presets).show_default();
  command.add_option("--text", options.text_files,
                     "train a tokenizer on these files; default: a byte tokenizer");
  command.add_number("--vocabulary", options.vocabulary, 0, kMostTokens,
                     "number of tokens of the tokenizer; 0: as few as it needs");
  command.add_number("--seed", options.seed, 0, std::numeric_limits<uint64_t>::max(),
                     "seed of the random weights");
  command.add_flag("--json", options.json, "print the result as one JSON object");
}

}  // namespace

extern const Command kInitModelCommand = {
    .group = CommandGroup::kPrepare,
    .name = "init-model",
    .description = "create a model directory with random weights",
    .add = add_init_model};

}  // namespace longshore
