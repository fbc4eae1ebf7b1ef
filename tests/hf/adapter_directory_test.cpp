// Adapters of PEFT and of hostile hands. The former are those of tests/parity/golden_adapter.
#include "hf/adapter_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "base/json.h"
#include "base/number_formats.h"
#include "tests/fakes/test_files.h"
#include "tests/hf/hf_fixtures.h"

namespace longshore {
namespace {

using Tensors = std::vector<SafetensorsWriter::Tensor>;

const std::string kGolden = test_data() + "/parity/golden_adapter/";
const std::string kPrefix = std::string(kAdapterNamePrefix);
const std::string kModule = "model.layers.0.self_attn.q_proj";

std::vector<std::string> golden_cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

std::string golden_config(const std::string& name) {
  return read_file(kGolden + name + "/adapter/adapter_config.json");
}

// Returns A and B of a module by their names in the file.
Tensors product(const std::string& module, int64_t rank = 4,
                TensorDType dtype = TensorDType::kF32) {
  return {{kPrefix + module + ".lora_A.weight", dtype, {rank, 6}},
          {kPrefix + module + ".lora_B.weight", dtype, {5, rank}}};
}

Tensors both(Tensors first, const Tensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// AdapterFiles: an adapter of one module in a temporary directory; tests change its files.
class AdapterFiles : public testing::Test {
 protected:
  void SetUp() override {
    write_config({});
    write_weights(product(kModule));
  }
  // Writes the settings of rank 4 for q_proj, with these keys added or replaced; "absent" removes.
  void write_config(const std::map<std::string, std::string>& changes) {
    Json config = Json::parse(golden_config("llama-defaults"));
    config["r"] = 4;
    config["target_modules"] = Json::array({"q_proj"});
    for (const auto& [key, value] : changes) {
      if (value == "absent") {
        config.erase(key);
      } else {
        config[key] = Json::parse(value);
      }
    }
    write_text(directory_ / "adapter_config.json", config.dump());
  }
  void write_weights(const Tensors& tensors) {
    std::filesystem::remove(directory_ / "adapter_model.safetensors");
    write_safetensors(directory_ / "adapter_model.safetensors", tensors);
  }
  AdapterDirectory open() const { return AdapterDirectory::open(directory_.path()); }
  template <typename ErrorType>
  std::string open_error() const {
    return error_of<ErrorType>([this] { open(); });
  }

  TemporaryDirectory directory_;
};

// Settings, names and values are those of the adapters that PEFT wrote.
TEST(AdapterDirectory, ReadsWhatPeftWrites) {
  const std::vector<std::string> cases = golden_cases();
  EXPECT_GE(cases.size(), 10u);
  for (const std::string& name : cases) {
    const AdapterDirectory adapter = AdapterDirectory::open(kGolden + name + "/adapter");
    const Json facts = Json::parse(read_file(kGolden + name + "/golden.json"));
    const Json& expected = facts.at("adapter");
    const AdapterSettings& settings = adapter.settings();
    EXPECT_EQ(settings.rank, expected.at("r").get<int64_t>()) << name;
    EXPECT_EQ(settings.alpha, expected.at("lora_alpha").get<double>()) << name;
    EXPECT_EQ(settings.rslora, expected.at("use_rslora").get<bool>()) << name;
    EXPECT_EQ(settings.dora, expected.at("use_dora").get<bool>()) << name;
    EXPECT_EQ(settings.transposed, expected.at("fan_in_fan_out").get<bool>()) << name;
    EXPECT_EQ(settings.dropout, 0.0) << name;
    EXPECT_EQ(Json(settings.targets), expected.at("target_modules")) << name;
    const Json& whole = expected.at("modules_to_save");
    EXPECT_EQ(Json(settings.trained), whole.is_null() ? Json::array() : whole) << name;
    const auto base = facts.at("base").get<std::string>();
    const bool experts = std::filesystem::exists(test_data() + "/parity/golden_moe/" + base);
    EXPECT_EQ(settings.base,
              (experts ? "tests/parity/golden_moe/" : "tests/parity/golden/") + base);
    const Json parameters = expected.value("target_parameters", Json());
    EXPECT_EQ(Json(settings.parameters), parameters.is_null() ? Json::array() : parameters) << name;
    const Json config = Json::parse(golden_config(name));
    for (const auto& [key, numbers] :
         {std::pair("rank_pattern", settings.ranks), {"alpha_pattern", settings.alphas}}) {
      ASSERT_EQ(numbers.size(), config.at(key).size()) << name;
      for (const auto& [pattern, number] : numbers) {
        EXPECT_EQ(config.at(key).at(pattern).get<double>(), number) << name << " " << pattern;
      }
    }

    // PEFT held these very values (asserted by tests/parity/make_adapter_golden.py).
    const auto golden =
        SafetensorsFile::open(kGolden + name + "/adapter/adapter_model.safetensors");
    size_t compared = 0;
    for (const TensorInfo& tensor : golden.tensors()) {
      ASSERT_TRUE(tensor.name.starts_with(kPrefix)) << tensor.name;
      const std::string own = tensor.name.substr(kPrefix.size());
      ASSERT_TRUE(adapter.has(own)) << own;
      EXPECT_EQ(adapter.shape(own), tensor.shape) << own;
      std::vector<float> values(static_cast<size_t>(tensor.elements())), wanted(values);
      adapter.read(own, 0, values);
      golden.read(tensor, 0, std::as_writable_bytes(std::span(wanted)));
      EXPECT_EQ(values, wanted) << own;
      ++compared;
    }
    EXPECT_EQ(adapter.names().size(), compared) << name;
    EXPECT_TRUE(std::ranges::is_sorted(adapter.names())) << name;
  }
}

// The text of settings is PEFT's own, byte for byte.
TEST(AdapterDirectory, WritesTheTextThatPeftWrites) {
  for (const std::string& name : golden_cases()) {
    const AdapterDirectory adapter = AdapterDirectory::open(kGolden + name + "/adapter");
    if (!Json::parse(golden_config(name)).at("exclude_modules").is_null()) continue;  // names
    EXPECT_EQ(adapter_config_text(adapter.settings()), golden_config(name)) << name;
  }
}

// The text of unusual settings is read back as the same settings.
TEST_F(AdapterFiles, ReadsBackTheTextOfUnusualSettings) {
  AdapterSettings settings;
  settings.rank = 4;
  settings.alpha = 0.1;
  settings.dropout = 0.05;
  settings.rslora = true;
  settings.targets = {"all-linear"};
  settings.base = "models/Größe \"7B\"\n";
  const std::string text = adapter_config_text(settings);
  expect_parts(text, {"\"lora_alpha\": 0.1,", "\"target_modules\": \"all-linear\",", "Gr\\u00f6"});
  write_text(directory_ / "adapter_config.json", text);
  const AdapterSettings read = open().settings();
  EXPECT_EQ(read.alpha, settings.alpha);
  EXPECT_EQ(read.dropout, settings.dropout);
  EXPECT_TRUE(read.rslora);
  EXPECT_EQ(read.targets, settings.targets);
  EXPECT_EQ(read.base, settings.base);

  settings.base.clear();
  expect_parts(adapter_config_text(settings), {"\"base_model_name_or_path\": null,"});
  settings.alpha = 16.0;
  expect_parts(adapter_config_text(settings), {"\"lora_alpha\": 16,"});
}

// Absent keys have PEFT's defaults, which are those of AdapterSettings.
TEST_F(AdapterFiles, AbsentKeysHaveTheDefaultsOfPeft) {
  write_text(directory_ / "adapter_config.json", R"({"peft_type": "LORA"})");
  write_weights(product(kModule, 8));
  const AdapterSettings settings = open().settings();
  const AdapterSettings peft =
      AdapterDirectory::open(kGolden + "llama-defaults/adapter").settings();
  for (const AdapterSettings& defaults : {AdapterSettings{}, peft}) {
    EXPECT_EQ(settings.rank, defaults.rank);
    EXPECT_EQ(settings.alpha, defaults.alpha);
    EXPECT_EQ(settings.rslora, defaults.rslora);
    EXPECT_EQ(settings.dora, defaults.dora);
    EXPECT_EQ(settings.transposed, defaults.transposed);
    EXPECT_EQ(settings.dropout, defaults.dropout);
    EXPECT_EQ(settings.trained, defaults.trained);
  }
  EXPECT_EQ(settings.base, "");
  EXPECT_EQ(settings.targets, std::vector<std::string>{kModule});
}

// Dropout is reported, as the caller decides about it.
TEST_F(AdapterFiles, ReportsTheDropoutOfPeft) {
  write_config({{"lora_dropout", "0.1"}});
  EXPECT_EQ(open().settings().dropout, 0.1);
}

// Values of 16 bits become fp32 exactly, in any range.
TEST_F(AdapterFiles, ReadsRangesOfEveryType) {
  using Convert = float (*)(uint16_t);
  for (const auto& [dtype, convert] :
       {std::pair<TensorDType, Convert>{TensorDType::kBF16, bf16_to_float},
        {TensorDType::kF16, fp16_to_float}}) {
    write_weights(product(kModule, 4, dtype));
    const std::string name = kModule + ".lora_B.weight";
    const auto file = SafetensorsFile::open(directory_ / "adapter_model.safetensors");
    std::vector<uint16_t> stored(20);
    file.read(file.tensor(kPrefix + name), 0, std::as_writable_bytes(std::span(stored)));
    std::vector<float> wanted(stored.size()), part(7);
    std::transform(stored.begin(), stored.end(), wanted.begin(), convert);
    open().read(name, 11, part);
    EXPECT_EQ(part, std::vector<float>(wanted.begin() + 11, wanted.begin() + 18));
  }
}

// A name that the file lacks is an error, and no value.
TEST_F(AdapterFiles, KnowsNoOtherTensors) {
  const AdapterDirectory adapter = open();
  EXPECT_FALSE(adapter.has("model.layers.0.self_attn.k_proj.lora_A.weight"));
  EXPECT_FALSE(adapter.has(kPrefix + kModule + ".lora_A.weight"));
  std::vector<float> one(1);
  EXPECT_THROW(adapter.shape("other"), DataError);
  EXPECT_THROW(adapter.read("other", 0, one), DataError);
}

// --- Settings.

// A setting that would change numbers is refused by file, key, value and remedy.
TEST_F(AdapterFiles, RefusesSettingsThatWouldChangeNumbers) {
  struct Refused {
    std::string key, value, part;
  };
  const std::vector<Refused> cases = {
      {"peft_type", "\"LOHA\"", "only \"LORA\""},
      {"peft_type", "null", "only \"LORA\""},
      {"task_type", "\"SEQ_CLS\"", "CAUSAL_LM"},
      {"bias", "\"some\"", "lora_only"},
      {"use_qalora", "true", "pooled"},
      {"lora_bias", "true", "bias"},
      {"rank_pattern", R"({"(?i)q_proj":16})", "regular expression is not read"},
      {"alpha_pattern", R"({"(a)\\1":16})", "regular expression is not read"},
      {"layer_replication", "[[0, 4], [2, 5]]", "repeated"},
      {"trainable_token_indices", "[1, 2]", "rows of the embedding"},
      {"alora_invocation_tokens", "[7]", "part of each text"},
      {"loftq_config", R"({"loftq_bits": 4})", "quantised"},
      {"kasa_config", "{\"a\": 1}", "singular values"},
      {"velora_config", "{\"a\": 1}", "compressed"},
      {"monteclora_config", "{\"a\": 1}", "noise"},
      {"arrow_config", "{\"a\": 1}", "router"},
      {"use_bdlora", "{\"a\": 1}", "block-diagonal"},
      {"megatron_config", "{\"a\": 1}", "Megatron"},
      {"init_lora_weights", "\"pissa\"", "path_initial_model_for_weight_conversion"},
      {"init_lora_weights", "\"pissa_niter_4\"", "path_initial_model_for_weight_conversion"},
      {"init_lora_weights", "\"olora\"", "changed weights"},
      {"init_lora_weights", "\"corda\"", "changed weights"},
      {"init_lora_weights", "\"loftq\"", "changed weights"},
      {"init_lora_weights", "\"lora_ga\"", "changed weights"},
      {"init_lora_weights", "\"mica\"", "trains otherwise"},
      {"new_setting", "16", "unknown; remove it"},
      {"new_setting", "\"on\"", "unknown; remove it"}};
  for (const auto& [key, value, part] : cases) {
    write_config({{key, value}});
    const std::string shown = value == "null" ? "null" : Json::parse(value).dump();
    expect_parts(open_error<ConfigError>(),
                 {directory_ / "adapter_config.json", key + " = " + shown, part});
  }
}

// Notes, PEFT's ways to fill a new adapter, and unknown keys without a value change no number.
TEST_F(AdapterFiles, AcceptsSettingsThatChangeNoNumbers) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"init_lora_weights", "false"},
           {"init_lora_weights", "\"gaussian\""},
           {"init_lora_weights", "\"orthogonal\""},
           {"init_lora_weights", "\"eva\""},
           {"eva_config", R"({"rho": 2.0})"},
           {"task_type", "null"},
           {"auto_mapping", R"({"base_model_class": "LlamaForCausalLM"})"},
           {"revision", "\"main\""},
           {"peft_version", "\"0.99.0\""},
           {"inference_mode", "false"},
           {"modules_to_save", "[]"},
           {"exclude_modules", "[]"},
           {"use_rslora", "null"},
           {"loftq_config", "null"},
           {"rank_pattern", "absent"},
           {"megatron_core", "absent"},
           {"new_setting", "null"},
           {"new_setting", "false"},
           {"new_setting", "{}"},
           {"new_setting", "\"\""}}) {
    write_config({{key, value}});
    EXPECT_EQ(open().settings().targets, std::vector<std::string>{"q_proj"}) << key << value;
  }
}

