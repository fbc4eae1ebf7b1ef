#include "config/field_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "config/describe.h"
#include "tests/fakes/test_files.h"

namespace longshore {
namespace {

const std::string kRoot = test_data() + "/..";

// Every section and key has a unique name and a description.
TEST(FieldTable, EveryKeyIsNamedOnceAndSaysWhatItMeans) {
  std::set<std::string> names;
  for (const Section& section : run_file_sections()) {
    EXPECT_FALSE(section.description.empty()) << section.name;
    for (const Key& key : section.keys) {
      EXPECT_TRUE(names.insert(key.full_name()).second) << key.full_name();
      EXPECT_FALSE(key.description.empty()) << key.full_name();
      EXPECT_EQ(key.description.find_first_of("\n|"), std::string::npos) << key.full_name();
      EXPECT_EQ(key.type == KeyType::kChoice, !key.choices.empty()) << key.full_name();
      EXPECT_EQ(&key_named(key.full_name()), &key);
    }
  }
  EXPECT_GT(names.size(), 50u);
  EXPECT_EQ(find_key("optimizer", "weigth_decay"), nullptr);
  EXPECT_THROW(key_named("optimizer"), CheckFailure);
}

// The description of a key that names a choice has each of its values as a word.
TEST(FieldTable, DescriptionsNameEveryChoice) {
  for (const Section& section : run_file_sections()) {
    for (const Key& key : section.keys) {
      std::string words = " ";  // with a space before and after each word
      for (const char c : key.description)
        words += std::string_view(":;,.()").find(c) == std::string_view::npos ? c : ' ';
      words += " ";
      for (const std::string& choice : key.choices) {
        EXPECT_NE(words.find(" " + choice + " "), std::string::npos)
            << key.full_name() << ": say what \"" << choice << "\" does";
      }
    }
  }
}

// The default of every key lies within its bounds.
TEST(FieldTable, DefaultsLieWithinTheirBounds) {
  for (const Section& section : run_file_sections()) {
    for (const Key& key : section.keys) {
      const KeyValue value = key.default_value();
      if (const auto* integer = std::get_if<int64_t>(&value)) {
        EXPECT_TRUE(key.bounds.contain(static_cast<double>(*integer))) << key.full_name();
      } else if (const auto* real = std::get_if<double>(&value)) {
        EXPECT_TRUE(key.bounds.contain(*real)) << key.full_name();
      }
    }
  }
}

// Returns a value other than the key's default, or the default of a choice with one value.
KeyValue other_value(const Key& key) {
  switch (key.type) {
    case KeyType::kBool:
      return !std::get<bool>(key.default_value());
    case KeyType::kInteger:
    case KeyType::kBytes:
    case KeyType::kDuration:
      return int64_t{7};
    case KeyType::kReal:
      return 0.625;
    case KeyType::kRealPair:
      return std::array<double, 2>{0.25, 0.5};
    case KeyType::kReals:
      return std::vector<double>{0.25, 3.0};
    case KeyType::kTable:
      return std::vector<std::string>{"name = \"other\"", "number = 3"};
    case KeyType::kIntegers:
      return std::vector<int64_t>{0, 7};
    case KeyType::kPatterns:
      return std::vector<PatternNumber>{{"layers.[01].*", 3.0}, {"q_proj", 0.5}};
    case KeyType::kString:
    case KeyType::kPath:
      return std::string("other");
    case KeyType::kPaths:
    case KeyType::kStrings:
      return std::vector<std::string>{"other"};
    case KeyType::kUnits: {
      UnitsChoice units;
      units.kind = UnitsChoice::Kind::kMinParameters;
      units.min_parameters = 7;
      return units;
    }
    case KeyType::kGroups:
      return std::vector<ParameterGroup>{{{"*.bias", "head.*"}, 1e-4, 0.0}, {{"up"}, {}, 0.5}};
    case KeyType::kChoice:
      break;
  }
  return key.choices.back() == std::get<std::string>(key.default_value()) ? key.choices.front()
                                                                          : key.choices.back();
}

// Setting a key changes its own member only; a key bound to another key's member is found.
TEST(FieldTable, EveryKeyChangesItsOwnMemberOnly) {
  for (const Section& section : run_file_sections()) {
    for (const Key& key : section.keys) {
      if (key.choices.size() == 1) continue;
      RunConfig config;
      key.set(config, other_value(key));
      EXPECT_EQ(key.get(config), other_value(key)) << key.full_name();
      EXPECT_EQ(changed_keys(config), "[" + section.name + "]\n" + key.name + " = " +
                                          toml_text(key, other_value(key)) + "\n");
      key.set(config, key.default_value());
      EXPECT_EQ(config, RunConfig{}) << key.full_name();
    }
  }
}

// Bounds are written as text, and NaN lies outside of them.
TEST(FieldTable, BoundsSpellThemselves) {
  EXPECT_EQ((Bounds{}).text(), "");
  EXPECT_EQ((Bounds{.min = 0}).text(), "at least 0");
  EXPECT_EQ((Bounds{.min = 0, .max = 1e9}).text(), "from 0 to 1000000000");
  EXPECT_EQ((Bounds{.min = 0, .max = 0.5, .min_excluded = true}).text(), "above 0 and at most 0.5");
  EXPECT_FALSE((Bounds{.min = 0, .min_excluded = true}).contain(0));
  EXPECT_FALSE((Bounds{.min = 0}).contain(std::nan("")));
}

// Sizes, reals and "auto" are written as TOML that reads back exactly.
TEST(FieldTable, SpellsValuesExactly) {
  const Key& size = key_named("offload.host_memory");
  EXPECT_EQ(toml_text(size, 24 * kGiB), "\"24GiB\"");
  EXPECT_EQ(toml_text(size, kGiB + kMiB), "\"1025MiB\"");
  EXPECT_EQ(toml_text(size, int64_t{1'000'000'001}), "\"1000000001B\"");
  EXPECT_EQ(toml_text(size, AutoValue{}), "\"auto\"");
  const Key& rate = key_named("optimizer.lr");
  EXPECT_EQ(toml_text(rate, 2e-5), "2e-5");
  EXPECT_EQ(toml_text(rate, 1.0), "1.0");
  EXPECT_EQ(toml_text(rate, 1e22), "1e+22");
  EXPECT_EQ(toml_text(rate, 1e-10), "1e-10");
  EXPECT_EQ(toml_text(rate, 0.1 + 0.2), "0.30000000000000004");
}

// Compares with the file in the repository; a failure writes the text and how to copy it.
void expect_committed(const std::string& file, const std::string& text) {
  const std::string committed = read_whole_file(kRoot + "/" + file, kMiB);
  if (committed == text) return;
  const std::string fresh = ::testing::TempDir() + std::filesystem::path(file).filename().string();
  write_file_durably(fresh, text);
  ADD_FAILURE() << file << " is not what the table says now: cp " << fresh << " " << file;
}

// config/reference.toml in the repository is the table's current text.
TEST(FieldTable, TheCommittedReferenceFileIsWhatTheTableSays) {
  expect_committed("config/reference.toml", reference_toml());
}

// docs/run_file.md in the repository is the table's current text.
TEST(FieldTable, TheCommittedPageIsWhatTheTableSays) {
  expect_committed("docs/run_file.md", run_file_page());
}

// The reference file gives exactly the default run.
TEST(FieldTable, TheReferenceFileGivesTheDefaults) {
  EXPECT_EQ(load_run_config({kRoot + "/config/reference.toml"}, {}, {.complete = false}),
            RunConfig{});
}

// Every preset loads when the keys that it leaves out are given.
TEST(FieldTable, EveryPresetLoadsWithWhatItLeavesOut) {
  int presets = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot + "/config/presets")) {
    const std::vector<Override> overrides = {
        {"run.dir", "r"}, {"model.path", "m"}, {"data.train", "[\"t\"]"}};
    const RunConfig config = load_run_config({entry.path().string()}, overrides);
    EXPECT_NE(config, RunConfig{}) << entry.path();
    ++presets;
  }
  EXPECT_GE(presets, 2);
}

// Goal: every recipe loads once the user's keys are given, and names a model that exists and its
// machine. scripts/dev/recipes --check compares their plans.
TEST(FieldTable, EveryRecipeLoadsAndNamesItsMachine) {
  int recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot + "/config/recipes")) {
    if (entry.path().extension() != ".toml") continue;
    const RunConfig config =
        load_run_config({entry.path().string()}, {{"run.dir", "r"}, {"data.train", "[\"t\"]"}});
    const std::string name = entry.path().stem().string();
    const size_t border = name.find('_');
    ASSERT_NE(border, std::string::npos) << name;
    EXPECT_TRUE(std::filesystem::exists(kRoot + "/config/recipes/models/" + name.substr(0, border) +
                                        "/config.json"))
        << name;
    const std::string text = read_whole_file(entry.path().string(), kMiB);
    EXPECT_NE(text.find("# Planned for --machine " + name.substr(border + 1) + ":"),
              std::string::npos)
        << name;
    EXPECT_EQ(config.device.kind, DeviceSection::Kind::kCuda) << name;
    ++recipes;
  }
  EXPECT_GE(recipes, 10);
}

// The description of a key names type, unit, bounds and default.
TEST(Describe, KeysOfASectionNameTypeBoundsAndDefault) {
  const std::string text = describe_keys("fsdp");
  EXPECT_NE(text.find("[fsdp]  "), std::string::npos);
  EXPECT_NE(text.find("integer (units), from 0 to 8; default 1"), std::string::npos) << text;
  EXPECT_NE(describe_keys("run").find("path; needed"), std::string::npos);
  EXPECT_NE(describe_keys("").find("[log]"), std::string::npos);
}

// The help text shows keys as command-line arguments.
TEST(Describe, HelpShowsArguments) {
  EXPECT_NE(help_text("offload").find("--offload.state_format=split-bf16\n"), std::string::npos);
  EXPECT_NE(help_text("offload").find("integer (threads) or \"auto\", from 1 to 1024"),
            std::string::npos);
  EXPECT_NE(help_overview().find("  fsdp        strategy shard_ranks units prefetch "
                                 "recompute gather\n"),
            std::string::npos);
}

// An unknown section is refused, and the nearest name is proposed.
TEST(Describe, UnknownSectionsGetTheNearestName) {
  try {
    help_text("ofload");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "unknown section 'ofload', did you mean 'offload'? (longshore config keys)");
  }
}

