#include "tests/model/generation_case.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>

#include "base/errors.h"
#include "base/json.h"
#include "base/packed_format.h"
#include "model/families/families.h"
#include "model/parameters/adapter.h"
#include "model/parameters/model_spec.h"
#include "tests/fakes/golden_weights.h"
#include "tests/fakes/test_files.h"
#include "tests/model/golden_case.h"

namespace longshore {
namespace {

std::filesystem::path parity() {
  return std::filesystem::path(test_data()) / "parity";
}

Json read_facts(const std::filesystem::path& path) {
  return read_json_file(path, JsonLimits{});
}

// Replaces the tables that the case draws anew.
void draw_tables(const Json& drawn, std::map<std::string, at::Tensor>& weights) {
  uint32_t number = 0;
  for (const auto& [name, recipe] : drawn.at("tensors").items()) {
    const std::vector<float> values =
        draw_golden(drawn.at("key").get<uint32_t>(), number++, recipe);
    weights.at(name) =
        at::tensor(values, at::kFloat).view(recipe.at(0).get<std::vector<int64_t>>());
  }
}

// Adds an adapter of PEFT by the names of the model's parameters.
AdapterSpec read_adapter(const std::string& name, const ArchSpec& arch,
                         std::map<std::string, at::Tensor>& weights) {
  const std::string directory = parity() / "golden_adapter" / name;
  const Json chosen = read_facts(directory + "/golden.json").at("adapter");
  constexpr std::string_view kPrefix = "base_model.model.";
  for (const auto& [tensor, values] :
       read_golden_tensors(directory + "/adapter/adapter_model.safetensors")) {
    LONGSHORE_CHECK(tensor.starts_with(kPrefix)) << tensor;
    weights[tensor.substr(kPrefix.size())] = values;
  }
  return choose_adapters(arch,
                         {.rank = chosen.at("r").get<int64_t>(),
                          .alpha = chosen.at("lora_alpha").get<double>(),
                          .dora = chosen.at("use_dora").get<bool>(),
                          .targets = chosen.at("target_modules").get<std::vector<std::string>>()},
                         name);
}

// Packs the matrices that the model has packed. As in golden_nf4, their values are those of bf16.
void pack(const ModelSpec& spec, PackedFormat format, std::map<std::string, at::Tensor>& weights) {
  for (const UnitSpec& unit : spec.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      if (!parameter.packed) continue;
      at::Tensor& stored = weights.at(parameter.name);
      const at::Tensor values = stored.to(at::kBFloat16).to(at::kFloat).contiguous();
      const at::Tensor bytes = at::zeros({packed_bytes(format, parameter.shape)}, at::kByte);
      encode_packed(
          format, parameter.shape,
          [&values](int64_t begin, std::span<float> out) {
            std::copy_n(values.const_data_ptr<float>() + begin, out.size(), out.begin());
          },
          std::as_writable_bytes(
              std::span(bytes.mutable_data_ptr<uint8_t>(), static_cast<size_t>(bytes.numel()))));
      stored = bytes;
    }
  }
}

}  // namespace

std::vector<int64_t> GenerationCase::Answer::text() const {
  std::vector<int64_t> all = prompt;
  all.insert(all.end(), tokens.begin(), tokens.end() - 1);
  return all;
}

std::vector<std::string> generation_case_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(parity() / "golden_generation")) {
    names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

GenerationCase read_generation_case(const std::string& name, DType compute,
                                    const UnitPolicy& policy) {
  const Json facts = read_facts(parity() / "golden_generation" / (name + ".json"));
  GoldenCase base = read_golden_case(facts.at("base"));
  base.config.merge_patch(facts.at("config"));
  ArchSpec arch = read_arch_spec(base.config, name);
  if (facts.contains("drawn")) draw_tables(facts.at("drawn"), base.weights);
  const std::vector<FileTensor> files = base.file_tensors();
  GenerationCase one;
  one.name = name;
  one.weights = std::move(base.weights);
  if (facts.contains("adapter")) arch.adapter = read_adapter(facts["adapter"], arch, one.weights);
  ModelSpec spec = make_model_spec(arch, files);
  for (UnitSpec& unit : spec.units) {
    for (ParamSpec& parameter : unit.parameters) parameter.frozen = !parameter.adapter;
  }
  one.plain = std::make_unique<DecoderModel>(arch, spec, cut_for(policy, arch));
  if (facts.contains("packed")) {
    const Packing packing{.format = PackedFormat::kNf4, .compute = compute};
    LONGSHORE_CHECK(facts["packed"] == name_of(packing.format));
    one.packed = std::make_unique<PackedModel>(one.plain.get(), packing);
    pack(one.packed->spec(), packing.format, one.weights);
  }
  for (const Json& answer : facts.at("answers")) {
    one.answers.push_back(
        {.prompt = answer.at("prompt").get<std::vector<int64_t>>(),
         .tokens = answer.at("tokens").get<std::vector<int64_t>>(),
         .log_probabilities = answer.at("log_probabilities").get<std::vector<double>>()});
  }
  return one;
}

}  // namespace longshore