// Numbers and lists of a wrong kind or size are refused by name.
TEST_F(AdapterFiles, RefusesValuesOfAWrongKindOrSize) {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"r", "0"},
                                                        {"r", "-4"},
                                                        {"r", "4.0"},
                                                        {"r", "\"4\""},
                                                        {"r", "null"},
                                                        {"r", "9223372036854775807"},
                                                        {"r", "18446744073709551615"},
                                                        {"lora_alpha", "0"},
                                                        {"lora_alpha", "-1"},
                                                        {"lora_alpha", "1e300"},
                                                        {"lora_alpha", "null"},
                                                        {"lora_alpha", "\"8\""},
                                                        {"rank_pattern", "{\"q_proj\": 0}"},
                                                        {"alpha_pattern", "{\"q_proj\": \"8\"}"},
                                                        {"lora_dropout", "1.0"},
                                                        {"lora_dropout", "-0.1"},
                                                        {"lora_dropout", "\"0\""},
                                                        {"use_rslora", "1"},
                                                        {"use_dora", "1"},
                                                        {"fan_in_fan_out", "\"true\""},
                                                        {"target_modules", "7"},
                                                        {"target_modules", "[7]"},
                                                        {"target_modules", "[\"\"]"},
                                                        {"target_modules", "{\"q_proj\": 1}"},
                                                        {"modules_to_save", "\"lm_head\""},
                                                        {"modules_to_save", "[[]]"},
                                                        {"base_model_name_or_path", "[]"}}) {
    write_config({{key, value}});
    expect_parts(open_error<ConfigError>(),
                 {directory_ / "adapter_config.json", key + " = ", "must be"});
  }
  write_text(directory_ / "adapter_config.json",
             R"({"peft_type": "LORA", "r": 1000000000000000019884624838656, "lora_alpha": NaN})");
  expect_parts(open_error<ConfigError>(), {"r = 1e+30", "lora_alpha = \"NaN\""});
}

