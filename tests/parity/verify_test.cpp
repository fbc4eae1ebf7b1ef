// `longshore check model` passes right models and names what is wrong in others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/errors.h"
#include "base/random.h"
#include "hf/safetensors_writer.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/edited_model.h"
#include "tests/parity/run_driver.h"
#include "trainer/verify/plain_decoder.h"
#include "trainer/verify/tensor_check.h"
#include "trainer/verify/transformers_check.h"
#include "trainer/verify/verify.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// Returns "tensor: detail" of every finding with that verdict.
std::vector<std::string> said(const Findings& findings, Verdict verdict) {
  std::vector<std::string> texts;
  for (const Finding& finding : findings.lines()) {
    if (finding.verdict == verdict) texts.push_back(finding.subject + ": " + finding.detail);
  }
  return texts;
}

Findings verify(const EditedModel& model, const std::string& against = "") {
  model.write();
  return verify_model({.model = model.directory(), .against = against, .tokens = 12});
}

// Returns the findings of the model against the one that it was made from.
Findings verify_against(const EditedModel& model, const std::string& golden) {
  return verify(model, golden_directory(golden));
}

std::string joined_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::string layer(int number, const std::string& part) {
  return "model.layers." + std::to_string(number) + "." + part + ".weight";
}

class VerifyGolden : public testing::TestWithParam<std::string> {};

// Goal: the units of every family give the results of the second implementation, packed and alone.
TEST_P(VerifyGolden, IsRight) {
  const Findings findings = verify_model({.model = golden_directory(GetParam()), .tokens = 24});
  EXPECT_EQ(said(findings, Verdict::kFailed), std::vector<std::string>{});
  // A model may ask for dropout, or have layers, that no run trains: that is said, and nothing
  // else.
  for (const std::string& line : said(findings, Verdict::kWarning)) {
    const bool expected = line.find(" is not applied: ") != std::string::npos ||
                          line.find("(MTP, ") != std::string::npos;
    EXPECT_TRUE(expected) << line;
  }
  EXPECT_GE(findings.count(Verdict::kOk), 6);
}
INSTANTIATE_TEST_SUITE_P(Families, VerifyGolden, testing::ValuesIn(golden_names()),
                         golden_test_name);
INSTANTIATE_TEST_SUITE_P(Experts, VerifyGolden, testing::ValuesIn(expert_golden_names()),
                         golden_test_name);

// Two swapped tensors are both named.
TEST(Verify, NamesBothOfTwoTensorsThatWereSwapped) {
  for (const char* part : {"self_attn.q_proj", "mlp.up_proj", "input_layernorm"}) {
    EditedModel model("llama");
    std::swap(model.values[layer(0, part)], model.values[layer(1, part)]);
    const Findings findings = verify_against(model, "llama");
    EXPECT_EQ(said(findings, Verdict::kFailed),
              (std::vector<std::string>{
                  layer(0, part) + ": holds the base's '" + layer(1, part) + "': swapped",
                  layer(1, part) + ": holds the base's '" + layer(0, part) + "': swapped"}));
  }
}

// Goal: swapped experts are named, in files with one tensor per expert and with one for all.
TEST(Verify, NamesExpertsThatWereSwapped) {
  EditedModel each("qwen3_moe");
  const std::string first = layer(2, "mlp.experts.1.up_proj");
  const std::string second = layer(2, "mlp.experts.4.up_proj");
  std::swap(each.values[first], each.values[second]);
  EXPECT_EQ(said(verify_against(each, "qwen3_moe"), Verdict::kFailed),
            (std::vector<std::string>{first + ": holds the base's '" + second + "': swapped",
                                      second + ": holds the base's '" + first + "': swapped"}));

  EditedModel all("gpt_oss");
  const std::string fused = "model.layers.1.mlp.experts.down_proj";
  std::vector<float>& values = all.values[fused];
  const auto expert = static_cast<int64_t>(values.size()) / all.shapes[fused][0];
  std::swap_ranges(values.begin(), values.begin() + expert, values.begin() + 3 * expert);
  EXPECT_EQ(
      said(verify_against(all, "gpt_oss"), Verdict::kFailed),
      (std::vector<std::string>{fused + "[0]: holds the base's '" + fused + "[3]': swapped",
                                fused + "[3]: holds the base's '" + fused + "[0]': swapped"}));
}

