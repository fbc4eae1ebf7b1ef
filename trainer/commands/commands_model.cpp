// init-model, tokenizer train: models and tokenizers made from nothing; verify: a model looked at.
#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/errors.h"
#include "base/json.h"
#include "base/number_formats.h"
#include "base/output.h"
#include "base/own_file.h"
#include "data/text_files.h"
#include "hf/safetensors_writer.h"
#include "model/families.h"
#include "model/init_presets.h"
#include "model/model_spec.h"
#include "model/random_init.h"
#include "text/tokenizer.h"
#include "text/tokenizer_trainer.h"
#include "trainer/commands/commands.h"

namespace longshore {
namespace {

constexpr const char* kEndOfText = "<|endoftext|>";
constexpr int64_t kChunkElements = int64_t{1} << 18;

TrainedTokenizer make_tokenizer(const std::vector<std::string>& files, int64_t vocabulary) {
  TokenizerRecipe recipe;
  recipe.vocabulary_size = vocabulary;
  recipe.eos_token = kEndOfText;
  if (files.empty()) return byte_tokenizer(recipe);
  TokenizerTrainer trainer(recipe);
  for_each_text(files, [&trainer](std::string_view text) { trainer.add_document(text); });
  return trainer.finish();
}

// The rows of the embedding: the largest id + 1 of tokenizer.json.
int64_t id_limit_of(const TrainedTokenizer& tokenizer) {
  TokenizerFiles files;
  files.tokenizer = tokenizer.tokenizer_json;
  files.tokenizer_config = tokenizer.tokenizer_config_json;
  return Tokenizer::from_files(files, "the new tokenizer").id_limit();
}

void write_random_weights(const ModelSpec& spec, uint64_t seed, const std::string& path) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      tensors.push_back({parameter.name, TensorDType::kF32, parameter.shape});
    }
  }
  SafetensorsWriter writer(path, tensors, {{"format", "pt"}});
  std::vector<float> chunk(static_cast<size_t>(kChunkElements));
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      for (int64_t begin = 0; begin < parameter.elements(); begin += kChunkElements) {
        const std::span<float> values(
            chunk.data(),
            static_cast<size_t>(std::min(kChunkElements, parameter.elements() - begin)));
        fill_random(parameter.name, parameter.init, seed, begin, values);
        writer.append(std::as_bytes(values));
      }
    }
  }
  writer.finish();
}

}  // namespace

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
  print_out("%s: %s, %lld parameters, %lld tokens\n", options.directory.c_str(),
            options.preset.c_str(), static_cast<long long>(spec.parameter_elements()),
            static_cast<long long>(vocabulary));
  return 0;
}

int run_verify(const VerifyOptions& options, bool json) {
  const Findings findings = verify_model(options);
  if (json) {
    print_raw(to_json(findings, options.model).dump(2, ' ', false, Json::error_handler_t::replace) +
              "\n");
  } else {
    print_out("%s", format_findings(findings, options.model).c_str());
  }
  return static_cast<int>(findings.failed() ? ExitCode::kData : ExitCode::kDone);
}

int run_tokenizer_train(const TokenizerTrainOptions& options) {
  const TrainedTokenizer tokenizer = make_tokenizer(options.files, options.vocabulary);
  write_output_file(options.output, tokenizer.tokenizer_json);
  print_out("%s: %lld tokens\n", options.output.c_str(),
            static_cast<long long>(id_limit_of(tokenizer)));
  return 0;
}

}  // namespace longshore
