// Keys of config.json: what transformers' classes have is read, refused, noted, or known to change
// no number of training.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "tests/fakes/test_files.h"
#include "tests/model/configs.h"

namespace longshore {
namespace {

const std::string kData = test_data();

// Returns a config.json for each family, of the golden cases; a wrapper's text model is a family
// too.
const std::map<std::string, Json>& configs() {
  static const std::map<std::string, Json> all = [] {
    std::map<std::string, Json> found;
    for (const char* folder : {"/parity/golden", "/parity/golden_moe"}) {
      for (const auto& entry : std::filesystem::directory_iterator(kData + folder)) {
        const std::string file = entry.path().string() + "/config.json";
        if (!std::filesystem::exists(file)) continue;
        const Json config = read_json_file(file, {});
        found.emplace(config.at("model_type").get<std::string>(), config);
      }
    }
    return found;
  }();
  return all;
}

// Returns the keys that are neither read nor known if `config` has one more.
std::vector<std::string> unread(const Json& config) {
  try {
    return read_arch_spec(config, "config.json").unread_keys;
  } catch (const ConfigError&) {
    return {};  // the reader or the list of refused keys has it
  }
}

// Goal: no key that transformers reads is passed over. config_keys.json has the keys of each
// family's class, and of the code that all families share (make_config_keys.py). An object as value
// is none that any of them takes, so a key that is read is refused.
TEST(ConfigKeys, EveryKeyOfTransformersIsReadOrKnown) {
  const Json keys = read_json_file(kData + "/model/config_keys.json", {});
  EXPECT_GE(keys.size(), 42u);
  const Json other = {{"other", true}};
  for (const auto& [family, names] : keys.items()) {
    const bool inside = family == "muse_glimmer_text";  // this one has no files of its own
    const auto found = configs().find(inside ? "muse_glimmer" : family);
    ASSERT_NE(found, configs().end()) << family;
    EXPECT_TRUE(unread(found->second).empty()) << family << ": " << unread(found->second).front();
    for (const Json& name : names) {
      const auto key = name.get<std::string>();
      Json config = found->second;
      (inside ? config["text_config"] : config)[key] = other;
      EXPECT_EQ(std::ranges::count(unread(config), key), 0) << family << ": " << key;
    }
  }
}

// A key that no class has is named, because another program may read it.
TEST(ConfigKeys, AKeyThatNobodyKnowsIsNamed) {
  EXPECT_EQ(unread(with(llama(), R"({"loss_weight_of_rare_tokens": 2})")),
            std::vector<std::string>{"loss_weight_of_rare_tokens"});
  EXPECT_TRUE(unread(with(llama(), R"({"loss_weight_of_rare_tokens": null})")).empty());
}

// Goal: attention in both directions is refused, in every family and inside of wrappers.
TEST(ConfigKeys, AttentionInBothDirectionsIsRefused) {
  for (const auto& [family, config] : configs()) {
    expect_problem(with(config, R"({"is_causal": false})"), "'is_causal' = false");
    EXPECT_TRUE(problems_of(with(config, R"({"is_causal": true})")).empty()) << family;
    if (!config.contains("text_config")) continue;
    Json inside = config;
    inside["text_config"]["is_causal"] = false;
    EXPECT_NE(problems_of(inside).at(0).find("'is_causal' = false"), std::string::npos) << family;
  }
}

// Goal: dropout that config.json asks for and no run applies is said, in one line.
TEST(ConfigKeys, DropoutThatIsNotAppliedIsNoted) {
  EXPECT_TRUE(read_arch_spec(llama(), "config.json").config_notes.empty());
  for (const char* key : {"attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop",
                          "residual_dropout", "embedding_dropout", "hidden_dropout"}) {
    Json config = llama();
    config[key] = 0.1;
    const auto notes = read_arch_spec(config, "config.json").config_notes;
    ASSERT_EQ(notes.size(), 1u) << key;
    EXPECT_TRUE(notes.front().starts_with("config.json: " + std::string(key) + " = 0.1 "));
  }
  Json wrapper = configs().at("gemma3");
  wrapper["text_config"]["attention_dropout"] = 0.5;
  EXPECT_EQ(read_arch_spec(wrapper, "config.json").config_notes.size(), 1u);
  // Heads of other tasks are not trained.
  EXPECT_TRUE(read_arch_spec(with(llama(), R"({"classifier_dropout": 0.1})"), "config.json")
                  .config_notes.empty());
}

// Goal: ids of pictures, video and sound in a text are read as transformers' wrappers read them:
// Gemma 4 as padding, Muse Glimmer as token 0, the others as they are.
TEST(ConfigKeys, PlaceholdersAreReadAsTheWrapperReadsThem) {
  using Map = std::map<int64_t, int64_t>;
  for (const auto& [family, config] : configs()) {
    if (!config.contains("text_config")) {
      EXPECT_TRUE(read_arch_spec(config, "config.json").read_as.empty()) << family;
      continue;
    }
    Json edited = with(config, R"({"image_token_id": 7, "video_token_id": 9,
                                   "audio_token_id": null})");
    edited["text_config"]["pad_token_id"] = 3;
    const Map expected = family == "gemma4"         ? Map{{7, 3}, {9, 3}}
                         : family == "muse_glimmer" ? Map{{7, 0}, {9, 0}}
                                                    : Map{};
    EXPECT_EQ(read_arch_spec(edited, "config.json").read_as, expected) << family;
  }
}

// Sizes of single layers that a family does not read are refused.
TEST(ConfigKeys, SizesOfSingleLayersAreRefusedWhereTheyAreNotRead) {
  expect_problem(with(llama(), R"({"per_layer_config": {"0": {"intermediate_size": 64}}})"),
                 "'per_layer_config'");
}

}  // namespace
}  // namespace longshore