// All problems of the settings are reported at once; names from the file cannot harm a terminal.
TEST_F(AdapterFiles, ReportsAllProblemsOfTheSettings) {
  write_config({{"use_qalora", "true"}, {"r", "0"}, {"a\x1b[2Jb", "1"}});
  const std::string error = open_error<ConfigError>();
  expect_parts(error, {"use_qalora = true", "r = 0", "a\\x1b[2Jb = 1"});
  EXPECT_EQ(std::ranges::count(error, '\n'), 2);
  EXPECT_EQ(error.find('\x1b'), std::string::npos);

  std::map<std::string, std::string> many;
  for (int i = 0; i < 50; ++i) many["key_" + std::to_string(i)] = "1";
  write_config(many);
  const std::string short_error = open_error<ConfigError>();
  expect_parts(short_error, {"and 30 more"});
  EXPECT_EQ(std::ranges::count(short_error, '\n'), 20);
}

// A regular expression, excluded modules and a choice of layers become the modules of the file.
TEST_F(AdapterFiles, TargetsThatAreNoListAreThoseOfTheFile) {
  const std::string other = "model.layers.2.self_attn.q_proj";
  write_weights(both(product(other), product(kModule)));
  using Changes = std::map<std::string, std::string>;
  for (const Changes& changes :
       {Changes{{"target_modules", "\".*self_attn\\\\.[qk]_proj\""}},
        Changes{{"target_modules", "null"}}, Changes{{"exclude_modules", "[\"v_proj\"]"}},
        Changes{{"layers_to_transform", "[0, 2]"}},
        Changes{{"layers_to_transform", "[2, 0]"}, {"layers_pattern", "\"layers\""}}}) {
    write_config(changes);
    EXPECT_EQ(open().settings().targets, (std::vector<std::string>{kModule, other}));
  }
  write_config({{"target_modules", "\"all-linear\""}});
  EXPECT_EQ(open().settings().targets, std::vector<std::string>{"all-linear"});
  write_config({{"target_modules", "[\"k_proj\"]"}, {"layers_to_transform", "[0, 2]"}});
  expect_parts(open_error<DataError>(), {other, "no such module"});
}