// Goal: each expert's values inside a shared tensor are checked on their own.
TEST(Verify, NamesTheExpertWhoseValuesWereNeverFilled) {
  EditedModel model("qwen3_moe-fused");
  const std::string fused = "model.layers.3.mlp.experts.gate_up_proj";
  std::vector<float>& values = model.values[fused];
  const auto expert = static_cast<int64_t>(values.size()) / model.shapes[fused][0];
  std::fill_n(values.begin() + 2 * expert, expert, 0.0F);
  values.back() = std::numeric_limits<float>::infinity();
  const Findings findings = verify(model);
  EXPECT_EQ(said(findings, Verdict::kWarning),
            std::vector<std::string>{fused + "[2]: every value is 0: was it ever filled?"});
  const std::vector<std::string> failed = said(findings, Verdict::kFailed);
  ASSERT_FALSE(failed.empty());
  EXPECT_EQ(failed[0].find(fused + "[4]: 1 of "), 0u) << failed[0];
}

// Goal: a choice between experts with equal scores is no disagreement.
TEST(Verify, AChoiceThatHangsOnRoundingIsNotJudged) {
  EditedModel model("mixtral");
  for (const char* number : {"0", "1"}) {
    const std::string name =
        "model.layers." + std::string(number) + ".block_sparse_moe.gate.weight";
    std::vector<float>& router = model.values[name];
    const auto width = router.size() / static_cast<size_t>(model.shapes[name][0]);
    for (size_t row = 2; row < 5; ++row) {
      std::copy_n(router.begin(), width, router.begin() + static_cast<int64_t>(row * width));
    }
  }
  EXPECT_EQ(said(verify(model), Verdict::kFailed), std::vector<std::string>{});
}

// A scaled tensor is named.
TEST(Verify, NamesATensorThatWasScaled) {
  for (const double scale : {0.5, 1.05, 2.0, -1.0}) {
    EditedModel model("llama");
    const std::string name = layer(1, "mlp.down_proj");
    for (float& value : model.values[name]) value *= static_cast<float>(scale);
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", scale);
    EXPECT_EQ(said(verify_against(model, "llama"), Verdict::kFailed),
              std::vector<std::string>{name + ": is the base's, scaled by " + text});
  }
}

// Goal: a transposed matrix is found by its shape, and a square one by comparison with the base.
TEST(Verify, NamesATensorThatWasTransposed) {
  EditedModel square("llama-tied");
  const std::string name = layer(0, "self_attn.o_proj");
  const auto side = static_cast<size_t>(square.shapes[name][0]);
  ASSERT_EQ(square.values[name].size(), side * side);
  for (size_t row = 0; row < side; ++row) {
    for (size_t column = 0; column < row; ++column) {
      std::swap(square.values[name][row * side + column], square.values[name][column * side + row]);
    }
  }
  EXPECT_EQ(said(verify_against(square, "llama-tied"), Verdict::kFailed),
            std::vector<std::string>{name + ": is the base's, transposed"});

  EditedModel oblong("llama");
  std::reverse(oblong.shapes[layer(1, "mlp.gate_proj")].begin(),
               oblong.shapes[layer(1, "mlp.gate_proj")].end());
  const std::vector<std::string> lines = said(verify(oblong), Verdict::kFailed);
  ASSERT_EQ(lines.size(), 1u) << joined_lines(lines);
  EXPECT_TRUE(lines[0].find(layer(1, "mlp.gate_proj") +
                            "' has shape [16, 40], expected [40, 16]: transposed") !=
              std::string::npos)
      << lines[0];
}