// No line of help text or reference is longer than 100 characters.
TEST(Describe, LinesFitATerminal) {
  for (const std::string& text : {describe_keys(""), help_overview(), reference_toml()}) {
    size_t start = 0;
    for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', start)) {
      EXPECT_LE(end - start, 100u) << text.substr(start, end - start);
      start = end + 1;
    }
  }
}

// The JSON schema has every key and refuses unknown ones.
TEST(Describe, TheSchemaHasEveryKeyAndRefusesOthers) {
  const Json schema = parse_json(json_schema(), {}, "schema");
  EXPECT_EQ(schema["additionalProperties"], false);
  for (const Section& section : run_file_sections()) {
    const Json& object = schema["properties"].at(section.name);
    EXPECT_EQ(object["additionalProperties"], false);
    EXPECT_EQ(object["properties"].size(), section.keys.size());
    for (const Key& key : section.keys) {
      EXPECT_EQ(object["properties"].at(key.name)["description"], key.description);
    }
  }
  const Json& offload = schema["properties"]["offload"]["properties"];
  EXPECT_EQ(offload["state_format"]["enum"], (Json{"fp32", "split", "split-bf16", "split-int8"}));
  EXPECT_EQ(offload["threads"]["anyOf"][0]["maximum"], 1024);
  EXPECT_EQ(offload["threads"]["default"], "auto");
  EXPECT_EQ(schema["properties"]["optimizer"]["properties"]["eps"]["exclusiveMinimum"], 0.0);
}

}  // namespace
}  // namespace longshore