// Goal: an adapter is trained as PEFT loads it. If the settings select fewer modules than the file
// has, the adapter is refused with both numbers.
TEST_F(AdapterFiles, RefusesSettingsThatSelectFewerModulesThanTheFileHas) {
  const std::string other = "model.layers.2.self_attn.q_proj";
  write_weights(both(product(other), product(kModule)));
  using Changes = std::map<std::string, std::string>;
  for (const Changes& changes :
       {Changes{{"layers_to_transform", "0"}}, Changes{{"layers_to_transform", "[0]"}},
        Changes{{"exclude_modules", R"(".*layers\\.2\\..*")"}},
        Changes{{"exclude_modules", "[\"layers.2.self_attn.q_proj\"]"}},
        Changes{{"target_modules", R"(".*layers\\.0\\..*q_proj")"}},
        Changes{{"target_modules",
                 R"x("(?:.*?\\.layers\\.(?!2\\.)[\\d]{1,}\\..*?(?:k_proj|q_proj))")x"}},
        Changes{{"target_modules", "\"all-linear\""}, {"layers_to_transform", "[0]"}}}) {
    write_config(changes);
    expect_parts(open_error<DataError>(),
                 {"adapters of 2 modules", "select 1 of them", other, "save_pretrained"});
  }
  for (const Changes& changes :
       {Changes{{"target_modules", "\"\""}},
        Changes{{"layers_to_transform", "[0, 2]"}, {"layers_pattern", "\"blocks\""}}}) {
    write_config(changes);
    expect_parts(open_error<DataError>(), {"adapters of 2 modules", "select 0 of them"});
  }
  write_config({{"layers_to_transform", "[0, 1, 2]"}});
  expect_parts(open_error<DataError>(), {"no adapter in layer 1", "layers_to_transform"});
}