// Every missing tensor is named.
TEST(Verify, NamesEveryTensorThatIsMissing) {
  EditedModel model("llama");
  model.remove(layer(0, "self_attn.k_proj"));
  model.remove("model.norm.weight");
  const std::vector<std::string> lines = said(verify(model), Verdict::kFailed);
  ASSERT_EQ(lines.size(), 2u) << joined_lines(lines);
  EXPECT_TRUE(joined_lines(lines).find("'" + layer(0, "self_attn.k_proj") + "' is missing") !=
              std::string::npos);
  EXPECT_TRUE(joined_lines(lines).find("'model.norm.weight' is missing") != std::string::npos);
}

// Goal: values that cannot be right are named without a model to compare with.
TEST(Verify, NamesValuesThatAreNotFiniteOrWereNeverFilled) {
  EditedModel model("llama");
  model.values[layer(1, "mlp.up_proj")][77] = std::numeric_limits<float>::quiet_NaN();
  std::ranges::fill(model.values[layer(0, "self_attn.v_proj")], 0.0F);
  const Findings findings = verify(model);
  const std::vector<std::string> failed = said(findings, Verdict::kFailed);
  ASSERT_FALSE(failed.empty());
  EXPECT_EQ(failed[0], layer(1, "mlp.up_proj") +
                           ": 1 of 640 values are NaN or infinite, the first is element 77");
  EXPECT_EQ(said(findings, Verdict::kWarning),
            std::vector<std::string>{layer(0, "self_attn.v_proj") +
                                     ": every value is 0: was it ever filled?"});
}

// A matrix that is far larger than in other layers gives a warning.
TEST(Verify, NamesAMatrixThatIsFarLargerThanInOtherLayers) {
  EditedModel model("olmo3");  // has four layers
  for (float& value : model.values[layer(2, "mlp.up_proj")]) value *= 20.0F;
  const std::vector<std::string> lines = said(verify(model), Verdict::kWarning);
  ASSERT_EQ(lines.size(), 1u) << joined_lines(lines);
  EXPECT_TRUE(lines[0].starts_with(layer(2, "mlp.up_proj") + ": its values are 2")) << lines[0];
}

// Goal: the changes of fine-tuning (small moves, decay of a whole tensor) are no findings.
TEST(Verify, FindsNothingWrongWithAModelThatWasTrained) {
  EditedModel model("llama-tied");
  uint32_t at = 0;
  for (auto& [name, values] : model.values) {
    for (float& value : values) {
      const double drawn = static_cast<double>(philox4x32({at++, 0, 0, 0}, {})[0]) / 4294967296.0;
      value = static_cast<float>(value * 0.985 * (1.0 + 0.3 * (drawn - 0.5)));
    }
  }
  const Findings findings = verify_against(model, "llama-tied");
  EXPECT_EQ(said(findings, Verdict::kFailed), std::vector<std::string>{});
  EXPECT_EQ(said(findings, Verdict::kWarning), std::vector<std::string>{});
}

// Goal: an export alone shows which of its tensors changed.
TEST(Verify, NamesWhatChangedInAnExport) {
  const RunDriver run("verify-export");
  ASSERT_EQ(run.train(joined(RunDriver::golden_arguments("llama"),
                             {"--train.steps=1", "--checkpoint.export=end"})),
            0);
  const std::string directory = run.directory() + "/hf";
  const auto look = [&] { return verify_model({.model = directory, .tokens = 8}); };
  const Findings right = look();
  EXPECT_EQ(said(right, Verdict::kFailed), std::vector<std::string>{});
  const auto lines = right.lines();
  EXPECT_TRUE(
      std::ranges::any_of(lines, [](const Finding& line) { return line.check == "export"; }));

  EditedModel model("llama");
  model.values = read_tensors(directory + "/model.safetensors");
  std::swap(model.values[layer(0, "mlp.up_proj")], model.values[layer(1, "mlp.up_proj")]);
  model.values["model.norm.weight"][0] *= 3.0F;
  model.write();
  fs::copy(model.directory() + "/model.safetensors", directory,
           fs::copy_options::overwrite_existing);
  EXPECT_EQ(
      said(look(), Verdict::kFailed),
      (std::vector<std::string>{layer(0, "mlp.up_proj") + ": holds what the export wrote as '" +
                                    layer(1, "mlp.up_proj") + "': swapped",
                                layer(1, "mlp.up_proj") + ": holds what the export wrote as '" +
                                    layer(0, "mlp.up_proj") + "': swapped",
                                "model.norm.weight: is not what the export wrote: changed since"}));
}

