// Units and parameters are made from an ArchSpec and a file's tensors.
#include "model/parameters/model_spec.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace longshore {
namespace {

ArchSpec arch_of(const std::string& text) {
  return read_arch_spec(Json::parse(text), "config.json");
}

ArchSpec llama(bool tied) {
  return arch_of(R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "tie_word_embeddings": )" +
                 std::string(tied ? "true" : "false") + "}");
}

ArchSpec gpt2() {
  return arch_of(R"({"model_type": "gpt2", "vocab_size": 100, "n_embd": 64, "n_layer": 2,
    "n_head": 4, "n_positions": 32})");
}

std::vector<FileTensor> files_of(const ModelSpec& model) {
  std::vector<FileTensor> files;
  for (const UnitSpec& unit : model.units) {
    for (const ParamSpec& parameter : unit.parameters) {
      files.push_back({.name = parameter.name, .shape = parameter.shape});
    }
  }
  return files;
}

std::string data_error_of(const ArchSpec& arch, const std::vector<FileTensor>& files) {
  try {
    make_model_spec(arch, files);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

// A model has one unit for the embedding, each block and the head.
TEST(ModelSpec, HasOneUnitForEmbeddingEachBlockAndHead) {
  const ModelSpec model = make_model_spec(llama(false), {});
  ASSERT_EQ(model.units.size(), 4u);
  EXPECT_EQ(model.units[0].name, "embedding");
  EXPECT_EQ(model.units[2].name, "block.1");
  EXPECT_EQ(model.units[3].name, "head");
  EXPECT_EQ(model.units[2].parameters[1].name, "model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(model.units[2].parameters[2].shape, (std::vector<int64_t>{32, 64}));
  EXPECT_EQ(model.units[2].carry_out[0].elements_per_position, 64);
  EXPECT_EQ(model.units[3].parameters[1].name, "lm_head.weight");
  EXPECT_TRUE(model.units[3].tied.empty());
}

ArchSpec mixtral() {
  return arch_of(R"({"model_type": "mixtral", "vocab_size": 100, "hidden_size": 64,
    "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_local_experts": 3})");
}

// Experts have the names of the model's files.
TEST(ModelSpec, ExpertsAreSpelledAsTheFilesHaveThem) {
  const ModelSpec each = make_model_spec(mixtral(), {});
  const std::vector<ParamSpec>& one = each.units[1].parameters;
  EXPECT_EQ(one[6].name, "model.layers.0.block_sparse_moe.gate.weight");
  EXPECT_EQ(one[10].name, "model.layers.0.block_sparse_moe.experts.1.w1.weight");
  EXPECT_EQ(one[10].shape, (std::vector<int64_t>{32, 64}));
  EXPECT_EQ(one[12].name, "model.layers.0.block_sparse_moe.experts.1.w2.weight");
  EXPECT_EQ(make_model_spec(mixtral(), files_of(each)), each);

  ArchSpec fused = mixtral();
  fused.moe.fused = true;
  const ModelSpec all = make_model_spec(fused, {});
  const std::vector<ParamSpec>& stacks = all.units[1].parameters;
  ASSERT_EQ(stacks.size(), 9u);
  EXPECT_EQ(stacks[6].name, "model.layers.0.mlp.gate.weight");
  EXPECT_EQ(stacks[7].name, "model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_EQ(stacks[7].shape, (std::vector<int64_t>{3, 64, 64}));
  EXPECT_EQ(make_model_spec(mixtral(), files_of(all)), all);
  EXPECT_EQ(each.parameter_elements(), all.parameter_elements());
}

// Goal: a bias per expert counts as a vector although it has two dimensions: it has no decay.
TEST(ModelSpec, BiasesOfExpertsAreVectors) {
  const ModelSpec model =
      make_model_spec(arch_of(R"({"model_type": "gpt_oss", "vocab_size": 100, "hidden_size": 64,
    "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4})"),
                      {});
  for (const ParamSpec& parameter : model.units[1].parameters) {
    const bool vector = parameter.name.ends_with("bias") || parameter.name.ends_with("sinks") ||
                        parameter.name.ends_with("norm.weight");
    EXPECT_EQ(parameter.is_matrix(), !vector) << parameter.name;
  }
}

// A tied head uses the embedding's parameter.
TEST(ModelSpec, ATiedHeadBorrowsTheEmbedding) {
  const ModelSpec model = make_model_spec(llama(true), {});
  ASSERT_EQ(model.units[3].tied.size(), 1u);
  EXPECT_EQ(model.parameter(model.units[3].tied[0]).name, "model.embed_tokens.weight");
  EXPECT_EQ(model.units[3].parameters.size(), 1u);
}

// A head in the files is not tied, whatever the config says.
TEST(ModelSpec, AHeadInTheFilesIsNotTiedWhateverTheConfigSays) {
  const ModelSpec untied = make_model_spec(llama(false), {});
  const ModelSpec model = make_model_spec(llama(true), files_of(untied));
  EXPECT_TRUE(model.units[3].tied.empty());
}

// A missing head is refused unless it is tied.
TEST(ModelSpec, AMissingHeadIsAnErrorUnlessTied) {
  const std::vector<FileTensor> files = files_of(make_model_spec(llama(true), {}));
  const std::string text = data_error_of(llama(false), files);
  EXPECT_NE(text.find("'lm_head.weight' is missing, and tie_word_embeddings is not true"),
            std::string::npos)
      << text;
}

// GPT-2 uses the prefix of its files' names.
TEST(ModelSpec, Gpt2TakesThePrefixOfItsFiles) {
  const ModelSpec prefixed = make_model_spec(gpt2(), {});
  EXPECT_EQ(prefixed.units[1].parameters[0].name, "transformer.h.0.ln_1.weight");
  std::vector<FileTensor> files = files_of(prefixed);
  for (FileTensor& file : files) file.name = file.name.substr(std::string("transformer.").size());
  files.push_back({.name = "h.0.attn.bias", .shape = {1, 1, 32, 32}});
  const ModelSpec plain = make_model_spec(gpt2(), files);
  EXPECT_EQ(plain.units[1].parameters[0].name, "h.0.ln_1.weight");
  EXPECT_EQ(plain.units[0].parameters[1].name, "wpe.weight");
}

// GPT-2's matrices keep the shape of the file.
TEST(ModelSpec, Gpt2KeepsItsMatricesAsTheFileStoresThem) {
  const ModelSpec model = make_model_spec(gpt2(), {});
  const ParamSpec& fused = model.units[1].parameters[2];
  EXPECT_EQ(fused.name, "transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(fused.shape, (std::vector<int64_t>{64, 192}));
  EXPECT_NEAR(fused.init.standard_deviation, 0.02, 1e-12);
  EXPECT_NEAR(model.units[1].parameters[4].init.standard_deviation, 0.02 / 2.0, 1e-12);
}

// Missing, unknown and misshapen tensors are reported together.
TEST(ModelSpec, ReportsMissingUnknownAndMisshapenTensorsTogether) {
  std::vector<FileTensor> files = files_of(make_model_spec(llama(false), {}));
  files[1].shape = {63};
  files[2].name = "model.layers.0.self_attn.query.weight";
  const std::string text = data_error_of(llama(false), files);
  EXPECT_NE(text.find("'model.layers.0.input_layernorm.weight' has shape [63], expected [64]"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("'model.layers.0.self_attn.q_proj.weight' is missing"), std::string::npos);
  EXPECT_NE(text.find("'model.layers.0.self_attn.query.weight' is no part of llama"),
            std::string::npos);
}

// Goal: where a size of config.json is absent or contradicts the files, the key is named with the
// size that the files imply, in front of the shapes.
TEST(ModelSpec, NamesTheKeyWhoseSizeTheFilesContradict) {
  Json config = Json::parse(R"({"model_type": "qwen3", "vocab_size": 100, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8})");
  const std::vector<FileTensor> files =
      files_of(make_model_spec(read_arch_spec(config, "config.json"), {}));
  const auto first_line = [&](const Json& changed) {
    const std::string text = data_error_of(read_arch_spec(changed, "config.json"), files);
    return text.substr(0, text.find('\n'));
  };
  Json changed = config;
  changed.erase("head_dim");
  EXPECT_EQ(first_line(changed),
            "config.json: 'head_dim' is absent, 128 by default; the shape [32, 64] of "
            "'model.layers.0.self_attn.q_proj.weight' implies 8");
  changed = config;
  changed.erase("num_key_value_heads");
  EXPECT_EQ(first_line(changed),
            "config.json: 'num_key_value_heads' is absent, 4 by default; the shape [16, 64] of "
            "'model.layers.0.self_attn.k_proj.weight' implies 2");
  changed = config;
  changed["intermediate_size"] = 64;
  EXPECT_EQ(first_line(changed),
            "config.json: 'intermediate_size' is 64; the shape [128, 64] of "
            "'model.layers.0.mlp.gate_proj.weight' implies 128");
}

// Goal: names with another prefix than the family's are told in one line with both.
TEST(ModelSpec, NamesThePrefixOfTheFilesTensors) {
  std::vector<FileTensor> files = files_of(make_model_spec(llama(false), {}));
  for (FileTensor& file : files) file.name = "base." + file.name;
  const std::string text = data_error_of(llama(false), files);
  EXPECT_NE(text.find("begin with 'base.model.' ('base.model.embed_tokens.weight'); those of llama "
                      "begin with 'model.'"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

// Sizes whose product is too large are refused.
TEST(ModelSpec, RefusesSizesWhoseProductIsAbsurd) {
  ArchSpec arch = llama(false);
  arch.vocabulary = arch.hidden = (int64_t{1} << 31) - 1;
  EXPECT_THROW(make_model_spec(arch, {}), ConfigError);
}

// Buffers of the files are skipped by rules on their names.
TEST(ModelSpec, SkipsBuffersByRule) {
  EXPECT_TRUE(is_skipped_tensor(llama(false), "model.layers.1.self_attn.rotary_emb.inv_freq"));
  EXPECT_TRUE(is_skipped_tensor(gpt2(), "transformer.h.11.attn.masked_bias"));
  EXPECT_FALSE(is_skipped_tensor(gpt2(), "transformer.h.11.attn.c_attn.bias"));
}

// Freezing marks the parameters that a glob matches.
TEST(Freeze, MarksWhatAGlobMatches) {
  ModelSpec model = make_model_spec(llama(false), {});
  const std::vector<std::string> globs{"model.embed_tokens.*", "*.layers.1.mlp.*"};
  freeze_parameters(model, globs, "run.toml:3:1");
  EXPECT_TRUE(model.units[0].parameters[0].frozen);
  EXPECT_FALSE(model.units[1].parameters.back().frozen);
  EXPECT_TRUE(model.units[2].parameters.back().frozen);
  EXPECT_FALSE(model.units[2].parameters[0].frozen);
}

// A glob after "!" is trained all the same: the last one that matches decides, for each name.
TEST(Freeze, LeavesOutWhatAGlobAfterAnExclamationMarkMatches) {
  ModelSpec model = make_model_spec(llama(false), {});
  freeze_parameters(model, std::vector<std::string>{"*", "!model.layers.1.*", "*.layers.1.mlp.*"},
                    "run.toml:3:1");
  EXPECT_TRUE(model.units[0].parameters[0].frozen);
  EXPECT_TRUE(model.units[1].parameters[0].frozen);
  EXPECT_FALSE(model.units[2].parameters[0].frozen);
  EXPECT_TRUE(model.units[2].parameters.back().frozen);
  for (const std::vector<std::string>& globs :
       {std::vector<std::string>{"!model.layers.1.*"}, {"*.mlp.*", "!*.embed_tokens.*"}}) {
    ModelSpec other = make_model_spec(llama(false), {});
    try {
      freeze_parameters(other, globs, "train.freeze");
      FAIL() << "not refused: " << globs.back();
    } catch (const ConfigError& error) {
      EXPECT_TRUE(error.problems().at(0).starts_with(
          "train.freeze: '" + globs.back() +
          "' matches no parameter that a glob before it freezes; names look like"))
          << error.what();
    }
  }
}

// Globs that match nothing are refused.
TEST(Freeze, RefusesGlobsThatMatchNothing) {
  ModelSpec model = make_model_spec(llama(false), {});
  const std::vector<std::string> globs{"*.nothing", "*.norm.weight", "h.*"};
  try {
    freeze_parameters(model, globs, "run.toml:3:1");
    FAIL() << "not refused";
  } catch (const ConfigError& error) {
    ASSERT_EQ(error.problems().size(), 2u);
    EXPECT_TRUE(error.problems()[0].starts_with("run.toml:3:1: '*.nothing' matches no parameter"));
  }
}

}  // namespace
}  // namespace longshore