// Regular expressions whose meaning or cost is not that of Python's are refused by name.
TEST_F(AdapterFiles, RefusesRegularExpressionsThatAreNotRead) {
  for (const char* pattern : {R"("[")", R"("(?i).*q_proj")", R"("(?<=x)y")", R"(".*\\Zq")",
                              R"("((a?){999}){999}")", R"("(a)\\1")"}) {
    write_config({{"target_modules", pattern}});
    expect_parts(open_error<ConfigError>(), {"target_modules", "regular expression", "list"});
  }
}

// A target's name is that of a module, or its end after a dot.
TEST_F(AdapterFiles, TargetsAreWholeNamesOfModules) {
  for (const std::string& target :
       {kModule, std::string("self_attn.q_proj"), std::string("q_proj")}) {
    write_config({{"target_modules", "[\"" + target + "\"]"}});
    open();
  }
  for (const std::string target : {"proj", "attn.q_proj", "self_attn", "model"}) {
    write_config({{"target_modules", "[\"" + target + "\"]"}});
    expect_parts(open_error<DataError>(), {kModule, "target_modules", "no such module"});
  }
}

// --- Tensors.

// Tensors that do not fit the settings are refused with tensor, reason and both files.
TEST_F(AdapterFiles, RefusesTensorsThatDoNotFitTheSettings) {
  const std::string a = kPrefix + kModule + ".lora_A.weight",
                    b = kPrefix + kModule + ".lora_B.weight";
  const auto f32 = TensorDType::kF32;
  const std::vector<std::pair<Tensors, std::vector<std::string>>> cases = {
      {{{a, f32, {4, 6}}}, {a, "there is no", b}},
      {{{b, f32, {5, 4}}}, {b, "there is no", a}},
      {{{a, f32, {8, 6}}, {b, f32, {5, 8}}}, {"[8, 6]", "[5, 8]", "makes it [4, inputs]"}},
      {{{a, f32, {6, 4}}, {b, f32, {4, 5}}}, {"[6, 4]", "makes it [outputs, 4]"}},
      {{{a, f32, {4, 6, 1, 1}}, {b, f32, {5, 4, 1, 1}}}, {"[4, 6, 1, 1]"}},
      {{{a, f32, {4, 0}}, {b, f32, {5, 4}}}, {"[4, 0]"}},
      {{{a, f32, {4}}, {b, f32, {5, 4}}}, {"[4]"}},
      {{{a, TensorDType::kI8, {4, 6}}, {b, f32, {5, 4}}}, {a, "dtype I8"}},
      {product("model.layers.0.mlp.up_proj"), {"up_proj", "no such module"}},
      {product(""), {"no such module"}},
      {{{"base_model.model.lora_A.weight", f32, {4, 6}}}, {"no such module"}},
      {{{kModule + ".lora_A.weight", f32, {4, 6}}}, {"does not begin with \"base_model.model.\""}},
      {{}, {"no tensor ends with"}}};
  for (const auto& [tensors, parts] : cases) {
    write_weights(tensors);
    const std::string error = open_error<DataError>();
    expect_parts(error, {directory_ / "adapter_model.safetensors"});
    expect_parts(error, parts);
  }
}

// Tensors that PEFT writes for what is not supported are refused, each with the reason.
TEST_F(AdapterFiles, RefusesTensorsOfOtherKinds) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {kModule + ".lora_magnitude_vector", "magnitudes without use_dora"},
      {kModule + ".lora_B.bias", "biases of adapters"},
      {"model.embed_tokens.lora_embedding_A", "lora_embedding_B"},
      {"model.embed_tokens.weight", "save_embedding_layers=False"},
      {"lm_head.weight", "save_embedding_layers=False"}};
  for (const auto& [name, part] : cases) {
    write_weights(both(product(kModule), {{kPrefix + name, TensorDType::kF32, {4, 4}}}));
    expect_parts(open_error<DataError>(), {name, part});
  }
}