// Goal: a newly initialised tensor is distinguished from a wrong one.
TEST(Verify, WarnsOfATensorThatIsNotTheBaseS) {
  EditedModel model("llama");
  uint32_t at = 0;
  for (float& value : model.values["lm_head.weight"]) {
    value = static_cast<float>(philox4x32({at++, 1, 0, 0}, {})[0]) / 4294967296.0F - 0.5F;
  }
  const Findings findings = verify_against(model, "llama");
  EXPECT_EQ(said(findings, Verdict::kFailed), std::vector<std::string>{});
  const std::vector<std::string> lines = said(findings, Verdict::kWarning);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("lm_head.weight: differs from the base's by")) << lines[0];
}

// closeness() fits the best scale.
TEST(Verify, ClosenessFitsTheBestScale) {
  const std::vector<float> base = {1.0F, -2.0F, 3.0F, 0.5F}, twice = {2.0F, -4.0F, 6.0F, 1.0F};
  const Closeness found = closeness(twice, base);
  EXPECT_DOUBLE_EQ(found.scale, 2.0);
  EXPECT_NEAR(found.distance, 1.0, 1e-12);
  EXPECT_NEAR(found.residual, 0.0, 1e-7);
  EXPECT_EQ(closeness(base, base).distance, 0.0);
}

// Returns how far an altered config changes a block's output in the second implementation.
double change_of_block(const std::string& golden, const std::function<void(ArchSpec&)>& bend) {
  RunConfig config;
  config.model.path = golden_directory(golden);
  const ModelSource source(config);
  ArchSpec bent = source.arch();
  bend(bent);
  const PlainDecoder::Weights weights = [&](const std::string& name) {
    for (const UnitSpec& unit : source.spec().units) {
      for (const ParamSpec& parameter : unit.parameters) {
        if (parameter.name != name) continue;
        at::Tensor values = at::empty(parameter.shape, at::kFloat);
        source.read_initial(
            name, 0, {values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())});
        return values;
      }
    }
    throw CheckFailure("no parameter " + name);
  };
  at::manual_seed(3);
  const at::Tensor x = at::randn({24, source.arch().hidden}, at::kDouble);
  PlainDecoder::Shared shared;
  const at::Tensor right =
      PlainDecoder(source.arch(), source.spec()).block(0, x, weights, shared).x;
  const at::Tensor wrong = PlainDecoder(bent, source.spec()).block(0, x, weights, shared).x;
  return excess(wrong, right, x, kSameInputs);
}