// With DoRA every A has a magnitude, and that has an element for each output.
TEST_F(AdapterFiles, MagnitudesOfDoraFitTheirModules) {
  const std::string name = kPrefix + kModule + ".lora_magnitude_vector";
  const auto f32 = TensorDType::kF32;
  write_config({{"use_dora", "true"}});
  expect_parts(open_error<DataError>(), {"lora_A", "there is no", name});
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{6}, {5, 1}}) {
    write_weights(both(product(kModule), {{name, f32, shape}}));
    expect_parts(open_error<DataError>(), {name, "lora_B.weight", "makes it [5]"});
  }
  const std::string other = kPrefix + "model.layers.1.self_attn.q_proj";
  write_weights(
      both(product(kModule), {{name, f32, {5}}, {other + ".lora_magnitude_vector", f32, {5}}}));
  expect_parts(open_error<DataError>(), {other, "there is no", "lora_B.weight"});
  write_weights(both(product(kModule), {{name, f32, {5}}}));
  EXPECT_TRUE(open().settings().dora);
  EXPECT_EQ(open().shape(kModule + ".lora_magnitude_vector"), std::vector<int64_t>{5});
}

// With DoRA an embedding has a magnitude for each of its columns, as many as rows of its B.
TEST_F(AdapterFiles, MagnitudesOfAnEmbeddingFitItsColumns) {
  const auto f32 = TensorDType::kF32;
  const std::string module = kPrefix + "model.embed_tokens";
  const std::string name = module + ".lora_magnitude_vector";
  const Tensors factors = {{module + ".lora_embedding_A", f32, {4, 9}},
                           {module + ".lora_embedding_B", f32, {6, 4}}};
  write_config({{"use_dora", "true"}, {"target_modules", "[\"embed_tokens\"]"}});
  write_weights(factors);
  expect_parts(open_error<DataError>(), {"lora_embedding_A", "there is no", name});
  write_weights(both(factors, {{name, f32, {9}}}));
  expect_parts(open_error<DataError>(), {name, "lora_embedding_B", "makes it [6]"});
  write_weights(both(factors, {{name, f32, {6}}}));
  EXPECT_EQ(open().shape("model.embed_tokens.lora_magnitude_vector"), std::vector<int64_t>{6});
}

// Modules that are trained as a whole are in the file, under the ends of their names, as PEFT
// reads modules_to_save.
TEST_F(AdapterFiles, ModulesTrainedAsAWholeAreInTheFile) {
  const std::string norm = "model.layers.0.input_layernorm.weight";
  write_config({{"modules_to_save", "[\"layernorm\", \"lm_head\"]"}});
  const Tensors norms = both(product(kModule), {{kPrefix + norm, TensorDType::kF32, {6}}});
  write_weights(norms);
  expect_parts(open_error<DataError>(), {"no tensor of 'lm_head'", "modules_to_save"});
  write_weights(both(norms, {{kPrefix + "lm_head.weight", TensorDType::kF32, {9, 6}},
                             {kPrefix + "lm_head.bias", TensorDType::kF32, {9}}}));
  const AdapterDirectory adapter = open();
  EXPECT_EQ(adapter.settings().trained, (std::vector<std::string>{"layernorm", "lm_head"}));
  EXPECT_EQ(adapter.shape(norm), std::vector<int64_t>{6});
  EXPECT_EQ(adapter.shape("lm_head.bias"), std::vector<int64_t>{9});
  EXPECT_EQ(adapter.names().size(), 5u);
}

// The head's copy of a trained embedding is in the file where ensure_weight_tying says so.
TEST_F(AdapterFiles, AnEmbeddingThatStaysTheHeadIsInTheFileTwice) {
  const std::string name = "model.embed_tokens.weight";
  write_weights(both(product(kModule), {{kPrefix + name, TensorDType::kF32, {9, 6}},
                                        {kPrefix + "lm_head.weight", TensorDType::kF32, {9, 6}}}));
  write_config({{"modules_to_save", "[\"embed_tokens\"]"}});
  expect_parts(open_error<DataError>(), {"lm_head.weight", "neither part of an adapter"});
  write_config({{"modules_to_save", "[\"embed_tokens\"]"}, {"ensure_weight_tying", "true"}});
  EXPECT_TRUE(open().settings().tied);
  EXPECT_TRUE(open().has("lm_head.weight"));
  EXPECT_NE(adapter_config_text(open().settings()).find("\"ensure_weight_tying\": true"),
            std::string::npos);
}

// --- Files.