// Goal: the tolerance separates a wrong switch from rounding, which is below a tenth of it.
TEST(Verify, AWrongSwitchIsFarBeyondTheTolerance) {
  struct Case {
    const char* golden;
    std::function<void(ArchSpec&)> bend;
  };
  const std::vector<Case> cases = {
      {"llama", [](ArchSpec& arch) { arch.rope.theta *= 1.01; }},
      {"llama", [](ArchSpec& arch) { arch.norm_eps *= 10.0; }},
      {"llama", [](ArchSpec& arch) { arch.layers[0].attention_scale *= 1.001; }},
      {"llama", [](ArchSpec& arch) { arch.rope.pairs = true; }},
      {"mistral", [](ArchSpec& arch) { arch.layers[0].window += 1; }},
      {"gpt2", [](ArchSpec& arch) { arch.activation = Activation::kGeluErf; }},
      {"gemma2", [](ArchSpec& arch) { arch.score_cap *= 1.01; }},
      {"gemma2", [](ArchSpec& arch) { arch.norm = NormKind::kRms; }},
      {"gemma4_text", [](ArchSpec& arch) { arch.value_norm = false; }},
      {"gemma4_text", [](ArchSpec& arch) { arch.layers[0].attention_scale *= 1.001; }},
      {"granite", [](ArchSpec& arch) { arch.residual_scale *= 1.001; }},
      {"hunyuan_v1_dense", [](ArchSpec& arch) { arch.qk_norm_after_rope = false; }},
      {"cohere2", [](ArchSpec& arch) { arch.rope.pairs = false; }},
      {"cohere2", [](ArchSpec& arch) { arch.norm = NormKind::kRmsWide; }},
      {"muse_glimmer", [](ArchSpec& arch) { arch.output_gate = arch.own_gate_matrix = false; }},
      {"muse_glimmer", [](ArchSpec& arch) { arch.qk_norm = QueryKeyNorm::kNone; }},
      {"muse_glimmer", [](ArchSpec& arch) { *arch.post_norm_eps *= 1.1; }},
      {"ministral3", [](ArchSpec& arch) { arch.query_growth_beta *= 1.1; }},
      {"phi3-long", [](ArchSpec& arch) { arch.rope.long_factors[0] *= 1.01; }},
      {"qwen3_5_text", [](ArchSpec& arch) { arch.delta.key_heads = 4, arch.delta.key_dim = 3; }},
      {"qwen3_next", [](ArchSpec& arch) { arch.delta.key_heads = 4, arch.delta.key_dim = 3; }},
      {"lfm2", [](ArchSpec& arch) { arch.norm_eps *= 10.0; }},
      {"nemotron_h", [](ArchSpec& arch) { arch.mamba.least_step *= 1.1; }},
      {"nemotron_h", [](ArchSpec& arch) { arch.mamba.groups = 1, arch.mamba.state = 10; }},
      {"nemotron_h-latent", [](ArchSpec& arch) { arch.moe.weight_scale *= 1.01; }},
      {"nemotron_h-latent", [](ArchSpec& arch) { arch.moe.top_k += 1; }},
      {"qwen3_moe", [](ArchSpec& arch) { arch.moe.renormalise = false; }},
      {"qwen3_moe", [](ArchSpec& arch) { arch.moe.top_k += 1; }},
      {"olmoe", [](ArchSpec& arch) { arch.moe.renormalise = true; }},
      {"olmoe-clip", [](ArchSpec& arch) { arch.qkv_clip *= 1.01; }},
      {"qwen2_moe", [](ArchSpec& arch) { arch.moe.shared_width = 0; }},
      {"deepseek_v3", [](ArchSpec& arch) { arch.layers[0].attention_scale *= 1.01; }},
      {"deepseek_v3-plain", [](ArchSpec& arch) { arch.rope.pairs = true; }},
      {"glm4_moe-plain", [](ArchSpec& arch) { arch.moe.weight_scale *= 1.01; }},
      {"gemma4_text-moe", [](ArchSpec& arch) { arch.moe.top_k += 1; }},
      {"gemma4_text-moe", [](ArchSpec& arch) { arch.norm_eps *= 10.0; }},
      {"gpt_oss", [](ArchSpec& arch) { arch.sinks = false; }},
      {"gpt_oss", [](ArchSpec& arch) { arch.moe.clamp *= 1.01; }},
      {"gpt_oss", [](ArchSpec& arch) { arch.moe.gate_gain *= 1.01; }},
      {"gpt_oss", [](ArchSpec& arch) { arch.moe.interleaved = false; }},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_GT(change_of_block(cases[i].golden, cases[i].bend), 2.0) << cases[i].golden << " " << i;
    EXPECT_EQ(change_of_block(cases[i].golden, [](ArchSpec&) {}), 0.0);
  }
}

// Makes a stand-in for Python that runs `script`; its sixth argument is the file to write.
std::string stand_in(const std::string& directory, const std::string& script) {
  fs::create_directories(directory);
  const std::string path = directory + "/python";
  std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
  fs::permissions(path, fs::perms::owner_all);
  return path;
}