// A path without an adapter is refused with what is there and what to name instead.
TEST_F(AdapterFiles, RefusesPathsWithoutAnAdapter) {
  const TemporaryDirectory other;
  const auto error = [](const std::string& path) {
    return error_of<ConfigError>([&] { AdapterDirectory::open(path); });
  };
  expect_parts(error(other / "absent"), {other / "absent", "no such directory", "adapter.path"});
  write_text(other / "file", "");
  expect_parts(error(other / "file"), {other / "file", "not a directory", "adapter.path"});
  expect_parts(error(other.path()), {other.path(), "no adapter_config.json"});
  write_text(other / "config.json", "{}");
  expect_parts(error(other.path()), {"model.path names the directory of a model"});
  std::filesystem::create_directories(other / "snapshots/abc");
  expect_parts(error(other.path()), {"one of the directories in its snapshots/"});

  std::filesystem::remove(directory_ / "adapter_model.safetensors");
  expect_parts(error(directory_.path()), {"no adapter_model.safetensors", "fetch it"});
  write_text(directory_ / "adapter_model.bin", "x");
  expect_parts(error(directory_.path()), {"adapter_model.bin is a pickle file", "save_pretrained"});
}

// Damaged files are named.
TEST_F(AdapterFiles, NamesDamagedFiles) {
  for (const char* text : {"", "[]", "{", "{\"r\": 1, \"r\": 2}", "{} {}"}) {
    write_text(directory_ / "adapter_config.json", text);
    expect_parts(open_error<DataError>(), {directory_ / "adapter_config.json"});
  }
  write_text(directory_ / "adapter_config.json", "{" + std::string(2'000'000, ' ') + "}");
  expect_parts(open_error<DataError>(), {directory_ / "adapter_config.json", "limit of 1.0 MiB"});
  write_config({});
  write_text(directory_ / "adapter_model.safetensors", "garbage garbage");
  expect_parts(open_error<DataError>(), {directory_ / "adapter_model.safetensors", "header"});
}

// Both files may be links, as in the Hugging Face cache; pipes and folders are refused at once.
TEST_F(AdapterFiles, FollowsLinksAndRefusesWhatIsNoFile) {
  const TemporaryDirectory linked;
  for (const std::string name : {"adapter_config.json", "adapter_model.safetensors"}) {
    std::filesystem::create_symlink(directory_ / name, linked / name);
  }
  EXPECT_TRUE(AdapterDirectory::open(linked.path()).has(kModule + ".lora_A.weight"));
  for (const std::string name : {"adapter_config.json", "adapter_model.safetensors"}) {
    std::filesystem::remove(linked / name);
    ASSERT_EQ(::mkfifo((linked / name).c_str(), 0600), 0);
    const auto open = [&] { AdapterDirectory::open(linked.path()); };
    expect_parts(error_of<DataError>(open), {linked / name, "not a regular file"});
    std::filesystem::remove(linked / name);
    std::filesystem::create_directory(linked / name);
    expect_parts(error_of<DataError>(open), {linked / name, "not a regular file"});
    std::filesystem::remove(linked / name);
    std::filesystem::create_symlink(directory_ / name, linked / name);
  }
}

// An adapter is found in the Hugging Face cache by its hub id.
TEST_F(AdapterFiles, IsFoundByItsHubId) {
  const TemporaryDirectory cache;
  const std::string commit(40, 'a'), repository = cache / "models--Owner--Adapter";
  write_text(repository + "/refs/main", commit);
  std::filesystem::create_directories(repository + "/snapshots");
  std::filesystem::copy(directory_.path(), repository + "/snapshots/" + commit);
  ::setenv("HF_HUB_CACHE", cache.path().c_str(), 1);
  EXPECT_TRUE(AdapterDirectory::open("Owner/Adapter").has(kModule + ".lora_A.weight"));
  const auto missing = [] { AdapterDirectory::open("Owner/None"); };
  expect_parts(error_of<ConfigError>(missing), {"Owner/None", "hf download"});
  ::unsetenv("HF_HUB_CACHE");
}

}  // namespace
}  // namespace longshore