// Goal: results that differ from transformers' are a failure of the first layer that differs, and a
// Python that fails is a failure with its output.
TEST(Verify, JudgesWhatTransformersSays) {
  RunConfig config;
  config.model.path = golden_directory("qwen3");
  const ModelSource source(config);
  const Texts texts = {{5, 6, 7, 8, 9}, {4}};
  Findings numbers;
  const PlainStates states = check_numbers(source, texts, 2, numbers);
  const std::string directory = scratch_directory("verify-python");
  const auto ask = [&](double factor) {
    const std::string python = stand_in(directory, "cp " + directory + "/states \"$6\"");
    std::vector<SafetensorsWriter::Tensor> tensors;
    std::vector<at::Tensor> contents;
    for (size_t text = 0; text < texts.size(); ++text) {
      const std::string prefix = std::to_string(text) + ".";
      for (size_t step = 0; step < states.hidden[text].size(); ++step) {
        const at::Tensor& state = states.hidden[text][step];
        tensors.push_back({prefix + std::to_string(step), TensorDType::kF32, state.sizes().vec()});
        contents.push_back(step == 2 ? state * factor : state);
      }
      tensors.push_back({prefix + "logits", TensorDType::kF32, {source.arch().vocabulary}});
      contents.push_back(states.last_logits[text].to(at::kFloat));
    }
    fs::remove(directory + "/states");
    SafetensorsWriter writer(directory + "/states", tensors, {});
    for (const at::Tensor& content : contents) {
      writer.append(std::as_bytes(
          std::span(content.const_data_ptr<float>(), static_cast<size_t>(content.numel()))));
    }
    writer.finish();
    Findings findings;
    check_transformers(python, config.model.path, texts, states, findings);
    return findings;
  };
  EXPECT_EQ(said(ask(1.0), Verdict::kFailed), std::vector<std::string>{});
  const std::vector<std::string> lines = said(ask(1.01), Verdict::kFailed);
  ASSERT_EQ(lines.size(), 1u) << joined_lines(lines);
  EXPECT_TRUE(lines[0].starts_with("block.1: other numbers")) << lines[0];

  const std::string broken =
      stand_in(directory, "echo Traceback >&2; echo 'No module' >&2; exit 3");
  Findings findings;
  check_transformers(broken, config.model.path, texts, states, findings);
  EXPECT_EQ(said(findings, Verdict::kFailed),
            std::vector<std::string>{broken +
                                     ": could not be run, it ended with exit code 3: No module"});
  fs::remove_all(directory);
}

// Goal: a tokenizer with ids beyond the embedding's rows is found before a run meets one.
TEST(Verify, NamesATokenizerThatDoesNotBelongToTheModel) {
  EditedModel model("llama");
  const std::string published = test_data() + "/text/published/qwen3";
  for (const auto& entry : fs::directory_iterator(published)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("tokenizer") || name.ends_with(".jinja")) {
      fs::copy(entry.path(), model.directory());
    }
  }
  const std::vector<std::string> lines = said(verify(model), Verdict::kFailed);
  ASSERT_EQ(lines.size(), 1u) << joined_lines(lines);
  EXPECT_TRUE(lines[0].starts_with("ids: the greatest is ")) << lines[0];
}

// Goal: exit code and JSON agree with the table.
TEST(Verify, CommandEndsWithFiveWhereSomethingFailed) {
  const std::string right = golden_directory("gpt2");
  const Ended good =
      run_command({"check", "model", right, "--against", right, "--tokens", "8", "--json"});
  EXPECT_EQ(good.exit_code, 0) << good.out;
  const Json report = Json::parse(good.out);
  EXPECT_TRUE(report.at("ok").get<bool>());
  EXPECT_EQ(report.at("failed"), 0);
  EXPECT_EQ(report.at("model"), right);

  EditedModel model("gpt2");
  model.values["transformer.h.0.ln_1.weight"][3] = std::numeric_limits<float>::infinity();
  model.write();
  const Ended bad = run_command({"check", "model", model.directory(), "--tokens", "8"});
  EXPECT_EQ(bad.exit_code, static_cast<int>(ExitCode::kData));
  EXPECT_NE(bad.out.find("FAILED   tensors"), std::string::npos) << bad.out;
  EXPECT_NE(bad.out.find("transformer.h.0.ln_1.weight"), std::string::npos) << bad.out;

  const Ended none = run_command({"check", "model", "/nowhere/at/all"});
  EXPECT_EQ(none.exit_code, static_cast<int>(ExitCode::kData));
}

}  // namespace
}  // namespace longshore
